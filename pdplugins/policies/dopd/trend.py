"""Level and slope of the request rate, over as much of the past as the newest windows do not contradict.

Arrivals that are counted in a window are noisy by a known amount: their variance is their mean times a dispersion, 1
for independent arrivals. So a change of the load can be told from noise at once. Estimates over longer and longer
windows are compared: as long as their confidence intervals intersect, the longer one is better; where they stop to, the
load has changed (intersection of confidence intervals: Goldenshluger and Nemirovski, 1997).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Values of history that are tried, in ascending order."""
LEVEL_ONLY = 2
"""Up to so many values the mean is taken; a line would be too noisy."""
WIDTH = 2.5
"""Half the width of the intervals, in standard errors."""
BAD_FIT = 3.0
"""A line is refused when its residuals are larger than noise by so many standard errors, as those over a step are."""
DOUBT = 4.0
"""A slope whose square is below so many times its variance counts as none; a clearer one is taken for most of it."""
OUTLIER = 9.0
"""Squared error over its variance beyond which a jump, and no noise, is assumed when the dispersion is learned."""
SAMPLE = 20.0
"""Requests over which a length is averaged before it counts as one value: the mean of fewer says too little."""
PRIOR, MEMORY = 4.0, 100.0
"""Weight of the first dispersion, 1, in values, and number of values over which it is averaged later."""


@dataclass(frozen=True, slots=True)
class Line:
    """A fit: the value at the newest window, and its change from window to window."""

    level: float
    slope: float

    def at(self, steps: float) -> float:
        """Return the value `steps` windows later, within half and twice the level."""
        return min(max(self.level + steps * self.slope, self.level / 2), 2 * self.level)


class Trend:
    """Forecasts a mean some windows ahead. See :class:`pdplugins.policies.dopd.forecast.Forecaster`.

    :param steps: windows from a forecast to the value that it is for.
    :param noise: least variance of one value where this mean is expected: `counted` or `averaged`.
    :param slopes: fit lines; else levels only.
    """

    def __init__(self, steps: int, noise: Callable[[float], float], *, slopes: bool = True) -> None:
        self._steps, self._noise = steps, noise
        self._level_only = LEVEL_ONLY if slopes else LENGTHS[-1]
        self._values: deque[float] = deque(maxlen=LENGTHS[-1])
        self._learned = PRIOR
        self.line = Line(math.nan, 0.0)
        """The current fit."""
        self.dispersion = 1.0
        """Variance of the values over their least variance, at least 1."""

    def observe(self, value: float) -> None:
        """Take in the rate of the next window."""
        if not math.isfinite(value):
            return
        self._values.append(value)
        self._learn()
        self.line = self._longest()

    def recall(self, dispersion: float) -> None:
        """Begin with the dispersion of an earlier run."""
        self.dispersion, self._learned = dispersion, MEMORY

    def forecast(self) -> float:
        """Return the rate expected `steps` windows ahead; NaN while nothing was observed."""
        return self.line.at(self._steps)

    def _learn(self) -> None:
        """Learn the dispersion from how far a value is off its two neighbours (Gasser et al., 1986).

        A trend does not count there, and a jump only once.
        """
        if len(self._values) < 3:
            return
        before, middle, after = self._values[-3], self._values[-2], self._values[-1]
        error = (middle - (before + after) / 2) ** 2 / 1.5
        learned = min(error / self._noise((before + middle + after) / 3), OUTLIER * self.dispersion)
        self._learned = min(self._learned + 1, MEMORY)
        self.dispersion = max(self.dispersion + (learned - self.dispersion) / self._learned, 1.0)

    def _longest(self) -> Line:
        """Return the fit over the longest window that no shorter one contradicts."""
        values, found = list(self._values), Line(math.nan, 0.0)
        low, high = -math.inf, math.inf
        for length in LENGTHS:
            if length > len(values):
                break
            recent = values[-length:]
            mean = sum(recent) / length
            noise = self.dispersion * self._noise(mean)
            line, weight = (Line(mean, 0.0), 1 / length) if length <= self._level_only else _fitted(recent, mean, noise)
            margin = WIDTH * math.sqrt(noise * weight)
            low, high = max(low, line.level - margin), min(high, line.level + margin)
            if math.isnan(line.level) or low > high:
                break
            found = line
        return found


def counted(interval_s: float) -> Callable[[float], float]:
    """Return the variance of the rate of independent arrivals in a window; that of one request at least."""
    return lambda rate: max(rate, 1 / interval_s) / interval_s


def averaged(value: float) -> float:
    """Return the variance of a mean of `SAMPLE` lengths whose coefficient of variation is 1."""
    return max(value * value, 1e-12) / SAMPLE


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
        return Line(math.nan, 0.0), 1.0
    slope *= max(1 - DOUBT * noise / (spread * slope * slope), 0.0) if slope else 0.0
    return Line(max(mean + slope * middle, 0.0), slope), 1 / count + middle * middle / spread
