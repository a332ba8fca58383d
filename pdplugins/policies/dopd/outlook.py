"""The request rate to plan for: what is expected when a worker that is requested now serves, and how much may come.

The bound learns from the forecasts that were made: at most a share `miss` of the requests came when it was exceeded
(split conformal prediction with weights: Tibshirani et al., 2019). A worker that idles costs less than one that is
late, so `miss` is the newsvendor's share: the cost of an idle worker over that of both.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import NormalDist

from pdplugins.policies.dopd.forecast import Forecaster
from pdplugins.policies.dopd.load import LARGEST
from pdplugins.policies.dopd.memory import MOST_ERRORS, RateMemory
from pdplugins.policies.dopd.trend import Trend, counted

FEWEST = 40
"""Forecasts that must have been compared before their errors count."""


class Outlook:
    """Forecasts one start-up ahead, with an upper bound.

    :param inner: forecaster of the rate.
    :param steps: windows from a forecast to the value that it is for.
    :param interval_s: seconds of a window.
    :param memory: windows that the errors are kept for.
    :param miss: share of the requests that may come while the load exceeds the bound.
    """

    def __init__(self, inner: Forecaster, steps: int, interval_s: float, memory: int, miss: float) -> None:
        self._inner = inner
        self._steps, self._interval_s, self._miss = steps, interval_s, miss
        self._usual = NormalDist().inv_cdf(max(1 - miss, 0.5))
        self._pending: deque[float] = deque()
        self._errors: deque[tuple[float, float]] = deque(maxlen=memory)
        self._keep = math.exp(-1 / memory)
        self._peak = 0.0
        self.now = math.nan
        """The rate expected in the next window; NaN while nothing was observed."""

    @property
    def dispersion(self) -> float:
        """Variance of the requests of one window over their mean."""
        return self._inner.dispersion if isinstance(self._inner, Trend) else 1.0

    def observe(self, value: float) -> None:
        """Take in the rate of the next window."""
        if not math.isfinite(value):
            return
        self._inner.observe(value)
        self.now = self._inner.line.at(1) if isinstance(self._inner, Trend) else self._inner.forecast()
        self._peak = max(value, self._keep * self._peak)
        self._pending.append(self.forecast())
        if len(self._pending) > self._steps:
            self._errors.append((self._beyond(value, self._pending.popleft()), value))

    def memory(self) -> RateMemory:
        """Return what an outlook of the next run begins with."""
        kept = list(self._errors)[-MOST_ERRORS:]
        return RateMemory(dispersion=min(self.dispersion, LARGEST), peak=self._peak, errors=kept)

    def recall(self, memory: RateMemory) -> None:
        """Begin with what an earlier run learned."""
        self._peak = memory.peak
        self._errors.extend(memory.errors)
        if isinstance(self._inner, Trend):
            self._inner.recall(memory.dispersion)

    def forecast(self) -> float:
        """Return the rate expected when a worker that is requested now serves."""
        return self._inner.forecast()

    def bound(self, rate: float) -> float:
        """Return how much may come where `rate` was forecast: at most what a window brought already, or `rate`."""
        return max(rate, min(rate + self._excess(), self._peak))

    def _beyond(self, value: float, expected: float) -> float:
        """Return by how much `value` exceeds what was expected, without the noise of its arrivals.

        Staffing by Eq. 10 provides for that noise already.
        """
        noise = self.dispersion * counted(self._interval_s)(expected)
        error = value - expected
        return math.sqrt(max(error * abs(error) - self._usual**2 * noise, 0.0))

    def _excess(self) -> float:
        """Return what forecasts were exceeded by when at most the share `miss` of all requests came.

        No limit before enough forecasts were compared: whether what came once comes back is not known then.
        """
        if len(self._errors) < FEWEST:
            return math.inf
        left = self._miss * sum(weight for _, weight in self._errors)
        for excess, weight in sorted(self._errors, reverse=True):
            left -= weight
            if left <= 0:
                return excess
        return 0.0
