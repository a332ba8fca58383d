"""A rise of the request rate that the noise of arrivals does not explain is followed at once, and ahead.

A level that is averaged over a start-up is late on a step or a crowd, and a line through a few windows is mostly noise.
How noisy a count of arrivals is, is known: its variance is its mean times a dispersion, 1 where they are independent.
A fall is left to the level and to the hold, as a late worker costs more than an idle one.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from pdplugins.policies.dopd.forecast import Forecaster

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Windows that are tried, in ascending order."""
LEVEL_ONLY = 2
"""Windows up to which the mean is taken: a line through so few would be too noisy."""
WIDTH = 2.5
"""Half the width of the intervals, in standard errors."""
BAD_FIT = 3.0
"""Standard errors by which the residuals of a line may exceed noise; a line over a step exceeds it by more."""
DOUBT = 4.0
"""A slope is shrunk by this multiple of its variance over its square: to nothing where that is 1 or more."""
RISE = 4.0
"""Standard errors of the mean rate of a start-up by which a level must exceed the usual one."""
MOST = 1.4
"""Largest ratio of a line's forecast to its level."""
OUTLIER = 9.0
"""Squared error over its variance beyond which a jump, and no noise, is assumed when the dispersion is learned."""
PRIOR, MEMORY = 4.0, 100.0
"""Weight of the first dispersion, 1, in windows, and windows that it is averaged over later."""


@dataclass(frozen=True, slots=True)
class Line:
    """A fit: the rate at the newest window, its change from window to window, and the windows that it is through."""

    level: float
    slope: float
    windows: int

    def at(self, steps: int) -> float:
        """Return the rate `steps` windows later. A line is followed no further than it was seen."""
        return min(self.level + min(steps, self.windows) * self.slope, MOST * self.level)


class Rising:
    """Forecasts a request rate. See :class:`pdplugins.policies.dopd.forecast.Forecaster`.

    :param usual: forecaster of the level.
    :param steps: windows from a forecast to the value that it is for.
    :param interval_s: seconds of a window.
    :param horizon_s: seconds that `usual` remembers.
    """

    def __init__(self, usual: Forecaster, steps: int, interval_s: float, horizon_s: float) -> None:
        self._usual, self._steps = usual, steps
        self._interval_s, self._horizon_s = interval_s, horizon_s
        self._values: deque[float] = deque(maxlen=LENGTHS[-1])
        self._line = Line(math.nan, 0.0, 0)
        self._learned = PRIOR
        self.dispersion = 1.0
        """Variance of the requests of a window over their mean, at least 1: more where arrivals clump."""

    def observe(self, value: float) -> None:
        """Take in the rate of the next window."""
        if not math.isfinite(value):
            return
        self._usual.observe(value)
        self._values.append(value)
        self._learn()
        self._line = self._longest()

    def forecast(self) -> float:
        """Return the rate expected `steps` windows ahead; NaN while nothing was observed."""
        usual = self._usual.forecast()
        explained = RISE * math.sqrt(self._noise(usual, self._horizon_s))
        return max(self._line.at(self._steps), usual) if self._line.level > usual + explained else usual

    def _noise(self, rate: float, seconds: float) -> float:
        """Return the variance of the rate that is counted in `seconds`; never below that of one request."""
        return self.dispersion * max(rate, 1 / seconds) / seconds

    def _learn(self) -> None:
        """Learn the dispersion from how far a value is off its two neighbours (Gasser et al., 1986).

        A trend does not count there, and a jump only once.
        """
        if len(self._values) < 3:
            return
        before, middle, after = self._values[-3], self._values[-2], self._values[-1]
        error = (middle - (before + after) / 2) ** 2 / 1.5
        found = self.dispersion * min(error / self._noise((before + middle + after) / 3, self._interval_s), OUTLIER)
        self._learned = min(self._learned + 1, MEMORY)
        self.dispersion = max(self.dispersion + (found - self.dispersion) / self._learned, 1.0)

    def _longest(self) -> Line:
        """Return the fit over the longest window that no shorter one contradicts.

        Its confidence interval intersects those of all shorter ones (Goldenshluger and Nemirovski, 1997).
        """
        values, found = list(self._values), Line(self._values[-1], 0.0, 1)
        low, high = -math.inf, math.inf
        for length in LENGTHS:
            if length > len(values):
                break
            recent = values[-length:]
            mean = sum(recent) / length
            noise = self._noise(mean, self._interval_s)
            line, weight = Line(mean, 0.0, length), 1 / length
            if length > LEVEL_ONLY:
                line, weight = _fitted(recent, mean, noise)
            margin = WIDTH * math.sqrt(noise * weight)
            low, high = max(low, line.level - margin), min(high, line.level + margin)
            if math.isnan(line.level) or low > high:
                break
            found = line
        return found


def _fitted(values: list[float], mean: float, noise: float) -> tuple[Line, float]:
    """Return the line through `values`, and the variance of its level over that of one value; NaN for a bad fit.

    :param noise: variance of one value.
    """
    count = len(values)
    middle = (count - 1) / 2
    spread = count * (count * count - 1) / 12
    slope = sum((at - middle) * value for at, value in enumerate(values)) / spread
    left = sum((value - mean) ** 2 for value in values) - slope * slope * spread
    if left > noise * (count - 2) * (1 + BAD_FIT * math.sqrt(2 / (count - 2))):
        return Line(math.nan, 0.0, 0), 1.0
    slope *= max(1 - DOUBT * noise / (spread * slope * slope), 0.0) if spread * slope * slope > 0 else 0.0
    return Line(max(mean + slope * middle, 0.0), slope, count), 1 / count + middle * middle / spread
