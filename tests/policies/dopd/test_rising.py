"""A rise of the request rate is followed at once where noise does not explain it; all else is left to the level."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.dopd.forecast import build_forecaster
from pdplugins.policies.dopd.rising import Rising

INTERVAL_S, HORIZON_S, STEPS = 5.0, 30.0, 7


def arrivals(rates: list[float], seed: int = 0, clump: int = 1) -> list[float]:
    """Return the rates seen in windows: independent arrivals, `clump` at a time."""
    draw = random.Random(seed)
    return [_poisson(draw, rate * INTERVAL_S / clump) * clump / INTERVAL_S for rate in rates]


def _poisson(draw: random.Random, mean: float) -> int:
    count, left = 0, draw.expovariate(1.0)
    while left < mean:
        count, left = count + 1, left + draw.expovariate(1.0)
    return count


def forecasts(values: list[float]) -> list[tuple[float, float]]:
    """Return, window by window, what is forecast and what the level alone would be."""
    usual = build_forecaster("kalman", memory=HORIZON_S / INTERVAL_S)
    rising, made = Rising(usual, STEPS, INTERVAL_S, HORIZON_S), []
    for value in values:
        rising.observe(value)
        made.append((rising.forecast(), usual.forecast()))
    return made


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("clump", [1, 4])
def test_steady_traffic_is_left_to_the_level(seed: int, clump: int) -> None:
    made = forecasts(arrivals([9.0] * 240, seed, clump))[24:]
    assert sum(forecast > level for forecast, level in made) <= 2


def test_a_step_is_followed_after_two_windows() -> None:
    forecast, level = forecasts(arrivals([4.0] * 100 + [14.0] * 2))[-1]
    assert level < 9
    assert 12 < forecast < 28


def test_a_crowd_is_met_ahead() -> None:
    """Half a minute from three requests a second to fifteen: a worker that is requested now serves after it."""
    crowd = [3.0 + 2.0 * at for at in range(1, 7)]
    forecast, level = forecasts(arrivals([3.0] * 100 + crowd))[-1]
    assert level < 10
    assert forecast > 18


def test_a_fall_is_left_to_the_level() -> None:
    made = forecasts(arrivals([14.0] * 100 + [4.0] * 20))[100:]
    assert all(forecast == level for forecast, level in made)


def test_bursts_of_clumped_arrivals_are_noise() -> None:
    rising = Rising(build_forecaster("kalman"), STEPS, INTERVAL_S, HORIZON_S)
    for value in arrivals([8.0] * 150, clump=8):
        rising.observe(value)
    assert rising.dispersion > 4


@given(st.lists(st.floats(0, 1e9) | st.just(math.nan) | st.just(math.inf), max_size=150))
def test_no_series_gives_a_forecast_below_the_level_or_far_beyond_what_was_seen(values: list[float]) -> None:
    for at, (forecast, level) in enumerate(forecasts(values)):
        seen = [value for value in values[: at + 1] if math.isfinite(value)]
        assert math.isnan(forecast) if not seen else level <= forecast <= max(level, 4 * max(seen))
