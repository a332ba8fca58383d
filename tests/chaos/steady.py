"""Steady requests of well-behaved clients, which faults must not hurt."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.chaos.plan import DEADLINE_S, Others

ADDRESS = "127.0.0.1"
CLIENTS = 2
PAUSE_S = 0.05


class Steady:
    """The steady requests, and what came of them.

    :param ask: sends one, and says what came of it.
    """

    def __init__(
        self, ask: Callable[[aiohttp.ClientSession], Awaitable[tuple[Others, str]]], headers: Mapping[str, str]
    ) -> None:
        self._ask = ask
        self._headers = headers
        self._may_ask = asyncio.Event()
        self._under_way = 0
        self._came: Counter[Others] = Counter()
        self._lately: list[tuple[Others, str]] = []
        """What was not right since the last look."""
        self._longest_s = 0.0

    @property
    def sent(self) -> int:
        return self._came.total()

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Send them, inside."""
        self._may_ask.set()
        tasks = [asyncio.create_task(self._keep_asking()) for _ in range(CLIENTS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_asking(self) -> None:
        # A connection each: one that is kept may be closed, rightly, at the moment when it is used again.
        connector = aiohttp.TCPConnector(local_addr=(ADDRESS, 0), force_close=True)
        async with aiohttp.ClientSession(connector=connector, headers=self._headers) as client:
            while True:
                await self._may_ask.wait()
                self._under_way += 1
                try:
                    await self._one(client)
                finally:
                    self._under_way -= 1
                await asyncio.sleep(PAUSE_S)

    async def _one(self, client: aiohttp.ClientSession) -> None:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(DEADLINE_S):
                came, said = await self._ask(client)
        except TimeoutError:
            came, said = Others.HUNG, f"no end within {DEADLINE_S:g} s"
        except (OSError, aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
            came, said = Others.ODD, f"{type(error).__name__}: {error}"
        self._longest_s = max(self._longest_s, time.monotonic() - began_s)
        self._came[came] += 1
        if came is not Others.RIGHT:
            self._lately.append((came, said))

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """No steady requests inside."""
        self._may_ask.clear()
        while self._under_way:
            await asyncio.sleep(0.01)
        try:
            yield
        finally:
            self._may_ask.set()

    def check(self, allowed: Others) -> None:
        """Raise AssertionError where something worse than allowed came of one since the last look."""
        lately, self._lately = self._lately, []
        worse = [(came, said) for came, said in lately if came > allowed]
        assert not worse, f"{len(worse)} steady requests {worse[0][0].name}, such as {worse[0][1]}"

    def row(self) -> dict[str, Any]:
        ends = {came.name.lower(): self._came[came] for came in Others}
        return {"sent": self.sent, **ends, "longest_s": round(self._longest_s, 2)}
