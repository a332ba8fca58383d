"""Waits that have a deadline each, and can all be made to end at once."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Deadlines:
    """The waits of one kind that are under way."""

    def __init__(self) -> None:
        self._waits: set[asyncio.Timeout] = set()

    def within(self, seconds: float | None) -> Wait:
        """Raise TimeoutError in what is done inside after `seconds`, or as soon as `expire` is called."""
        return Wait(self._waits, seconds)

    def expire(self) -> None:
        """End all waits now."""
        now_s = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(now_s)


class Wait:
    """One wait. A class, since every request has some, and a generator would take twice as long."""

    __slots__ = ("_timeout", "_waits")

    def __init__(self, waits: set[asyncio.Timeout], seconds: float | None) -> None:
        self._waits = waits
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._waits.add(self._timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waits.discard(self._timeout)
        await self._timeout.__aexit__(kind, error, trace)
