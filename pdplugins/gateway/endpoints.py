"""What clients can ask of a gateway over HTTP. Whatever happens, they get an answer, or an error in OpenAI's form."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any

import aiohttp
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from pdplugins.gateway import openapi
from pdplugins.gateway.access.gate import JSON, Gate
from pdplugins.gateway.account import ACCOUNT, Account
from pdplugins.gateway.admission import Admission, overloaded
from pdplugins.gateway.bodies import read_body
from pdplugins.gateway.clients import Clients, too_many_connections
from pdplugins.gateway.engine import Engine
from pdplugins.gateway.errors import (
    FULL,
    AnswersTooLongError,
    GatewayError,
    RefusedError,
    ShortageError,
    WorkerFailedError,
)
from pdplugins.gateway.primitive import can_serve
from pdplugins.gateway.randomness import fresh_name
from pdplugins.gateway.reading import Hold, TooLongError, content_type, is_json, read_whole
from pdplugins.gateway.replies import Left, Reply, failure, finish, refusal
from pdplugins.gateway.serving import Serving
from pdplugins.gateway.terms import Asking
from pdplugins.gateway.tracing import Tracing
from pdplugins.limits import MIB

log = logging.getLogger("pdplugins.gateway")

LONGEST_SHOWN = 100
"""Characters of a path that an error repeats."""
FORWARDED = ("traceparent", "tracestate", "x-request-id")
"""Headers of the client that workers get too."""


@dataclass(frozen=True)
class Endpoints:
    """The endpoints of one gateway.

    :param gate: the checks of every request.
    :param session: for requests that any worker may answer.
    :param asking: what requests may ask for themselves.
    :param tracing: makes a span of each request; None: there are none.
    """

    serving: Serving
    engine: Engine[Any, Any]
    admission: Admission
    clients: Clients
    gate: Gate
    session: aiohttp.ClientSession
    asking: Asking
    tracing: Tracing | None = None

    def app(self) -> web.Application:
        """Return them all as one application."""
        app = web.Application()

        def not_here(status: HTTPStatus) -> Handler:
            async def refuse(request: web.Request) -> web.StreamResponse:
                raise GatewayError(status, f"{request.method} {request.path[:LONGEST_SHOWN]} is not served here")

            return self._served(refuse)

        def add(method: str, paths: Iterable[str], handler: Handler) -> None:
            for path in paths:
                resource = app.router.add_resource(path)
                resource.add_route(method, self._served(handler))
                resource.add_route("*", not_here(HTTPStatus.METHOD_NOT_ALLOWED))

        add("POST", self.engine.paths, self._answer)
        add("GET", ("/health", "/health_generate"), self._health)
        add("GET", self.engine.passed_gets, self._pass)
        add("POST", self.engine.passed_posts, self._pass)
        add("GET", (f"{self.engine.models}/{{model:.+}}",), self._model)
        add("GET", (openapi.PATH,), self._openapi)
        app.router.add_route("*", "/{path:.*}", not_here(HTTPStatus.NOT_FOUND))
        return app

    def shortcut(self, server: web.Server) -> None:
        """Let `server` answer requests for workers without aiohttp's application, which finds a handler as slowly."""
        usual, paths, served = server.request_handler, frozenset(self.engine.paths), self._served(self._answer)

        def handle(request: Any) -> Awaitable[web.StreamResponse]:
            direct = request.method == "POST" and request.path in paths and hdrs.EXPECT not in request.headers
            return served(request) if direct else usual(request)

        server.request_handler = handle

    def _served(self, handler: Handler) -> Handler:
        """Return what answers a request with `handler`, where it may pass, and turns every error into an answer.

        One function for all of that, and no middlewares: aiohttp takes as long to call one as all of this takes.
        """
        admission, clients, gate, metrics = self.admission, self.clients, self.gate, self.serving.metrics

        async def served(request: web.Request) -> web.StreamResponse:
            try:
                if not clients.begins(request):
                    response: web.StreamResponse = too_many_connections()
                else:
                    try:
                        gate.check(request)
                        response = await handler(request)
                    except GatewayError as error:
                        response = failure(error)
                    except ConnectionResetError:
                        raise
                    except Exception as error:  # a fault of the gateway must not look like one of the client
                        metrics.fault("gateway_error", error, error)
                        response = failure(GatewayError(500, f"gateway: {type(error).__name__}"))
                await finish(response, request, admission)
            except (asyncio.CancelledError, ConnectionResetError):
                response = Left(request)
            finally:
                clients.ended(request)
            return response

        return served

    # --- requests --------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, whatever happens, and count how it ended."""
        reply = Reply(request, self.admission)
        outcome = "cancelled"
        metrics = self.serving.metrics
        self._begin(request)
        try:
            outcome = await self._answered(request, reply)
        except GatewayError as error:
            outcome = f"error_{error.status}"
            await reply.fail(error)
        except RefusedError as error:
            outcome = "refused"
            await reply.refuse(error)
        except WorkerFailedError as error:  # in what it had said before it failed in the first place
            outcome = "error_502"
            metrics.fault("worker_failed", error)
            await reply.fail(GatewayError(502, "the worker failed"))
        except TimeoutError:
            outcome = "error_504"
            await reply.fail(self._cut())
        except ConnectionResetError:
            log.debug("a client went away")
        except Exception as error:
            outcome = "error_500"
            metrics.fault("gateway_error", error, error)
            await reply.fail(GatewayError(500, f"gateway: {type(error).__name__}"))
        finally:
            self._end(request, reply.account, outcome)
        if reply.response is None:
            raise ConnectionResetError
        return reply.response

    def _begin(self, request: web.Request) -> None:
        self.serving.metrics.begun()
        if self.tracing is not None:
            self.tracing.begin(request)

    def _end(self, request: web.Request, account: Account | None, outcome: str) -> None:
        self.serving.metrics.over(outcome)
        if account is not None:
            account.outcome = outcome
        if self.tracing is not None:
            self.tracing.end(request, outcome, account)

    async def _answered(self, request: web.Request, reply: Reply) -> str:
        self.admission.enter()
        body = b""
        try:
            body = await read_body(request, self.admission)
            session = request.headers.get("x-session-id")
            headers = self._forwarded(request)
            if self.tracing is not None:
                headers |= self.tracing.headers(request)
            call = self.engine.parse(request.path, body, fresh_name(), session, headers)
            call.terms = self.asking.terms(request.headers, call.asks)
            request[ACCOUNT] = reply.account = account = Account(call.rid, call.model, call.stream)
            await self.serving.serve(call, reply, account)
        except AnswersTooLongError:
            self.serving.metrics.overload("answers")
            raise
        except ShortageError as error:
            self.serving.metrics.fault("out_of_descriptors", error.why)
            raise
        finally:
            self.admission.give_bytes(len(body))
            self.admission.leave()
        return "ok"

    def _cut(self) -> GatewayError:
        """Return the error of a request whose time is over."""
        if self.admission.closed:
            return overloaded("the gateway stops")
        return GatewayError(504, f"no end after {self.serving.settings.timeout_s:g} s")

    # --- everything else -------------------------------------------------------------------------------------------

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        """Let any worker answer. Its answer has room and time as every whole one, until the client has taken it."""
        self.admission.enter()
        body, reply = b"", Reply(request, self.admission)
        try:
            body = await read_body(request, self.admission)
            with Hold(self.engine.room) as hold:
                status, said, kind = await self._asked(request, request.path_qs, body, hold)
                said = self.engine.public(request.path, said)
                with contextlib.suppress(TimeoutError), self.admission.serving.within(self.serving.settings.timeout_s):
                    await reply.whole(said, kind, status)
        finally:
            self.admission.give_bytes(len(body))
            self.admission.leave()
        assert reply.response is not None  # noqa: S101 - it has been sent, or a part of it
        return reply.response

    async def _model(self, request: web.Request) -> web.Response:
        """Say what the list of models says of one of them."""
        name = request.match_info["model"]
        self.admission.enter()
        try:
            with Hold(self.engine.room) as hold:
                status, listed, kind = await self._asked(request, self.engine.models, b"", hold)
                said = self.engine.model_of(listed, name) if status == HTTPStatus.OK else listed
        finally:
            self.admission.leave()
        if said is None:
            why = f"The model '{name[:LONGEST_SHOWN]}' does not exist"
            raise GatewayError(HTTPStatus.NOT_FOUND, why, param="model", code="model_not_found")
        return web.Response(body=said, status=status, headers={"Content-Type": kind})

    async def _asked(self, request: web.Request, path: str, body: bytes, hold: Hold) -> tuple[int, bytes, str]:
        """Return status, body and type of any worker's answer, for which `hold` has room.

        A worker that does not answer, has too much to do or refuses our key is passed over. Raises GatewayError when
        none is left, no time, or no room.
        """
        backends, settings = self.serving.backends, self.serving.settings
        ready, ends_s = backends.now_ready(), monotonic() + settings.timeout_s
        for view in random.sample(ready, len(ready)):  # else one that hangs would hold up every question
            if monotonic() > ends_s:
                break
            hold.give()  # what another one said
            backend = backends.by_id[view.id]
            headers = {**self._forwarded(request), "Content-Type": JSON, **backend.key.headers}
            wait = self.admission.serving.within(settings.connect_s)
            with contextlib.suppress(aiohttp.ClientError, OSError, TooLongError), wait:
                async with self.session.request(
                    request.method, backend.url + path, data=body, headers=headers, allow_redirects=False
                ) as answer:
                    kind = content_type(answer.headers.get("Content-Type", JSON))
                    said = await read_whole(partial(self._more, answer, hold), settings.max_answer_mib * MIB)
                    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                        continue
                    if answer.status == HTTPStatus.OK and is_json(said):
                        return answer.status, said, kind
                    ours = backend.key.refused(answer.status, headers)
                    if 400 <= answer.status < 500 and answer.status not in FULL and not ours:
                        return answer.status, *refusal(RefusedError(answer.status, said, kind))
        raise overloaded("no worker answered")

    async def _more(self, answer: aiohttp.ClientResponse, hold: Hold) -> bytes:
        """Return the next bytes of an answer, for which `hold` takes room."""
        part = await answer.content.readany()
        try:
            hold.take(len(part))
        except AnswersTooLongError:
            self.serving.metrics.overload("answers")
            raise
        return part

    async def _openapi(self, request: web.Request) -> web.Response:
        """Return the OpenAPI document."""
        return web.Response(body=openapi.document(request.app), content_type=JSON)

    async def _health(self, request: web.Request) -> web.Response:
        """Say whether requests can be served now."""
        return web.Response(status=200 if can_serve(self.serving.backends.now_ready()) else 503)

    def _forwarded(self, request: web.Request) -> dict[str, str]:
        """Return the headers that workers get too. A key of ours is no business of theirs."""
        names = FORWARDED if self.gate.keys is not None else ("authorization", *FORWARDED)
        return {name: request.headers[name] for name in names if name in request.headers}
