"""What the client gets: an answer, or an error in the form of OpenAI's API."""

from __future__ import annotations

import json
from email.utils import formatdate
from functools import lru_cache
from time import time

from aiohttp import HttpVersion11, hdrs, web

from pdplugins.errors import one_line
from pdplugins.gateway.account import Account
from pdplugins.gateway.admission import Admission
from pdplugins.gateway.errors import GatewayError, RefusedError
from pdplugins.gateway.reading import is_json
from pdplugins.redaction import redacted

SERVER = "pdplugins"
"""What answers call the gateway: nobody needs to know its version, and that of its HTTP server."""
DONE_EVENT = b"data: [DONE]\n\n"
"""The end of every stream."""
LONGEST_REFUSAL = 64 * 2**10
"""Bytes of a worker's refusal that are passed on as they are."""
SHOWN_OF_REFUSAL = 2_000
"""Characters of a longer one."""
CLIENT_LEFT = 499
"""Status of a request whose client has left, as nginx logs it. No client ever gets it."""


class ClientAnswer(web.StreamResponse):
    """The answer of a worker. Its head goes out with its first part, in one packet.

    It writes to the connection by itself: aiohttp collects headers in a dictionary, calls hooks, and sends the head
    alone, which takes longer than everything else that is done with a short answer.
    """

    def __init__(self, request: web.BaseRequest, content_type: str, status: int = 200, *, stream: bool = False) -> None:
        super().__init__(status=status)
        self._request = request
        self._type = content_type
        self._stream = stream
        self._keeps = request.keep_alive and request.version == HttpVersion11  # without chunks, a stream ends with it
        self._begun = self._over = False

    @property
    def prepared(self) -> bool:
        """Whether its head has been sent."""
        return self._begun

    @property
    def over(self) -> bool:
        """Whether all of it has been sent."""
        return self._over

    @property
    def keep_alive(self) -> bool:
        """Whether its connection may be used again."""
        return self._keeps

    @property
    def body_length(self) -> int:
        """Bytes that have been sent, those of the head included, as of all of aiohttp's answers."""
        return self._request.writer.output_size

    def force_close(self) -> None:
        """Make it the last answer on its connection. Call it before the first part."""
        self._keeps = False

    async def send(self, data: bytes, *, last: bool = False, waits: bool = True) -> None:
        """Send a part of a stream, or all of the answer. Nothing follows the last one.

        Raises ConnectionResetError when the client has gone.

        :param waits: for a client that reads slowly.
        """
        if self._over:
            return
        head = b"" if self._begun else self._head(data)
        if self._stream and self._request.version == HttpVersion11:
            end = b"0\r\n\r\n" if last else b""
            data = b"%x\r\n%b\r\n%b" % (len(data), data, end) if data else end
        self._begun, self._over = True, last
        transport, writer = self._request.transport, self._request.writer
        if transport is None or transport.is_closing():
            raise ConnectionResetError
        sent = head + data
        writer.output_size += len(sent)
        transport.write(sent)
        if waits:
            await writer.drain()

    def _head(self, body: bytes) -> bytes:
        frame = f"Content-Length: {len(body)}"
        if self._stream:
            frame = "Cache-Control: no-cache"
            if self._request.version == HttpVersion11:
                frame += "\r\nTransfer-Encoding: chunked"
        close = "" if self._keeps else "Connection: close\r\n"
        return (
            f"HTTP/1.1 {self.status} {self.reason}\r\nContent-Type: {self._type}\r\n{frame}\r\n{close}"
            f"Date: {_date(int(time()))}\r\nServer: {SERVER}\r\n\r\n"
        ).encode("latin-1")

    # --- what aiohttp calls for every answer --------------------------------------------------------------------------

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing: the head goes with the first part."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Send what is left."""
        await self.send(data, last=True)


class Left(web.Response):
    """Stands for the rest of an answer whose client has left.

    aiohttp logs a request when it has an answer for it, and not when the handler is cancelled. This one cannot be sent,
    so aiohttp logs it, once as always, and ends the connection.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        super().__init__(status=CLIENT_LEFT)
        self._sent = request.writer.output_size

    @property
    def body_length(self) -> int:
        """Bytes that have been sent, as of all of aiohttp's answers."""
        return self._sent

    async def prepare(self, request: web.BaseRequest) -> None:
        """Raise ConnectionResetError, as every answer does whose client has gone."""
        raise ConnectionResetError


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)


class Reply:
    """The response to one client: nothing yet, a stream, or one body."""

    def __init__(self, request: web.BaseRequest, admission: Admission) -> None:
        self._request = request
        self._admission = admission
        self.response: web.StreamResponse | None = None
        self.account: Account | None = None
        """What is told of the request in the end, once its body has been read."""
        self._answer: ClientAnswer | None = None
        """The response, where it is what a worker has said."""

    @property
    def started(self) -> bool:
        """Whether the client has got anything, so that the request cannot start anew unnoticed."""
        return self.response is not None

    async def send(self, data: bytes, content_type: str) -> None:
        """Send a part of a stream. Nothing follows its end."""
        answer = self._answer or self._begin(content_type, stream=True)
        await answer.send(data, last=data.endswith(DONE_EVENT))

    async def whole(self, body: bytes, content_type: str, status: int = 200) -> None:
        """Answer with one body, at once: the books can wait, the client should not."""
        await self._begin(content_type, status).send(body, last=True)

    async def refuse(self, error: RefusedError) -> None:
        """Pass on the refusal of a worker."""
        if self.response is None:
            await self.whole(*refusal(error), error.status)
        else:
            await self.fail(GatewayError(error.status, refusal(error)[0].decode(errors="replace")))

    async def fail(self, error: GatewayError) -> None:
        """Tell the client what went wrong, in its stream where that has begun."""
        if self._answer is None or not self._answer.prepared:
            self.response = failure(error)
        else:
            # Whoever was cancelled while a slow client read has cancelled that wait for all: aiohttp has one.
            await self._answer.send(b"data: " + _object(error) + b"\n\n" + DONE_EVENT, last=True, waits=False)

    def _begin(self, content_type: str, status: int = 200, *, stream: bool = False) -> ClientAnswer:
        self.response = self._answer = ClientAnswer(self._request, content_type, status, stream=stream)
        if self._admission.closed:
            self._answer.force_close()
        return self._answer


def refusal(error: RefusedError) -> tuple[bytes, str]:
    """Return what a worker said of a request, without a key that it may repeat, and its type.

    A long one repeats the request, maybe several times, and to look through it would hold up all others. Its beginning
    is passed on in OpenAI's form, and so is what is no JSON: clients can read nothing else.
    """
    body = error.body
    if len(body) <= LONGEST_REFUSAL and is_json(body):
        return redacted(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"), error.content_type
    said = redacted(body[:LONGEST_REFUSAL].decode(errors="replace"))
    if len(body) > LONGEST_REFUSAL:
        told = f"{said[:SHOWN_OF_REFUSAL]}…"
    else:
        told = one_line(said) or f"a worker refused the request with status {error.status}"
    return _error(told, "invalid_request_error", None, error.status), "application/json"


async def finish(response: web.StreamResponse, request: web.BaseRequest, admission: Admission) -> None:
    """Send an answer, or what is left of it; where the gateway stops, it is the last one on its connection."""
    if isinstance(response, ClientAnswer) and response.over:
        return
    if admission.closed and not response.prepared:
        response.force_close()
    response.headers.setdefault(hdrs.SERVER, SERVER)
    await response.prepare(request)
    await response.write_eof()


def failure(error: GatewayError) -> web.Response:
    """Return the answer of a request that failed."""
    headers = {"Content-Type": "application/json", **error.headers}
    return web.Response(body=_object(error), status=error.status, headers=headers)


def _object(error: GatewayError) -> bytes:
    kind = "invalid_request_error" if error.status < 500 else "gateway_error"
    return _error(str(error), kind, error.param, error.code or error.status)


def _error(message: str, kind: str, param: str | None, code: str | int | None) -> bytes:
    return json.dumps({"error": {"message": redacted(message), "type": kind, "param": param, "code": code}}).encode()
