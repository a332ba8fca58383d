"""Connections to workers, kept open: a minimal HTTP client over httptools' parser, which is that of Node.js.

`aiohttp.ClientSession.post` would spend time on features that workers have no use for: cookies, redirects, proxies.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from time import monotonic
from typing import cast
from urllib.parse import urlsplit

import aiohttp
import httptools

from pdplugins.gateway.reading import content_type

IDLE_S = 4.0
"""SGLang closes idle connections after 5 s."""
MOST_HEAD_BYTES = 64 * 2**10
"""Between two parts of a body: the head of an answer with those that only announce it, or a trailer."""
MOST_UNREAD_BYTES = 128 * 2**10
"""Of an answer that nobody has read yet, before its connection waits."""
FRAMES = frozenset({b"content-length", b"transfer-encoding"})
"""Headers that tell where an answer ends. Without one it ends with its connection."""


@dataclass(slots=True)
class Target:
    """Where connections go: one worker."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    head: str
    """The beginning of each request, up to its path; and the line after it."""
    tail: str
    idle: deque[tuple[float, Connection]] = field(default_factory=deque)
    """Idle connections, and since when; the last one used comes last."""
    forgotten: bool = False
    """Whether nobody will ask it any more: a connection closes at the end of its answer."""

    @classmethod
    def of(cls, url: str, authorities: ssl.SSLContext) -> Target:
        """Return the target that a worker's URL names."""
        parts = urlsplit(url)
        tls = authorities if parts.scheme == "https" else None
        port = parts.port or (443 if tls else 80)
        tail = f" HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\nContent-Type: application/json\r\n"
        tail += "Accept-Encoding: identity\r\n"
        return cls(parts.hostname or "", port, tls, f"POST {parts.path}", tail)


class Response:
    """The answer to one request. At its end the connection is free for the next one."""

    __slots__ = ("_connection", "_error", "_loop", "_parts", "_size", "_waiter", "ended", "headers", "status")

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        """0 until its head has come."""
        self.headers: dict[bytes, bytes] = {}
        """By name, in lower case. Of several with one name, the last one."""
        self.ended = False
        """Whether nothing more will come."""
        self._connection: Connection | None = connection
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def content_type(self) -> str:
        """Its type; that of JSON where it has none."""
        return _type_of(self.headers.get(b"content-type", b"application/json"))

    @property
    def encoded(self) -> bool:
        """Whether its bytes are compressed, which nobody has asked for."""
        coding, transfer = self.headers.get(b"content-encoding"), self.headers.get(b"transfer-encoding")
        encoded = coding is not None and coding.lower() != b"identity"
        return encoded or (transfer is not None and transfer.lower() != b"chunked")

    @property
    def retry_after(self) -> str | None:
        """The header ``Retry-After``."""
        value = self.headers.get(b"retry-after")
        return None if value is None else value.decode("latin-1")

    async def readany(self) -> bytes:
        """Return the next bytes; nothing at the end. Raises aiohttp.ClientError."""
        while not self._parts:
            if self.ended and self._error is None:
                return b""
            await self.news()
        return self._taken()

    def news(self) -> asyncio.Future[None]:
        """Return what is done once more of it has come, or its end. Raises aiohttp.ClientError where it has failed."""
        if self._error is not None:
            raise self._error
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def all_of_it(self, most_bytes: int) -> bytes:
        """Return all of an answer that has come already; nothing where some of it is missing, or that is too long."""
        return self._taken() if self.ended and self._error is None and self._size <= most_bytes else b""

    def close(self) -> None:
        """Give up what has not come."""
        if self._connection is not None:
            self._connection.close()

    # --- from its connection ---------------------------------------------------------------------------------------

    def fed(self, data: bytes) -> bool:
        """Take in the next bytes. Return whether there are too many now that nobody has read."""
        self._parts.append(data)
        self._size += len(data)
        if self._waiter is not None:
            self.wake()
        return self._size > MOST_UNREAD_BYTES

    def end(self, error: Exception | None = None) -> None:
        """Nothing more will come: it is whole, or `error` has happened, which is raised once the rest has been read."""
        self.ended = True
        self._error = error
        self._connection = None
        if self._waiter is not None:
            self.wake()

    def wake(self) -> None:
        """Let go on what waits for it."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ---------------------------------------------------------------------------------------------------------------

    def _taken(self) -> bytes:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if self._connection is not None:
            self._connection.resume()
        return data


class Connection(asyncio.Protocol):
    """One connection, with one request at a time.

    Its timer looks from time to time whether it has been silent for too long: one for each wait would cost more.
    """

    def __init__(self, target: Target, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        """What is awaited, or read; None: nothing has been asked."""
        self._head_bytes = 0
        """What has come since the last part of a body."""
        self._paused = False
        self._silence_s: float | None = None
        self._heard_s = inf
        """When something came last, in the loop's time."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """Whether it can take a request."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, head: bytes, body: bytes, silence_s: float | None) -> Response:
        """Send a request, and return its answer, of which nothing has come yet.

        :param silence_s: the longest time without a byte of the answer.
        """
        assert self._transport is not None  # noqa: S101 - it is open
        self._response = response = Response(self, self._loop)
        self._head_bytes = 0
        self._silence_s = silence_s
        self._heard_s = self._loop.time()
        if silence_s is not None and self._timer is None:
            self._look_after(silence_s)
        self._transport.write(head + body)
        return response

    def resume(self) -> None:
        """Go on where too much was unread."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._heard_s = self._loop.time()
            self._transport.resume_reading()

    def close(self) -> None:
        """Close it, and give up what has not come."""
        self._fail(aiohttp.ClientConnectionError("closed"))

    # --- from its transport ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take its transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not one by its type

    def data_received(self, data: bytes) -> None:
        """Parse what has come. It is closed where nobody has asked for that, or that is not HTTP."""
        response = self._response
        if response is None:
            self.close()
            return
        self._heard_s = self._loop.time()
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(aiohttp.ClientPayloadError(f"not HTTP: {error}"))
            return
        if self._head_bytes > MOST_HEAD_BYTES and self._response is not None:
            self._fail(aiohttp.ClientPayloadError(f"a head or a trailer of more than {MOST_HEAD_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End with the connection, and so does an answer that does not tell where it ends."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        response = self._response
        if response is None:
            return
        if exc is not None:
            self._fail(aiohttp.ClientOSError(*exc.args))
        elif not response.status:
            self._fail(aiohttp.ServerDisconnectedError())
        elif FRAMES & response.headers.keys():
            self._fail(aiohttp.ClientPayloadError("the answer broke off"))
        else:
            self._response = None
            response.end()

    # --- from its parser -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins. One that nobody has asked for is the last thing that is read here."""
        if self._response is None or self._response.status:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in one header, or one after the body."""
        response = self._response
        if response is not None and not response.status:
            response.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Let go on what waits for the head, unless it only announces another one."""
        if (response := self._response) is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            response.headers.clear()
        else:
            response.status = status
            response.wake()

    def on_body(self, data: bytes) -> None:
        """Pass on a part of the body."""
        self._head_bytes = 0
        if self._response is not None and self._response.fed(data) and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Be free for the next request."""
        response = self._response
        if response is None or not response.status:
            return
        self._response = None
        if self._paused:
            self.resume()
        response.end()
        if self._parser.should_keep_alive() and not self._target.forgotten:
            self._target.idle.append((monotonic(), self))
        else:
            self.close()

    # ---------------------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.end(error)
        if (transport := self._transport) is None:
            return
        if transport.get_write_buffer_size():  # a worker that takes nothing would keep it open
            transport.abort()
        else:
            transport.close()

    def _look_after(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._response is None or self._silence_s is None:
            return
        left_s = self._silence_s + (0.0 if self._paused else self._heard_s - self._loop.time())
        if left_s > 0:
            self._look_after(left_s)
        else:
            self._fail(aiohttp.SocketTimeoutError(f"nothing for {self._silence_s:g} s"))


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
        connection = _idle(target) or await self._connected(target)
        more = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = f"{target.head}{path}{target.tail}Content-Length: {len(body)}\r\n{more}\r\n"
        response = connection.ask(head.encode("utf-8", "surrogateescape"), body, silence_s)
        try:
            while not response.status:
                await response.news()
        except BaseException:
            response.close()  # not the connection, which may serve another request already
            raise
        return response

    async def _connected(self, target: Target) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_s):
            _, connection = await loop.create_connection(
                lambda: Connection(target, loop), target.host, target.port, ssl=target.tls
            )
        return connection

    def forget(self, url: str) -> None:
        """Let go of a worker that nobody will ask any more. Answers that still come, come to their end."""
        if (target := self._targets.pop(url, None)) is not None:
            target.forgotten = True
            _close_idle(target)

    def close(self) -> None:
        """Close the idle ones."""
        for target in self._targets.values():
            _close_idle(target)


def _close_idle(target: Target) -> None:
    for _, connection in target.idle:
        connection.close()
    target.idle.clear()


@lru_cache(maxsize=64)
def _type_of(header: bytes) -> str:
    return content_type(header.decode("latin-1"))


def _idle(target: Target) -> Connection | None:
    """Return an open connection, if there is one. Those that have been idle too long are closed."""
    idle, fresh_s = target.idle, monotonic() - IDLE_S
    while idle and idle[0][0] <= fresh_s:
        idle.popleft()[1].close()
    while idle:
        connection = idle.pop()[1]
        if connection.open:
            return connection
    return None
