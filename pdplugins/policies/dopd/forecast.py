"""One-step forecasts of one series (prompt length, output length, request rate), behind one small interface.

Every forecaster copes with the metrics of real hosts. It skips NaN and infinities, and takes constant series and zeros.
Its forecast is finite once it has seen one finite value. No data makes it raise.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

Predictor = Literal["trend", "last-value", "kalman", "arima"]


class Forecaster(Protocol):
    """Forecasts the next value of a series."""

    def observe(self, value: float) -> None:
        """Take in the next value of the series; a value that is not finite is skipped."""
        ...

    def forecast(self) -> float:
        """Return the expected next value; NaN while nothing was observed."""
        ...


class LastValue:
    """Forecasts that the next value equals the last one."""

    def __init__(self) -> None:
        self._last = math.nan

    def observe(self, value: float) -> None:
        """Take in the next value."""
        if math.isfinite(value):
            self._last = value

    def forecast(self) -> float:
        """Return the last value."""
        return self._last


class Kalman:
    """A Kalman filter with a local level: the series is a random walk plus noise (Harvey 1989, Section 2.2).

    :param gain: share of a forecast error that the level follows once the filter has settled, in (0, 1]. It fixes the
        ratio of the two variances of the model. The forecast depends on nothing else.
    """

    def __init__(self, gain: float = 0.3) -> None:
        # In the steady state P = (q + sqrt(q^2 + 4q)) / 2 with q = gain^2 / (1 - gain), for a noise variance of 1.
        self._drift = gain**2 / (1 - gain) if gain < 1 else math.inf
        self._level = math.nan
        self._variance = math.inf

    def observe(self, value: float) -> None:
        """Take in the next value."""
        if not math.isfinite(value):
            return
        predicted = self._variance + self._drift
        gain = 1.0 if math.isinf(predicted) else predicted / (predicted + 1.0)
        self._level = value if math.isnan(self._level) else self._level + gain * (value - self._level)
        self._variance = gain

    def forecast(self) -> float:
        """Return the level."""
        return self._level


class Corrected:
    """Multiplies a forecast by the last ratio of observed to forecast: DOPD's correction factor (Sections II-A, V-D).

    :param inner: the forecaster to correct.
    :param limit: the factor stays within [1 / limit, limit], so that one unusual window cannot double the fleet.
    """

    def __init__(self, inner: Forecaster, limit: float) -> None:
        self._inner = inner
        self._limit = limit
        self._factor = 1.0

    @property
    def factor(self) -> float:
        """The current factor: observed over forecast, or 1 while there is nothing to compare."""
        return self._factor

    def observe(self, value: float) -> None:
        """Take in the next value and compare it with its forecast."""
        expected = self._inner.forecast()
        if math.isfinite(value) and math.isfinite(expected):
            comparable = value > 0 and expected > 0
            self._factor = min(max(value / expected, 1 / self._limit), self._limit) if comparable else 1.0
        self._inner.observe(value)

    def forecast(self) -> float:
        """Return the corrected forecast."""
        return self._inner.forecast() * self._factor


class Lasting:
    """A series whose forecaster may fail. Then the last value is the forecast, and the failure is counted."""

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self._last = LastValue()
        self.failures = 0
        self.error = ""

    def observe(self, value: float) -> None:
        """Take in the next value."""
        self._last.observe(value)
        try:
            self._forecaster.observe(value)
        except Exception as error:
            self._failed(error)

    def forecast(self) -> float:
        """Return the forecast, which is never negative, or the last value where there is none."""
        try:
            predicted = self._forecaster.forecast()
        except Exception as error:
            self._failed(error)
            predicted = math.nan
        return max(predicted, 0.0) if math.isfinite(predicted) else self._last.forecast()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.error = f"{type(error).__name__}: {error}"


def build_forecaster(predictor: Predictor, *, history: int = 600, memory: float = 3.0) -> Forecaster:
    """Return a new forecaster.

    :param history: values that arima is fitted to.
    :param memory: values after which a level counts for 1 / e in the kalman filter.
    """
    match predictor:
        case "last-value":
            return LastValue()
        case "kalman" | "trend":  # only counts have a known noise: what else `trend` forecasts, kalman does
            return Kalman(gain=1 - math.exp(-1 / memory))
        case "arima":
            # Imported only where it is used, because statsmodels takes more than a second to import.
            from pdplugins.policies.dopd.arima import Arima  # noqa: PLC0415

            return Arima(window=history)
