"""TLS handshakes of clients, each of which counts as a connection from its beginning on.

The event loop tells nobody of a connection before its TLS handshake has ended, and never of one whose handshake
fails. A client that opens connections and says nothing would take all file descriptors, and no limit would see it. So
the listener accepts plain connections, which are counted, and hands the socket of each one to the loop again, this
time for TLS. `start_tls` on the accepted transport would be shorter; but uvloop may read the client's first bytes
before that is called, and they are lost then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from typing import cast

from aiohttp import web

from pdplugins.gateway.clients import Clients


class Handshakes:
    """The TLS handshakes of one listener.

    :param clients: what counts connections, and refuses those that are too many.
    :param within_s: how long one handshake may take.
    """

    def __init__(self, tls: ssl.SSLContext, clients: Clients, within_s: float) -> None:
        self._tls = tls
        self._within_s = within_s
        self._now: set[Handshake] = set()
        self._stopped = False
        self.clients = clients

    def begin(self, sock: socket.socket, peer: object, handler: web.RequestHandler) -> None:
        """Begin a handshake, after which `handler` gets the connection, unless there are too many connections."""
        if self._stopped:  # it was accepted just before
            sock.close()
            return
        handshake = Handshake(self, sock, peer, handler)
        self._now.add(handshake)
        self.clients.opened(handler, handshake)
        handshake.begin()

    async def run(self, sock: socket.socket, handler: web.RequestHandler) -> None:
        """Run a handshake. Raises OSError when it fails; the socket is closed then."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: handler, sock, ssl=self._tls, ssl_handshake_timeout=self._within_s)

    def ended(self, handshake: Handshake) -> None:
        """Note that a handshake has come to an end, good or bad."""
        self._now.discard(handshake)

    def stop(self) -> None:
        """Cut off all handshakes."""
        self._stopped = True
        for handshake in list(self._now):
            handshake.abort()


class Accepted(asyncio.Protocol):
    """A connection that has just been accepted. It gives its socket away at once."""

    def __init__(self, handshakes: Handshakes, handler: web.RequestHandler) -> None:
        self._handshakes = handshakes
        self._handler = handler

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin its TLS handshake."""
        try:
            own = os.dup(transport.get_extra_info("socket").fileno())
        except OSError:  # no descriptor is left
            return
        finally:
            cast(asyncio.Transport, transport).abort()  # which closes its own descriptor, and so not the connection
        sock = socket.socket(fileno=own)
        self._handshakes.begin(sock, transport.get_extra_info("peername"), self._handler)


class Handshake(asyncio.Transport):
    """One handshake, in place of the transport that there is after it."""

    def __init__(self, all_: Handshakes, sock: socket.socket, peer: object, handler: web.RequestHandler) -> None:
        super().__init__({"peername": peer})
        self._all = all_
        self._handler = handler
        self._sock: socket.socket | None = sock
        """None once the loop has it, which closes it."""
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin, unless it has been aborted."""
        if self._sock is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._sock))

    def abort(self) -> None:
        """Close the connection."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._task is not None:
            self._task.cancel()
        self._over()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait to be sent to the client: none of an answer."""
        return 0

    async def _run(self, sock: socket.socket) -> None:
        self._sock = None
        with contextlib.suppress(OSError):  # a client that gives up, is too slow or speaks no TLS is no fault of ours
            await self._all.run(sock, self._handler)
        self._over()

    def _over(self) -> None:
        self._all.ended(self)
        if self._handler.transport is None:
            self._all.clients.closed(self._handler)
