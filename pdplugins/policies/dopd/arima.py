"""ARIMA as DOPD uses it: refit only when a forecast was far off, otherwise O(p + q) per step (paper, Section V-D).

statsmodels estimates the parameters with Hannan-Rissanen: two least-squares fits, which take 3 ms over 600 points,
where maximum likelihood takes 100 to 1000 ms. The recursion between two fits is line 8 of Algorithm 2. It is done here,
because ``append`` of statsmodels runs a Kalman filter over the whole window.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from itertools import pairwise

import numpy as np
from statsmodels.tools.sm_exceptions import MissingDataError
from statsmodels.tsa.arima.estimators.hannan_rissanen import hannan_rissanen

Steps = np.ndarray[tuple[int], np.dtype[np.float64]]

FEWEST_POINTS = 30
"""With fewer points a fit means little, and the forecast is the last value."""
LARGE_ERROR = 2.0
"""A forecast was far off beyond this many standard deviations of the residuals: one in twenty when the model holds."""
RETRY_POINTS = 10
"""New values before a fit is tried again while there is no model."""


class Arima:
    """ARIMA(p, d, q) with a constant, over a sliding window. See :class:`pdplugins.policies.dopd.forecast.Forecaster`.

    :param order: (p, d, q) with d 0 or 1.
    :param window: values of history that a fit uses.
    """

    def __init__(self, order: tuple[int, int, int] = (1, 1, 1), window: int = 600) -> None:
        self._order = order
        self._window: deque[float] = deque(maxlen=window)
        self._model: _Arma | None = None
        self._since_fit = 0
        self.refits = 0
        """Fits so far."""

    def observe(self, value: float) -> None:
        """Take in the next value. Fit again when the last forecast was far off, or when there is no model yet."""
        if not math.isfinite(value):
            return
        step = value - self._window[-1] if self._order[1] and self._window else value
        self._window.append(value)
        self._since_fit += 1
        if self._model is not None:
            self._model.observe(step)
        if self._needs_fit():
            self._fit()

    def forecast(self) -> float:
        """Return the one-step forecast; the last value while there is no model, NaN while there is nothing."""
        if not self._window:
            return math.nan
        if self._model is None:
            return self._window[-1]
        step = self._model.forecast()
        predicted = step + self._window[-1] if self._order[1] else step
        return predicted if math.isfinite(predicted) else self._window[-1]

    def _needs_fit(self) -> bool:
        if len(self._window) < FEWEST_POINTS:
            return False
        if self._model is None:
            return self.refits == 0 or self._since_fit >= RETRY_POINTS
        return self._model.far_off

    def _fit(self) -> None:
        self.refits += 1
        self._since_fit = 0
        values = list(self._window)
        steps = [b - a for a, b in pairwise(values)] if self._order[1] else values
        # If the new fit is unusable, the old model is still better than none.
        self._model = _fit(np.array(steps), self._order[0], self._order[2]) or self._model


class _Arma:
    """Fitted ARMA(p, q): the forecast is mean + sum phi_j (X_j - mean) + sum theta_k residual_k."""

    def __init__(self, mean: float, ar: list[float], ma: list[float], history: list[float]) -> None:
        self._mean, self._ar, self._ma = mean, ar, ma
        self._values = deque([0.0] * len(ar), maxlen=len(ar))
        self._residuals = deque([0.0] * len(ma), maxlen=len(ma))
        self.far_off = False
        self._deviation = math.inf
        errors = [self._advance(value) for value in history]
        self._deviation = math.sqrt(sum(error * error for error in errors) / len(errors))

    def observe(self, value: float) -> None:
        error = abs(self._advance(value))
        self.far_off = not error <= LARGE_ERROR * self._deviation  # a NaN error counts as far off too

    def forecast(self) -> float:
        autoregression = sum(phi * value for phi, value in zip(self._ar, self._values, strict=True))
        moving_average = sum(theta * error for theta, error in zip(self._ma, self._residuals, strict=True))
        return self._mean + autoregression + moving_average

    def _advance(self, value: float) -> float:
        error = value - self.forecast()
        self._values.appendleft(value - self._mean)
        self._residuals.appendleft(error)
        return error


def _fit(steps: Steps, p: int, q: int) -> _Arma | None:
    """Return a model of `steps`: ARMA, else one without the moving average, else None."""
    mean = float(steps.mean())
    if float(np.ptp(steps)) == 0:
        return _Arma(mean, [0.0] * p, [0.0] * q, steps.tolist())
    for ma_order in (q, 0):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found, _ = hannan_rissanen(steps - mean, ar_order=p, ma_order=ma_order, demean=False)
        except (ValueError, IndexError, np.linalg.LinAlgError, MissingDataError):  # no regression is possible here
            continue
        ar, ma = [float(x) for x in found.ar_params], [float(x) for x in found.ma_params]
        if np.isfinite([*ar, *ma]).all() and found.is_stationary and found.is_invertible:
            return _Arma(mean, ar, ma, steps.tolist())
    return None
