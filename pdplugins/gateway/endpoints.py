"""What clients can ask of a gateway over HTTP. Whatever happens, they get an answer, or an error in OpenAI's form."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import generate_latest

from pdplugins.gateway.admission import Admission, overloaded
from pdplugins.gateway.backends import Backend
from pdplugins.gateway.bodies import read_body
from pdplugins.gateway.clients import Clients
from pdplugins.gateway.engine import Engine
from pdplugins.gateway.errors import GatewayError, RefusedError, ShortageError
from pdplugins.gateway.primitive import can_serve
from pdplugins.gateway.reading import TooLongError, read_whole
from pdplugins.gateway.replies import Reply, failure
from pdplugins.gateway.serving import Serving
from pdplugins.limits import MIB

log = logging.getLogger("pdplugins.gateway")

FORWARDED = ("authorization", "traceparent", "tracestate", "x-request-id")
"""Headers of the client that workers get too."""
LOAD_FIELDS = (
    "queued_requests",
    "queued_tokens",
    "running_requests",
    "running_tokens",
    "recent_ttft_s",
    "recent_tbt_s",
)


@dataclass(frozen=True)
class Endpoints:
    """The endpoints of one gateway.

    :param session: for requests that any worker may answer.
    """

    serving: Serving
    engine: Engine[Any, Any]
    admission: Admission
    clients: Clients
    session: aiohttp.ClientSession

    def app(self) -> web.Application:
        """Return them all as one application."""
        app = web.Application(middlewares=[self._around])
        for path in self.engine.paths:
            app.router.add_post(path, self._answer)
        for path in ("/health", "/health_generate"):
            app.router.add_get(path, self._health)
        for path in self.engine.passed_gets:
            app.router.add_get(path, self._pass)
        for path in self.engine.passed_posts:
            app.router.add_post(path, self._pass)
        app.router.add_get("/workers", self._workers)
        app.router.add_get("/metrics", self._show_metrics)
        return app

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, and write the answer, so that its connection is known to be busy meanwhile."""
        try:
            response = await self._handled(request, handler)
            if self.admission.closed and not response.prepared:
                response.force_close()
            await response.prepare(request)
            await response.write_eof()
        finally:
            self.clients.ended(request)
        return response

    async def _handled(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self.clients.begins(request):
            refusal = failure(overloaded("too many connections"))
            refusal.force_close()
            return refusal
        try:
            return await handler(request)
        except GatewayError as error:
            return failure(error)
        except web.HTTPException as error:
            return failure(GatewayError(error.status, error.reason))
        except ConnectionResetError:
            raise
        except Exception as error:  # a fault of the gateway must not look like one of the client
            self.serving.metrics.fault("gateway_error", error, error)
            return failure(GatewayError(500, f"gateway: {type(error).__name__}"))

    # --- requests --------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, whatever happens, and count how it ended."""
        reply = Reply(request)
        outcome = "cancelled"
        metrics = self.serving.metrics
        metrics.in_flight.inc()
        try:
            with self.admission.request():
                outcome = await self._answered(request, reply)
        except GatewayError as error:
            outcome = f"error_{error.status}"
            await reply.fail(error)
        except RefusedError as error:
            outcome = "refused"
            await reply.refuse(error)
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
            metrics.in_flight.dec()
            metrics.requests.labels(outcome).inc()
        if reply.response is None:
            raise ConnectionResetError
        return reply.response

    async def _answered(self, request: web.Request, reply: Reply) -> str:
        body = await read_body(request, self.admission)
        try:
            given = request.headers
            headers = {name: given[name] for name in FORWARDED if name in given}
            session = given.get("x-session-id")
            call = self.engine.parse(request.path, body, secrets.token_hex(16), session, headers)
            await self.serving.serve(call, reply)
        except ShortageError as error:
            self.serving.metrics.fault("out_of_descriptors", error.why)
            raise
        finally:
            self.admission.give_bytes(len(body))
        return "ok"

    def _cut(self) -> GatewayError:
        """Return the error of a request whose time is over."""
        if self.admission.closed:
            return overloaded("the gateway stops")
        return GatewayError(504, f"no end after {self.serving.settings.timeout_s:g} s")

    # --- everything else -------------------------------------------------------------------------------------------

    async def _pass(self, request: web.Request) -> web.Response:
        """Let any worker answer."""
        with self.admission.request():
            body = await read_body(request, self.admission)
            try:
                return await self._passed(request, body)
            finally:
                self.admission.give_bytes(len(body))

    async def _passed(self, request: web.Request, body: bytes) -> web.Response:
        backends, settings = self.serving.backends, self.serving.settings
        for view in backends.now_ready():
            url = backends.by_id[view.id].url + request.path_qs
            with contextlib.suppress(aiohttp.ClientError, OSError, TooLongError):
                async with (
                    self.admission.serving.within(settings.connect_s),
                    self.session.request(
                        request.method, url, data=body, headers=_json(request), allow_redirects=False
                    ) as answer,
                ):
                    kind = answer.headers.get("Content-Type", "application/json")
                    said = await read_whole(answer.content.readany, settings.max_answer_mib * MIB)
                    return web.Response(body=said, status=answer.status, headers={"Content-Type": kind})
        raise overloaded("no worker is there")

    async def _health(self, request: web.Request) -> web.Response:
        """Say whether requests can be served now."""
        return web.Response(status=200 if can_serve(self.serving.backends.now_ready()) else 503)

    async def _workers(self, request: web.Request) -> web.Response:
        """Show the workers as the router sees them."""
        shown = json.dumps([_shown(backend) for backend in self.serving.backends.all])
        return web.Response(text=shown, content_type="application/json")

    async def _show_metrics(self, request: web.Request) -> web.Response:
        metrics = self.serving.metrics
        for backend in self.serving.backends.all:
            view = backend.view
            load = {name: value for name in LOAD_FIELDS if (value := getattr(view.load, name)) is not None}
            if view.free_kv_tokens is not None:
                load["free_kv_tokens"] = view.free_kv_tokens
            metrics.load(backend.id, load | {"alive": float(backend.alive)})
        return web.Response(body=generate_latest(metrics.registry), content_type="text/plain")


def _json(request: web.Request) -> dict[str, str]:
    kept = {name: request.headers[name] for name in FORWARDED if name in request.headers}
    return kept | ({"Content-Type": "application/json"} if request.method == "POST" else {})


def _shown(backend: Backend) -> dict[str, object]:
    view = backend.view
    load = {name: getattr(view.load, name) for name in LOAD_FIELDS}
    facts = {"id": backend.id, "kind": backend.kind, "alive": backend.alive, "role": view.role, "tp": view.tp}
    return facts | {
        "bootstrap_port": backend.bootstrap_port,
        "kv_capacity_tokens": view.kv_capacity_tokens,
        "free_kv_tokens": view.free_kv_tokens,
        "load": load,
    }
