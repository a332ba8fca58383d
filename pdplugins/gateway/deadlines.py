"""Waits that have a deadline each, and can all be made to end at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Deadlines:
    """The waits of one kind that are under way."""

    def __init__(self) -> None:
        self._waits: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def within(self, seconds: float | None) -> AsyncIterator[None]:
        """Raise TimeoutError in what is done inside after `seconds`, or as soon as `expire` is called."""
        async with asyncio.timeout(seconds) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)

    def expire(self) -> None:
        """End all waits now."""
        now_s = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(now_s)
