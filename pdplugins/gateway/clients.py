"""The connections to a listener: how many, from whom, and which ones are closed because nothing moves on them.

aiohttp's server keeps the connections; this looks at them through what it calls when one opens or closes. Of those in
a TLS handshake aiohttp does not know; the listener tells of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict
from dataclasses import dataclass
from time import monotonic

from aiohttp import web
from aiohttp.typedefs import Handler

from pdplugins.gateway.admission import overloaded
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.replies import Left, failure
from pdplugins.limits import GatewayConfig
from pdplugins.report.connections import watch

NEAR = 0.9
"""Share of the limit from which on idle connections are closed."""
MOST_REFUSED = 64
"""Connections beyond the limit that are kept until they have been told so."""
SLOWEST_LOOK_S = 1.0
LOOKED_AT = 256
"""The longest idle connections that are looked at for one to close."""
LEAST_IDLE_S = 0.25
"""One that has been idle for less makes no way: its request may be here already, unread."""


@dataclass(slots=True)
class Connection:
    """One connection of a client."""

    transport: asyncio.Transport
    """What has `abort`; until a TLS handshake has ended, a `Handshake`."""
    client: str
    since_s: float
    refused: bool = False
    """Whether it is one too many: it gets a refusal, and is closed."""
    fresh: bool = True
    """Whether it has not had a whole request yet."""
    request: web.BaseRequest | None = None
    """What it is busy with."""
    taken: int = -1
    """Bytes of the answer that the system had taken when something last moved."""
    stuck_since_s: float = 0.0


class Clients:
    """The connections of all clients to one listener. Its server needs `guard`, its application `around`.

    :param listener: what metrics call it.
    :param most: how many there may be.
    """

    def __init__(self, settings: GatewayConfig, metrics: GatewayMetrics, listener: str, most: int) -> None:
        self._listener = listener
        self._settings = settings
        self._metrics = metrics
        self._most = most
        self._most_per_client = min(settings.max_connections_per_client, max(most // 2, 1))
        self._all: dict[web.RequestHandler, Connection] = {}
        self._idle: OrderedDict[web.RequestHandler, None] = OrderedDict()
        """Those that have no request, the one that has been so for longest first."""
        self._by_client: Counter[str] = Counter()
        self._refused = 0

    def guard(self, server: web.Server) -> None:
        """Look after the connections of `server` from now on."""
        watch(server, self.opened, self.closed)

    # --- requests --------------------------------------------------------------------------------------------------

    @web.middleware
    async def around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, and write the answer, so that its connection is known to be busy meanwhile."""
        try:
            response = await handler(request) if self.begins(request) else too_many_connections()
            await response.prepare(request)
            await response.write_eof()
        except (asyncio.CancelledError, ConnectionResetError):
            response = Left(request)
        finally:
            self.ended(request)
        return response

    def begins(self, request: web.Request) -> bool:
        """Note that a connection is busy with `request`. Return whether it may be served: not on one too many."""
        handler = request.protocol
        connection = self._all.get(handler)
        if connection is None:  # it has gone already
            return True
        self._idle.pop(handler, None)
        connection.fresh = False
        connection.request = request
        connection.taken = -1
        return not connection.refused

    def ended(self, request: web.Request) -> None:
        """Note that the answer to a request has been written."""
        handler = request.protocol
        connection = self._all.get(handler)
        if connection is not None:
            connection.request = None
            connection.since_s = monotonic()
            if not connection.refused:
                self._idle[handler] = None

    # --- connections -----------------------------------------------------------------------------------------------

    def opened(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Note a new connection, or the end of its TLS handshake. One too many may be closed at once."""
        if (shaken := self._all.get(handler)) is not None:
            shaken.transport = transport
            return
        peer = transport.get_extra_info("peername")
        client = peer[0] if isinstance(peer, tuple) else ""
        too_many = self._too_many(client)
        connection = self._all[handler] = Connection(transport, client, monotonic(), refused=too_many is not None)
        if too_many is None:
            self._by_client[client] += 1
            self._idle[handler] = None
            return
        self._metrics.overload(too_many)
        self._refused += 1
        if self._refused > MOST_REFUSED:
            connection.transport.abort()

    def _too_many(self, client: str) -> str | None:
        """Return the limit that one more connection would exceed. Near a limit, an idle connection makes way."""
        if client and self._by_client[client] >= NEAR * self._most_per_client:
            self._close_idle_one(client)
        if client and self._by_client[client] >= self._most_per_client:
            return "connections_per_client"
        if len(self._all) - self._refused >= NEAR * self._most:
            self._close_idle_one(None)
        return "connections" if len(self._all) - self._refused >= self._most else None

    def _close_idle_one(self, client: str | None) -> None:
        """Close the connection that has been idle for longest, of `client` only where it is not None."""
        youngest_s = monotonic() - LEAST_IDLE_S
        for handler in itertools.islice(self._idle, LOOKED_AT):
            connection = self._all[handler]
            if connection.since_s > youngest_s:
                return
            if client not in (None, connection.client) or connection.transport.get_write_buffer_size():
                continue  # another client's, or the end of its last answer has not gone out
            self._close(handler, "idle")
            return

    def closed(self, handler: web.RequestHandler) -> None:
        """Note that a connection is no more."""
        connection = self._all.pop(handler, None)
        if connection is None:
            return
        self._idle.pop(handler, None)
        self._refused -= connection.refused
        self._by_client[connection.client] -= not connection.refused
        if not self._by_client[connection.client]:
            del self._by_client[connection.client]

    def _close(self, handler: web.RequestHandler, why: str) -> None:
        """Close a connection that has no request. With TLS a client that says nothing would keep it for long else."""
        transport = self._all[handler].transport
        waits = transport.get_write_buffer_size()
        self.closed(handler)
        self._metrics.closed.labels(why).inc()
        handler.force_close()
        if not waits:
            transport.abort()

    def close_idle(self) -> None:
        """Close all connections that have no request."""
        for handler in list(self._idle):
            self._close(handler, "stop")

    # --- what does not move ------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Close what is too slow, for as long as the gateway runs."""
        pause_s = min(self._settings.head_s / 4, self._settings.write_s / 4, SLOWEST_LOOK_S)
        while True:
            await asyncio.sleep(pause_s)
            self._metrics.connections.labels(self._listener).set(len(self._all))
            now_s = monotonic()
            for handler, connection in list(self._all.items()):
                if self._stuck(connection, now_s):
                    self._metrics.closed.labels("write").inc()
                    connection.transport.abort()
                elif connection.fresh and now_s - connection.since_s > self._settings.head_s:
                    self._close(handler, "head")

    def _stuck(self, connection: Connection, now_s: float) -> bool:
        """Tell whether the client has taken nothing for too long of what waits to be sent."""
        waiting = connection.transport.get_write_buffer_size()
        if connection.request is None:  # a closed connection, or an idle one with the end of its last answer
            return bool(waiting) and now_s - connection.since_s > self._settings.write_s
        taken = connection.request.writer.output_size - waiting
        if not waiting or taken != connection.taken:
            connection.taken, connection.stuck_since_s = taken, now_s
        return now_s - connection.stuck_since_s > self._settings.write_s


def too_many_connections() -> web.Response:
    """Return the refusal of a request on a connection that is one too many."""
    response = failure(overloaded("too many connections"))
    response.force_close()
    return response
