"""Forecasters take any series that a host can produce, and ARIMA refits only when it was far off."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplugins.policies.dopd.arima import FEWEST_POINTS, Arima
from pdplugins.policies.dopd.forecast import (
    Corrected,
    Forecaster,
    Kalman,
    Lasting,
    LastValue,
    Predictor,
    Reverting,
    build_forecaster,
)

PREDICTORS: tuple[Predictor, ...] = ("last-value", "kalman", "arima")
NAN, INF = math.nan, math.inf


def fed(forecaster: Forecaster, values: list[float]) -> Forecaster:
    for value in values:
        forecaster.observe(value)
    return forecaster


def noisy(count: int, level: float = 50.0, persistence: float = 0.7) -> list[float]:
    draw, values, value = random.Random(0), [], level
    for _ in range(count):
        value = level + persistence * (value - level) + draw.gauss(0, 1)
        values.append(value)
    return values


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_nothing_seen_is_nan_and_one_value_is_the_forecast(predictor: Predictor) -> None:
    forecaster = build_forecaster(predictor)
    assert math.isnan(forecaster.forecast())
    forecaster.observe(NAN)
    assert math.isnan(forecaster.forecast())
    forecaster.observe(7.0)
    assert forecaster.forecast() == 7.0


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("value", [0.0, 5.0, 1e12])
def test_a_constant_series_is_forecast_as_itself(predictor: Predictor, value: float) -> None:
    forecaster = fed(build_forecaster(predictor), [value] * 100)
    assert forecaster.forecast() == pytest.approx(value)


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_values_that_are_not_finite_are_left_out(predictor: Predictor) -> None:
    clean, dirty = (build_forecaster(predictor) for _ in range(2))
    for value in noisy(80):
        clean.observe(value)
        fed(dirty, [value, NAN, INF, -INF])
    assert dirty.forecast() == clean.forecast()


@settings(max_examples=25)
@given(st.lists(st.one_of(st.floats(), st.sampled_from([0.0, 1.0, 1e300])), max_size=20), st.sampled_from(PREDICTORS))
def test_any_series_gives_a_finite_forecast(values: list[float], predictor: Predictor) -> None:
    values *= 4  # enough for a fit
    forecaster = fed(build_forecaster(predictor), values)
    seen = [value for value in values if math.isfinite(value)]
    assert math.isfinite(forecaster.forecast()) == bool(seen)


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_a_new_level_is_followed(predictor: Predictor) -> None:
    forecaster = fed(build_forecaster(predictor), noisy(100, 10.0) + noisy(40, 100.0))
    assert forecaster.forecast() == pytest.approx(100, abs=10)


def test_kalman_settles_on_its_gain() -> None:
    kalman = fed(Kalman(gain=0.3), [10.0] * 200)
    kalman.observe(20.0)
    assert kalman.forecast() == pytest.approx(13.0, abs=0.01)


def test_arima_beats_the_last_value_where_the_series_returns_to_its_mean() -> None:
    arima, last = Arima(order=(1, 0, 0)), LastValue()
    errors = {arima: 0.0, last: 0.0}
    for index, value in enumerate(noisy(600, persistence=0.3)):
        for forecaster in errors:
            if index > 100:
                errors[forecaster] += (forecaster.forecast() - value) ** 2
            forecaster.observe(value)
    assert errors[arima] < 0.8 * errors[last]


@pytest.mark.moderate
def test_the_recursion_is_what_statsmodels_forecasts() -> None:
    from statsmodels.tsa.arima.model import ARIMA  # noqa: PLC0415 - seconds to import

    ours = fed(Arima(order=(1, 0, 1)), noisy(400))
    model = ours._model
    assert model is not None
    values = list(ours._window)
    theirs = ARIMA(values, order=(1, 0, 1)).filter([model._mean, *model._ar, *model._ma, 1.0])
    assert ours.forecast() == pytest.approx(float(theirs.forecast(1)[0]), rel=1e-3)


def test_arima_refits_on_a_large_error_only() -> None:
    arima = fed(Arima(), [10.0 + 0.1 * (i % 5) for i in range(FEWEST_POINTS)])
    assert arima.refits == 1
    calm = arima.refits
    fed(arima, [10.0 + 0.1 * (i % 5) for i in range(FEWEST_POINTS, 200)])
    assert arima.refits - calm < 20
    before = arima.refits
    arima.observe(100.0)
    assert arima.refits == before + 1


def test_the_window_of_history_is_fixed() -> None:
    arima = fed(Arima(window=100), noisy(500))
    assert len(arima._window) == 100


def test_the_correction_is_how_far_the_last_forecast_was_off() -> None:
    corrected = fed(Corrected(LastValue(), limit=2.0), [10.0, 12.0])
    assert corrected.factor == pytest.approx(1.2)
    assert corrected.forecast() == pytest.approx(14.4)


@pytest.mark.parametrize(("value", "factor"), [(1000.0, 2.0), (0.1, 0.5), (0.0, 1.0), (NAN, 1.0)])
def test_the_correction_is_bounded_and_survives_zero_and_nan(value: float, factor: float) -> None:
    corrected = fed(Corrected(LastValue(), limit=2.0), [10.0, value])
    assert corrected.factor == factor
    assert math.isfinite(corrected.forecast())


def test_the_memory_of_the_kalman_filter_is_where_a_level_counts_for_one_in_e() -> None:
    kalman = fed(build_forecaster("kalman", memory=6), [0.0] * 300)
    fed(kalman, [1.0] * 6)
    assert kalman.forecast() == pytest.approx(1 - math.exp(-1), abs=0.02)


def test_levels_that_last_are_believed_and_bursts_are_not() -> None:
    slow = [10.0 + 8.0 * ((i // 60) % 2) for i in range(600)]
    bursts = [60.0 if i % 12 == 0 else 0.0 for i in range(600)]
    lasting = fed(Reverting(build_forecaster("kalman", memory=3), steps=4, memory=1000), slow)
    bursty = fed(Reverting(build_forecaster("kalman", memory=3), steps=4, memory=1000), bursts)
    assert isinstance(lasting, Reverting)
    assert isinstance(bursty, Reverting)
    assert lasting.persistence > 0.7
    assert bursty.persistence < 0.3
    assert bursty.forecast() == pytest.approx(bursty.mean, rel=0.5)


def test_a_fluctuation_that_noise_explains_pulls_no_forecast_to_the_mean() -> None:
    """Counts of ten requests a second in 5 s are off by 1.4; the deviations of their levels do not last."""
    noise = [10.0 + 1.4 * (-1) ** (i // 3) for i in range(600)]
    counts, amounts = (Reverting(LastValue(), 7, 1000, seconds) for seconds in (30.0, math.inf))
    for series in (counts, amounts):
        fed(series, [*noise, 25.0])
    assert counts.forecast() == pytest.approx(25.0)
    assert amounts.forecast() < 23.0
    assert counts.persistence == amounts.persistence < 0.9


def test_what_a_forecast_has_learned_can_be_resumed() -> None:
    slow = [10.0 + 8.0 * ((i // 60) % 2) for i in range(600)]
    first, second = (Reverting(LastValue(), 4, 1000, 30.0) for _ in range(2))
    fed(first, slow)
    second.resume(**first.learned)
    fed(second, slow[-1:])
    assert second.persistence == pytest.approx(first.persistence, abs=0.01)
    assert second.forecast() == pytest.approx(first.forecast(), abs=0.1)


def test_without_experience_a_level_is_taken_to_last() -> None:
    fresh = fed(Reverting(LastValue(), steps=7, memory=100), [5.0, 9.0])
    assert isinstance(fresh, Reverting)
    assert fresh.persistence == 1.0
    assert fresh.forecast() == 9.0


class Broken:
    """A forecaster that fails always."""

    def observe(self, value: float) -> None:
        raise ValueError("singular matrix")

    def forecast(self) -> float:
        raise RuntimeError("no convergence")


def test_a_forecaster_that_raises_is_replaced_by_the_last_value_and_counted() -> None:
    lasting = fed(Lasting(Broken()), [3.0, 4.0])
    assert isinstance(lasting, Lasting)
    assert lasting.forecast() == 4.0
    assert lasting.failures == 3
    assert lasting.error == "RuntimeError: no convergence"


def test_a_forecast_is_never_negative() -> None:
    falling = fed(Lasting(build_forecaster("arima")), [1000.0 - 25 * i for i in range(41)])
    assert falling.forecast() == 0.0
