"""When a pool may shrink."""

from __future__ import annotations

from collections import deque


class Hold:
    """Lets a pool shrink only to the largest size wanted in the last seconds. A pool may grow at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wanted: deque[tuple[float, int]] = deque()

    def __call__(self, wanted: int, now_s: float) -> int:
        """Return the workers to keep at `now_s` when `wanted` are wanted."""
        # A later size that is at least as large replaces earlier ones, so sizes in the queue fall from left to right.
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((now_s, wanted))
        while now_s - self._wanted[0][0] > self._seconds:
            self._wanted.popleft()
        return self._wanted[0][1]

    def forget(self) -> None:
        """Let the pool shrink at once."""
        self._wanted.clear()
