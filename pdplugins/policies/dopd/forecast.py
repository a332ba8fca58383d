"""One-step forecasts of one series (prompt length, output length, request rate), behind one small interface.

Every forecaster copes with the metrics of real hosts. It skips NaN and infinities, and takes constant series and zeros.
Its forecast is finite once it has seen one finite value. No data makes it raise.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal, Protocol

Predictor = Literal["last-value", "kalman", "arima"]


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


class Reverting:
    """Pulls a forecast towards the long-run mean, as far as past levels did not last.

    A worker serves only one start-up time after it was requested. So it matters how much of a level is left by then.
    That is the slope of values on the forecasts made `steps` earlier. It lies between 0, for bursts that are over by
    then, and 1, for levels that last.

    Deviations that the noise of arrivals explains say nothing of how long a high level lasts. They would pull every one
    down to the mean, so they are left out there. There the mean is that of the time of the forecast: below today's, the
    forecasts before a first rise would say that its level does not last. A low level is trusted less, as a late worker
    costs more than an idle one: all deviations count, from today's mean, and in `persistence` too.

    :param inner: the forecaster of the level.
    :param steps: steps from a forecast to the value that it is for.
    :param memory: steps after which the weight of an observation has faded to 1 / e.
    :param counted_s: seconds over which `inner` counts arrivals; infinite where no deviation is noise.
    """

    PRIOR_STEPS = 0.5
    """Weight of the initial assumption that levels last, in squared mean levels."""
    SIGMAS = 3.0
    """Standard errors of a count of independent arrivals from which on a deviation is no noise."""

    def __init__(self, inner: Forecaster, steps: int, memory: float, counted_s: float = math.inf) -> None:
        self._inner, self._steps, self._counted_s = inner, steps, counted_s
        self._keep = math.exp(-1 / memory)
        self._pending: deque[tuple[float, float]] = deque()
        self._mean = self._weight = 0.0
        self._all, self._clear = _Slope(), _Slope()

    @property
    def mean(self) -> float:
        """The long-run mean."""
        return self._mean

    @property
    def persistence(self) -> float:
        """Share of a deviation from the mean that is expected to last, 0 to 1; noise counts."""
        return self._all.within(self.PRIOR_STEPS * self._mean * self._mean)

    @property
    def learned(self) -> dict[str, float]:
        """What it knows beside the level."""
        return {
            "mean": self._mean,
            "weight": self._weight,
            "covariance": self._all.covariance,
            "variance": self._all.variance,
            "clear_covariance": self._clear.covariance,
            "clear_variance": self._clear.variance,
        }

    def resume(
        self,
        mean: float,
        weight: float,
        covariance: float,
        variance: float,
        clear_covariance: float,
        clear_variance: float,
    ) -> None:
        """Go on with what an earlier run has learned."""
        self._mean, self._weight = mean, weight
        self._all, self._clear = _Slope(covariance, variance), _Slope(clear_covariance, clear_variance)

    def observe(self, value: float) -> None:
        """Take in the next value, and learn from the forecast that was made for it."""
        if not math.isfinite(value):
            return
        self._inner.observe(value)
        self._weight = self._keep * self._weight + 1
        self._mean += (value - self._mean) / self._weight
        self._pending.append((self._inner.forecast(), self._mean))
        if len(self._pending) > self._steps:
            expected, mean = self._pending.popleft()
            self._all.learn(expected - self._mean, value - self._mean, self._keep)
            if abs(expected - mean) >= self.SIGMAS * math.sqrt(max(mean, 0.0) / self._counted_s):
                self._clear.learn(expected - mean, value - mean, self._keep)

    def forecast(self) -> float:
        """Return the forecast for `steps` ahead; NaN while nothing was observed."""
        level, prior = self._inner.forecast(), self.PRIOR_STEPS * self._mean * self._mean
        lasting = (self._clear if level > self._mean else self._all).within(prior)
        return self._mean + lasting * (level - self._mean)


@dataclass(slots=True)
class _Slope:
    """The slope of one series on another, both about their mean."""

    covariance: float = 0.0
    variance: float = 0.0

    def learn(self, x: float, y: float, keep: float) -> None:
        """Take in a pair, after the older ones have faded by `keep`."""
        self.covariance = keep * self.covariance + x * y
        self.variance = keep * self.variance + x * x

    def within(self, prior: float) -> float:
        """Return it, 0 to 1, where `prior` is the variance of earlier pairs with a slope of 1."""
        if self.variance + prior <= 0:
            return 1.0
        return min(max((self.covariance + prior) / (self.variance + prior), 0.0), 1.0)


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
        case "kalman":
            return Kalman(gain=1 - math.exp(-1 / memory))
        case "arima":
            # Imported only where it is used, because statsmodels takes more than a second to import.
            from pdplugins.policies.dopd.arima import Arima  # noqa: PLC0415

            return Arima(window=history)
