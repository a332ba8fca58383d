"""One-step forecasts of one series (prompt length, output length, request rate), behind one small interface.

Every forecaster takes the metrics of real hosts as they are: NaN and infinities are not observed, a constant series and
zeros are ordinary, and a forecast is finite as soon as one finite value came. Nothing here raises on data.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

Predictor = Literal["last-value", "kalman", "arima"]


class Forecaster(Protocol):
    """Forecasts the next value of a series."""

    def observe(self, value: float) -> None:
        """Take in the next value of the series; one that is not finite is left out."""
        ...

    def forecast(self) -> float:
        """Return the expected next value; NaN while nothing was observed."""
        ...


class LastValue:
    """The next value is the last one."""

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
    """A local level: the series is a random walk seen through noise (Harvey 1989, Section 2.2).

    :param gain: share of a surprise that the level follows once the filter has settled, in (0, 1]. It fixes the ratio
        of the two variances of the model, which is all that the forecast depends on.
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
    """Multiplies a forecast with how far the last one was off: DOPD's correction factor (Sections II-A and V-D).

    :param inner: the forecaster to correct.
    :param limit: the factor stays within [1 / limit, limit], so that one odd window cannot double the fleet.
    """

    def __init__(self, inner: Forecaster, limit: float) -> None:
        self._inner = inner
        self._limit = limit
        self._factor = 1.0

    @property
    def factor(self) -> float:
        """The factor in force: observed over forecast, 1 while there is nothing to compare."""
        return self._factor

    def observe(self, value: float) -> None:
        """Take in the next value and compare it with what was forecast for it."""
        expected = self._inner.forecast()
        if math.isfinite(value) and math.isfinite(expected):
            comparable = value > 0 and expected > 0
            self._factor = min(max(value / expected, 1 / self._limit), self._limit) if comparable else 1.0
        self._inner.observe(value)

    def forecast(self) -> float:
        """Return the corrected forecast."""
        return self._inner.forecast() * self._factor


def build_forecaster(predictor: Predictor, window: int) -> Forecaster:
    """Return a new forecaster; `window` values of history are kept where the predictor needs history."""
    match predictor:
        case "last-value":
            return LastValue()
        case "kalman":
            return Kalman()
        case "arima":
            # statsmodels takes more than a second to import; only those who chose it pay.
            from pdplugins.policies.dopd.arima import Arima  # noqa: PLC0415

            return Arima(window=window)
