"""What the client gets: an answer, or an error in the form of OpenAI's API."""

from __future__ import annotations

import json

from aiohttp import hdrs, web

from pdplugins.gateway.admission import Admission
from pdplugins.gateway.errors import GatewayError, RefusedError
from pdplugins.redaction import redacted

SERVER = "pdplugins"
"""What answers call the gateway: nobody needs to know its version, and that of its HTTP server."""
DONE_EVENT = b"data: [DONE]\n\n"
"""The end of every stream."""


class Stream(web.StreamResponse):
    """A stream whose head goes out with its first part, and not before it in a packet of its own."""

    _send_headers_immediately = False  # aiohttp's own; where it has another name, the head goes out first


class Reply:
    """The response to one client: nothing yet, a stream, or one body."""

    def __init__(self, request: web.BaseRequest, admission: Admission) -> None:
        self._request = request
        self._admission = admission
        self.response: web.StreamResponse | None = None
        self._ended = False
        """Whether the end of a stream has been sent."""

    @property
    def started(self) -> bool:
        """Whether the client has got anything, so that the request cannot start anew unnoticed."""
        return self.response is not None

    async def send(self, data: bytes, content_type: str) -> None:
        """Send a part of a stream. Nothing follows its end."""
        if self._ended:
            return
        if self.response is None:
            headers = {"Content-Type": content_type, "Cache-Control": "no-cache", hdrs.SERVER: SERVER}
            self.response = Stream(headers=headers)
            await self.response.prepare(self._request)
        if data.endswith(DONE_EVENT):
            self._ended = True
            await self.response.write_eof(data)
        else:
            await self.response.write(data)

    async def whole(self, body: bytes, content_type: str, status: int = 200) -> None:
        """Answer with one body, at once: the books can wait, the client should not."""
        self.response = web.Response(body=body, status=status, headers={"Content-Type": content_type})
        await finish(self.response, self._request, self._admission)

    async def refuse(self, error: RefusedError) -> None:
        """Pass on the refusal of a worker."""
        if self.response is None:
            await self.whole(redacted_body(error.body), error.content_type, error.status)
        else:
            await self.fail(GatewayError(error.status, error.body.decode(errors="replace")))

    async def fail(self, error: GatewayError) -> None:
        """Tell the client what went wrong, in its stream where that has begun."""
        if self.response is None or not self.response.prepared:
            self.response = failure(error)
        elif not isinstance(self.response, web.Response):  # nothing follows a whole answer
            await self.send(b"data: " + _object(error) + b"\n\n" + DONE_EVENT, "")


def redacted_body(body: bytes) -> bytes:
    """Return what a worker said of a request, without a key that it may repeat."""
    return redacted(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


async def finish(response: web.StreamResponse, request: web.BaseRequest, admission: Admission) -> None:
    """Send an answer, or what is left of it; where the gateway stops, it is the last one on its connection."""
    if response.prepared and isinstance(response, web.Response):
        return  # it has been sent as a whole
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
    said = {"message": redacted(str(error)), "type": kind, "param": error.param, "code": error.code or error.status}
    return json.dumps({"error": said}).encode()
