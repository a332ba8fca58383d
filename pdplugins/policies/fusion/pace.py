"""How fast the pool works off what waits, measured: predictions of mixed steps and of contention are never exact."""

from __future__ import annotations

WINDOW_S = 2.0
"""Seconds of one measurement."""
WEIGHT = 0.3
"""Of a measurement against what is known."""
LEAST_RATIO = 0.25
LEAST_SPEED = 1e-3


class PoolPace:
    """The ratio of measured to predicted speed while work waits. A speed is a number of idle workers."""

    def __init__(self) -> None:
        self.ratio = 1.0
        self._since_s: float | None = None
        self._last_s = self._done_s = self._predicted_s = 0.0

    def speed(self, predicted: float, now_s: float) -> float:
        """Return the speed to expect where the costs predict `predicted`."""
        if self._since_s is None:
            self._since_s = self._last_s = now_s
        self._predicted_s += predicted * max(now_s - self._last_s, 0.0)
        self._last_s = max(now_s, self._last_s)
        if self._last_s - self._since_s >= WINDOW_S and self._predicted_s > 0:
            ratio = min(max(self._done_s / self._predicted_s, LEAST_RATIO), 1.0)
            self.ratio += WEIGHT * (ratio - self.ratio)
            self._since_s, self._done_s, self._predicted_s = self._last_s, 0.0, 0.0
        return max(predicted * self.ratio, LEAST_SPEED)

    def started(self, cost_s: float) -> None:
        """Count work that goes on: its seconds on one idle worker."""
        self._done_s += cost_s

    def idle(self, now_s: float) -> None:
        """Nothing has waited since the last look: what went on says how much came, not how fast the pool is.

        What is known fades as fast as a measurement would replace it. Else what is refused because the pool was slow
        once leaves nothing to measure, and the pool is taken for slow ever after.
        """
        quiet_s = max(now_s - self._last_s, 0.0)
        self.ratio += (1.0 - self.ratio) * (1.0 - (1.0 - WEIGHT) ** (quiet_s / WINDOW_S))
        self._since_s, self._last_s = None, max(now_s, self._last_s)
        self._done_s = self._predicted_s = 0.0
