"""How much is in the gateway: requests, those that wait, and bytes of bodies. What is too much is refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pdplugins.gateway.deadlines import Deadlines
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.limits import MIB, GatewayConfig

RETRY_AFTER_S = 1.0


def overloaded(why: str) -> GatewayError:
    """Return the refusal of a request that may well be served a little later."""
    return GatewayError(503, why, RETRY_AFTER_S)


class Admission:
    """What is in one gateway now."""

    def __init__(self, settings: GatewayConfig, metrics: GatewayMetrics) -> None:
        self.settings = settings
        self._metrics = metrics
        self._most_bytes = settings.max_bodies_mib * MIB
        self._requests = self._waiting = self._bytes = 0
        self.reading = Deadlines()
        """Of bodies that have not come yet."""
        self.serving = Deadlines()
        """Of requests that wait or are served."""
        self._empty = asyncio.Event()
        self._empty.set()
        self.closed = False
        """Whether the gateway stops, and takes nothing new."""

    def enter(self) -> None:
        """Take a place for a request, which `leave` gives back. Raises GatewayError when there is none."""
        if self.closed:
            raise overloaded("the gateway stops")
        if self._requests >= self.settings.max_requests:
            self._metrics.overload("requests")
            raise overloaded("too many requests are being served")
        self._requests += 1
        self._empty.clear()

    def leave(self) -> None:
        """Give the place of a request back."""
        self._requests -= 1
        if not self._requests:
            self._empty.set()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Hold a place for a request that waits. Raises GatewayError when there is none."""
        if self._waiting >= self.settings.max_waiting:
            self._metrics.overload("waiting")
            raise overloaded("too many requests wait")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def check_bytes(self, size: int) -> None:
        """Raise GatewayError when the bodies of all requests would be too long with `size` bytes more."""
        if self._bytes + size > self._most_bytes:
            self._metrics.overload("bodies")
            raise overloaded("the bodies of all requests together are too long")

    def take_bytes(self, size: int) -> None:
        """Take `size` bytes of a body that have come. Raises as `check_bytes`."""
        self.check_bytes(size)
        self._bytes += size

    def give_bytes(self, size: int) -> None:
        """Give bytes of a body back."""
        self._bytes -= size

    def close(self) -> None:
        """Take nothing new. A body that has not come yet will not be served."""
        self.closed = True
        self.reading.expire()

    @property
    def requests(self) -> int:
        """Requests that are waiting or being served."""
        return self._requests

    async def empty(self) -> None:
        """Return once no request is left."""
        await self._empty.wait()
