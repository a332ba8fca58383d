"""How long a thread that polls for transfers pauses until it looks again.

A look takes the scheduler a good part of a millisecond: one every 0.2 ms would keep most of a core busy. So pauses grow
with the wait, by a share that is too small to be felt when something comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

SHARE = 0.02
"""Longest pause as a share of the time waited so far, which is how much later news is seen at worst."""
LONGEST_S = 0.01
POLLED_S = 0.001
"""A socket can be waited for in whole milliseconds: shorter pauses are slept."""


class _Since(threading.local):
    """When the calling thread began to wait; None while it has something to do."""

    s: float | None = None


class Clock:
    """In place of the module ``time``: ``sleep(0)`` is a pause between two looks of the calling thread.

    :param pause_s: the shortest pause; 0 for none.
    :param now: seconds.
    """

    def __init__(self, pause_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self.pause_s = pause_s
        self._now = now
        self._since = _Since()

    def begin(self) -> None:
        """Note that the calling thread has something to do: its next wait begins anew."""
        self._since.s = None

    def sleep(self, seconds: float) -> None:
        """Sleep, for the pause that is due where nothing longer was asked for."""
        time.sleep(seconds or self.due_s())

    def due_s(self) -> float:
        """Return the pause that is due for the calling thread, which has nothing to do."""
        if not self.pause_s:
            return 0.0
        now_s = self._now()
        if self._since.s is None:
            self._since.s = now_s
        return max(self.pause_s, min(SHARE * (now_s - self._since.s), LONGEST_S))

    def sleep_until_request(self, requests: Any) -> None:
        """Sleep for the pause that is due, or until a request comes. :param requests: their ZMQ socket."""
        if (pause_s := self.due_s()) < POLLED_S:
            time.sleep(pause_s)
        else:
            requests.poll(round(pause_s * 1000))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
