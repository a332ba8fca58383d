"""Level and slope of a noisy series: long windows where nothing changes, short ones after a change."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.dopd.outlook import Outlook
from pdplugins.policies.dopd.trend import Trend, averaged, counted

INTERVAL_S, STEPS = 5.0, 7


def arrivals(rates: list[float], seed: int = 0, clump: int = 1) -> list[float]:
    """Return the rates seen in windows: independent arrivals, `clump` at a time."""
    draw = random.Random(seed)
    return [_poisson(draw, rate * INTERVAL_S / clump) * clump / INTERVAL_S for rate in rates]


def _poisson(draw: random.Random, mean: float) -> int:
    count, left = 0, draw.expovariate(1.0)
    while left < mean:
        count, left = count + 1, left + draw.expovariate(1.0)
    return count


def fed(values: list[float], steps: int = STEPS) -> Trend:
    trend = Trend(steps, counted(INTERVAL_S))
    for value in values:
        trend.observe(value)
    return trend


@pytest.mark.parametrize("seed", range(4))
def test_steady_traffic_has_a_precise_level_and_no_slope_to_speak_of(seed: int) -> None:
    trend = fed(arrivals([9.0] * 200, seed))
    assert trend.forecast() == pytest.approx(9.0, rel=0.1)
    assert trend.dispersion < 1.5


def test_a_ramp_is_seen_ahead() -> None:
    """Two requests a second more every minute: the rate one start-up ahead, not the one of the past minutes."""
    rising = [2.0 + 2 * i / 12 for i in range(120)]
    assert fed(arrivals(rising)).forecast() == pytest.approx(2.0 + 2 * (119 + STEPS) / 12, rel=0.08)


@pytest.mark.parametrize(("before", "after"), [(4.0, 14.0), (14.0, 4.0)])
def test_a_step_is_believed_after_two_windows(before: float, after: float) -> None:
    trend = fed(arrivals([before] * 100 + [after] * 2))
    assert trend.line.level == pytest.approx(after, rel=0.3)
    assert trend.forecast() <= 1.3 * after, "a step is no slope that goes on upwards"


def test_clumps_are_learned_as_dispersion_and_steps_are_not() -> None:
    assert fed(arrivals([8.0] * 150, clump=8)).dispersion > 4
    assert fed(arrivals([4.0] * 50 + [14.0] * 50 + [4.0] * 50)).dispersion < 2


def test_lengths_have_levels_and_no_slope() -> None:
    trend = Trend(1, averaged, slopes=False)
    for value in [300.0, 310.0, 290.0] * 20 + [2000.0, 2010.0, 1990.0, 2000.0]:
        trend.observe(value)
    assert trend.forecast() == pytest.approx(2000, rel=0.05)


@given(st.lists(st.floats(0, 1e9) | st.just(math.nan) | st.just(math.inf), max_size=150))
def test_no_series_gives_a_forecast_that_is_negative_or_beyond_twice_what_was_seen(values: list[float]) -> None:
    trend = fed(values)
    seen = [value for value in values if math.isfinite(value)]
    if seen:
        assert 0 <= trend.forecast() <= 4 * max(seen) + 1e-9
    else:
        assert math.isnan(trend.forecast())


def looked_ahead(values: list[float], miss: float = 0.1) -> Outlook:
    outlook = Outlook(Trend(STEPS, counted(INTERVAL_S)), STEPS, INTERVAL_S, 1440, miss)
    for value in values:
        outlook.observe(value)
    return outlook


def test_where_forecasts_come_true_nothing_is_added() -> None:
    assert looked_ahead(arrivals([9.0] * 240)).bound(9.0) < 10


def test_bursts_that_come_back_are_expected_to() -> None:
    spells = [*[3.0] * 24, *[14.0] * 12] * 5 + [3.0] * 6
    assert looked_ahead(arrivals(spells)).bound(3.0) == pytest.approx(14, rel=0.25)
    assert looked_ahead(arrivals(spells), miss=0.9).bound(3.0) < 5, "who may miss nearly all need not provide"


def test_until_forecasts_were_compared_with_what_came_the_highest_window_counts() -> None:
    """Whether a burst comes back is not known after one minute; after five it is."""
    begin = [9.0, 30.0, *[9.0] * 12]
    assert looked_ahead(begin).bound(9.0) == pytest.approx(30.0, rel=0.05)
    assert looked_ahead(begin + [9.0] * 60).bound(9.0) < 12


def test_a_crowd_that_came_once_is_not_planned_for_ever_after() -> None:
    assert looked_ahead(arrivals([9.0] * 120 + [20.0] * 12 + [9.0] * 120)).bound(9.0) < 12


def test_a_bound_is_at_most_what_was_seen() -> None:
    clumps = [60.0 if i % 12 == 0 else 0.0 for i in range(240)]
    outlook = looked_ahead(clumps)
    assert outlook.bound(5.0) <= 60.0
    assert outlook.bound(99.0) == 99.0
