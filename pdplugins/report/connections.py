"""The connections to a server of aiohttp; of a live page there are few, and none of them keeps others out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web


def watch(
    server: web.Server,
    opened: Callable[[web.RequestHandler, asyncio.Transport], None],
    closed: Callable[[web.RequestHandler], None],
) -> None:
    """Have `server` tell of each connection that opens or closes from now on."""
    made, lost = server.connection_made, server.connection_lost

    def on_made(handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        made(handler, transport)
        opened(handler, transport)

    def on_lost(handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        closed(handler)
        lost(handler, exc)

    server.connection_made, server.connection_lost = on_made, on_lost  # type: ignore[method-assign]


class Connections:
    """The connections to one server. At the limit, a new one takes the place of the one that has waited longest.

    A connection waits from its beginning, or its last answer, until it has sent a whole request. So one that sends
    nothing, or too slowly, or does not read its answer makes room. One whose request is being answered stays.

    :param most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[web.RequestHandler, asyncio.Transport] = {}
        """The one that has waited longest is first."""
        self._busy: dict[web.RequestHandler, asyncio.Transport] = {}

    def guard(self, server: web.Server) -> None:
        """Look after the connections of `server` from now on."""
        watch(server, self._opened, self._forget)

    def begins(self, handler: web.RequestHandler) -> None:
        """A connection has sent a whole request."""
        if (transport := self._waiting.pop(handler, None)) is not None:
            self._busy[handler] = transport

    def ends(self, handler: web.RequestHandler) -> None:
        """The answer to its request is there."""
        if (transport := self._busy.pop(handler, None)) is not None:
            self._waiting[handler] = transport

    def _opened(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        self._waiting[handler] = transport
        if len(self._waiting) + len(self._busy) > self._most:
            longest = next(iter(self._waiting))  # the new one itself where all others are busy
            # Not at once: aiohttp has not begun with a new one, and would log a traceback for it.
            asyncio.get_running_loop().call_soon(self._waiting.pop(longest).abort)

    def _forget(self, handler: web.RequestHandler) -> None:
        self._waiting.pop(handler, None)
        self._busy.pop(handler, None)
