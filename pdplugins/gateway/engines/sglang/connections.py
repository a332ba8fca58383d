"""Connections to workers, kept open: a minimal HTTP client over aiohttp's own protocol and parser.

`ClientSession.post` would take twice as long, for features that workers have no use for: cookies, redirects, proxies.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError, RawResponseMessage

IDLE_S = 4.0
"""SGLang closes idle connections after 5 s."""


@dataclass(slots=True)
class Target:
    """Where connections go: one worker."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    head: str
    """The beginning of each request, up to its path; and the line after it."""
    tail: str
    idle: list[tuple[float, Connection]] = field(default_factory=list)
    """Idle connections, and since when; the last one used comes last."""

    @classmethod
    def of(cls, url: str, authorities: ssl.SSLContext) -> Target:
        """Return the target that a worker's URL names."""
        parts = urlsplit(url)
        tls = authorities if parts.scheme == "https" else None
        port = parts.port or (443 if tls else 80)
        tail = f" HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\nContent-Type: application/json\r\n"
        return cls(parts.hostname or "", port, tls, f"POST {parts.path}", tail)


class Connection(ResponseHandler):
    """One connection. Its timer looks from time to time whether it has been silent for too long.

    aiohttp's own would be made anew with all that comes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._heard_s = inf
        """When something came last, in the loop's time; infinite while nothing is awaited."""

    def _reschedule_timeout(self) -> None:
        if not self._read_timeout:
            self._heard_s = inf
            return
        self._heard_s = self._loop.time()
        if self._read_timeout_handle is None:
            self._look_after(self._read_timeout)

    def _drop_timeout(self) -> None:
        self._heard_s = inf

    def _look_after(self, seconds: float) -> None:
        self._read_timeout_handle = self._loop.call_later(seconds, self._on_read_timeout)

    def _on_read_timeout(self) -> None:
        self._read_timeout_handle = None
        if self._heard_s == inf or not self._read_timeout:
            return
        left_s = self._heard_s + self._read_timeout - self._loop.time()
        if left_s > 0:
            self._look_after(left_s)
        else:
            super()._on_read_timeout()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the timer with the connection."""
        if self._read_timeout_handle is not None:
            self._read_timeout_handle.cancel()
        super().connection_lost(exc)


class Response:
    """The answer to a request, of which the head has arrived. At its end the connection is free for the next one."""

    def __init__(
        self, message: RawResponseMessage, payload: aiohttp.StreamReader, protocol: Connection, target: Target
    ) -> None:
        self.status = message.code
        self.content_type = message.headers.get("Content-Type", "application/json")
        self.retry_after = message.headers.get("Retry-After")
        self.readany = payload.readany
        """Return the next bytes; nothing at the end. Raises aiohttp.ClientError or OSError."""
        self._payload = payload
        self._protocol: Connection | None = protocol
        self._target = target
        payload.on_eof(self._ended)

    def all_of_it(self, most_bytes: int) -> bytes:
        """Return all of an answer that has come already; nothing where some of it is missing, or that is too long."""
        payload = self._payload
        if not payload.is_eof() or payload.total_bytes > most_bytes or payload.exception() is not None:
            return b""
        return payload.read_nowait()

    def close(self) -> None:
        """Give up what has not come."""
        if self._protocol is not None:
            self._protocol.close()
            self._protocol = None

    def _ended(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is None:
            return
        if protocol.should_close:
            protocol.close()
        else:
            protocol._parser = None  # what comes now stays in its tail, and ends it: see `_idle`
            self._target.idle.append((monotonic(), protocol))


class Connections:
    """The connections to all workers.

    :param connect_s: the longest time to open a new one.
    :param tls: what checks workers' certificates.
    """

    def __init__(self, connect_s: float, tls: ssl.SSLContext) -> None:
        self._connect_s = connect_s
        self._tls = tls
        self._targets: dict[str, Target] = {}

    async def post(
        self, url: str, path: str, body: bytes, headers: Mapping[str, str], silence_s: float | None
    ) -> Response:
        """Send a JSON body to a worker, and return its answer once its head is there.

        :param silence_s: the longest time without a byte of the answer.

        Raises aiohttp.ClientError, OSError or TimeoutError.
        """
        target = self._targets.get(url) or self._targets.setdefault(url, Target.of(url, self._tls))
        protocol = _idle(target)
        if protocol is None:
            protocol = await self._connected(target)
        try:
            protocol.set_response_params(read_until_eof=True, auto_decompress=False, read_timeout=silence_s)
            assert protocol.transport is not None  # noqa: S101 - it is connected
            more = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
            head = f"{target.head}{path}{target.tail}Content-Length: {len(body)}\r\n{more}\r\n"
            protocol.transport.writelines([head.encode("utf-8", "surrogateescape"), body])
            protocol.start_timeout()
            message, payload = await protocol.read()
            while message.code < 200:  # it will tell more
                message, payload = await protocol.read()
        except HttpProcessingError as error:
            protocol.close()
            raise aiohttp.ClientPayloadError(f"not HTTP: {error.message}") from error
        except BaseException:
            protocol.close()
            raise
        return Response(message, payload, protocol, target)

    async def _connected(self, target: Target) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_s):
            _, protocol = await loop.create_connection(
                lambda: Connection(loop), target.host, target.port, ssl=target.tls
            )
        return protocol

    def close(self) -> None:
        """Close the idle ones."""
        for target in self._targets.values():
            for _, protocol in target.idle:
                protocol.close()
            target.idle.clear()


def _idle(target: Target) -> Connection | None:
    """Return an open connection, if there is one.

    Those that have been idle too long are closed, and those on which something came that nobody had asked for.
    """
    fresh_s = monotonic() - IDLE_S
    while target.idle:
        since_s, protocol = target.idle.pop()
        if since_s > fresh_s and protocol.is_connected() and not protocol.should_close:
            return protocol
        protocol.close()
    return None
