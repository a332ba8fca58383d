"""Waits that have a deadline each, and can all be made to end at once.

Every request has some, so one timer serves all waits of a kind. `asyncio.timeout` would make one for each wait.
"""

from __future__ import annotations

import asyncio
from math import inf
from types import TracebackType
from typing import Any


class Deadlines:
    """The waits of one kind that are under way."""

    def __init__(self) -> None:
        self.waits: dict[Wait, float] = {}
        """Each one, and when it ends, in the loop's time. One that leaves stays a deadline of the timer, which finds
        nothing then."""
        self._timer: asyncio.TimerHandle | None = None
        self._rings_s = inf
        """When the timer looks at them next: not after the first deadline."""

    def within(self, seconds: float | None) -> Wait:
        """Raise TimeoutError in what is done inside after `seconds`, or as soon as `expire` is called."""
        return Wait(self, seconds)

    def expire(self) -> None:
        """End all waits now."""
        for wait in list(self.waits):
            wait.end()

    def begin(self, wait: Wait, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """Take in a wait that has a deadline."""
        self.waits[wait] = ends_s = loop.time() + seconds
        if ends_s < self._rings_s:
            self._ring_at(loop, ends_s)

    def _ring_at(self, loop: asyncio.AbstractEventLoop, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_s = at_s
        self._timer = loop.call_at(at_s, self._rung, loop)

    def _rung(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the waits whose time is over, and look again when the next one's is."""
        self._timer, self._rings_s = None, inf
        now_s = loop.time()
        for wait, ends_s in list(self.waits.items()):
            if ends_s <= now_s:
                wait.end()
        next_s = min(self.waits.values(), default=inf)
        if next_s < inf:
            self._ring_at(loop, next_s)


class Wait:
    """One wait, of the task that enters it. It ends as `asyncio.timeout` does: by a cancellation that it takes back."""

    __slots__ = ("_all", "_cancelling", "_ended", "_seconds", "_task")

    def __init__(self, every: Deadlines, seconds: float | None) -> None:
        self._all = every
        self._seconds = seconds
        self._ended = False
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0

    def end(self) -> None:
        """Raise TimeoutError in what is done inside now, unless it has left."""
        if self._task is not None and not self._ended:
            self._ended = True
            self._all.waits.pop(self, None)
            self._task.cancel()

    def __enter__(self) -> Wait:
        loop = asyncio.get_running_loop()
        self._task = task = asyncio.current_task(loop)
        assert task is not None  # noqa: S101 - what waits is a task
        self._cancelling = task.cancelling()
        if self._seconds is None:
            self._all.waits[self] = inf
        else:
            self._all.begin(self, self._seconds, loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._all.waits.pop(self, None)
        if not self._ended:
            return
        assert task is not None  # noqa: S101 - it has been entered
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
