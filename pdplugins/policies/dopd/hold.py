"""When a pool may shrink."""

from __future__ import annotations

from collections import deque


class Hold:
    """Lets a pool shrink only to the largest size wanted in the last seconds. A pool may grow at once.

    Where levels of the load last, a forecast that falls can be trusted, and a short hold is enough.

    :param longest_s: the hold where nothing is known of the load, or its levels do not last.
    :param shortest_s: the hold where they last.
    """

    def __init__(self, longest_s: float, shortest_s: float) -> None:
        self._longest_s, self._shortest_s = longest_s, min(longest_s, shortest_s)
        self._wanted: deque[tuple[float, int]] = deque()

    def __call__(self, wanted: int, now_s: float, lasting: float = 0.0) -> int:
        """Return the workers to keep at `now_s` when `wanted` are wanted.

        :param lasting: share of a deviation of the load that lasts, 0 to 1.
        """
        # A later size that is at least as large replaces earlier ones, so sizes in the queue fall from left to right.
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((now_s, wanted))
        seconds = self._longest_s - lasting * (self._longest_s - self._shortest_s)
        while now_s - self._wanted[0][0] > seconds:
            self._wanted.popleft()
        return self._wanted[0][1]

    def forget(self) -> None:
        """Let the pool shrink at once."""
        self._wanted.clear()


class Silence:
    """Notices when no request has come for a while. Forecasts of the load before that no longer count then."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._since_s: float | None = None

    def __call__(self, requests: float, now_s: float) -> bool:
        """Return whether no request has come for the hold, when `requests` came until `now_s`."""
        if requests > 0 or self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s > self._hold_s


class Holds:
    """One hold for each pool. See :class:`Hold`."""

    def __init__(self, longest_s: float, shortest_s: float) -> None:
        self._prefill, self._decode = Hold(longest_s, shortest_s), Hold(longest_s, shortest_s)

    def __call__(self, wanted: tuple[int, int], now_s: float, lasting: float = 0.0) -> tuple[int, int]:
        """Return the prefill and decode workers to keep."""
        return self._prefill(wanted[0], now_s, lasting), self._decode(wanted[1], now_s, lasting)

    def forget(self) -> None:
        """Let both pools shrink at once."""
        self._prefill.forget()
        self._decode.forget()
