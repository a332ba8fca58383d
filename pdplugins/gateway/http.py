"""What aiohttp's server says by itself, in the form of all other answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any

from aiohttp import EMPTY_PAYLOAD, StreamReader, hdrs, web
from aiohttp.http import RawRequestMessage

from pdplugins.errors import one_line
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.logs import without_data
from pdplugins.gateway.replies import SERVER, ClientAnswer, failure


class Handler(web.RequestHandler):
    """The HTTP of one connection: its errors are error objects, also those of a head that cannot be read."""

    __slots__ = ("_body",)
    _body: StreamReader
    """That of the last request whose head has come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._body = EMPTY_PAYLOAD
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take in what has come. Where that is no HTTP in the middle of a body, the body ends.

        aiohttp takes it for one more request, and lets the one before wait for the rest of its body.
        """
        super().data_received(data)
        if not self._messages:
            return
        message, body = self._messages[-1]
        if isinstance(message, RawRequestMessage):
            self._body = body
        elif not self._body.is_eof():
            self._messages.pop()
            self._lingering_time = 0.0
            self._body.set_exception(web.RequestPayloadError(without_data(message.message)))

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on reading where it was held. aiohttp asks for that twice with each request, and parses nothing then."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Log an error and return its answer. Raises ConnectionError when an answer has begun."""
        super().handle_error(request, status, exc, message)
        response = failure(GatewayError(status, one_line(without_data(message or HTTPStatus(status).phrase))))
        response.headers[hdrs.SERVER] = SERVER
        response.force_close()
        return response

    def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> Coroutine[Any, Any, tuple[web.StreamResponse, bool]]:
        """Write an answer."""
        # aiohttp's own, as for a header Expect that it does not know
        if not isinstance(resp, ClientAnswer) and isinstance(resp, web.HTTPException):
            resp = failure(GatewayError(resp.status, resp.reason))
        return super().finish_response(request, resp, start_time)


async def name_server(request: web.Request, response: web.StreamResponse) -> None:
    """Say who answers; aiohttp would tell its version."""
    response.headers[hdrs.SERVER] = SERVER
