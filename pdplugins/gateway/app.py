"""The HTTP side of the gateway: routes, deadlines, errors, and a stop that leaves nothing running."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import generate_latest

from pdplugins.config import Config
from pdplugins.errors import HostError
from pdplugins.gateway.admission import Admission
from pdplugins.gateway.backends import Backend, Backends, WorkerOption
from pdplugins.gateway.engine import Engine
from pdplugins.gateway.engines.sglang.engine import SglangEngine
from pdplugins.gateway.errors import GatewayError, RefusedError, ShortageError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.policies import GatewayPolicies
from pdplugins.gateway.primitive import can_serve
from pdplugins.gateway.queue import AdmissionQueue
from pdplugins.gateway.replies import Reply
from pdplugins.gateway.routing import Routing
from pdplugins.gateway.serving import Serving
from pdplugins.gateway.watchers import keep
from pdplugins.registry import Registry
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.flow import SafeFlow

log = logging.getLogger("pdplugins.gateway")

LARGEST_BODY = 256 * 2**20
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


class Gateway:
    """One gateway. Call `start` before and `stop` after use; `url` is its address.

    :param decision_log: where a sample of what router and flow policy decide is logged; None for nowhere.

    Raises ConfigError when the config's profile or policies, a worker's address, or the log cannot be used.
    """

    def __init__(
        self,
        config: Config,
        workers: Sequence[WorkerOption],
        registry: Registry | None = None,
        metrics: GatewayMetrics | None = None,
        decision_log: Path | None = None,
    ) -> None:
        self.settings = config.gateway
        self.metrics = metrics or GatewayMetrics()
        self._dual = config.sglang.dual_role
        self.backends = Backends(
            workers,
            prefill=min(config.deployment.prefill.replicas, max(len(workers) - 1, 0)),
            settings=self.settings,
            metrics=self.metrics,
        )
        self.admission = Admission(self.settings, self.metrics)
        deployment = build_deployment(config, registry)
        self.policies = GatewayPolicies(config, deployment, registry, self.metrics, decision_log)
        self._ttft_s = deployment.slo.ttft_s
        journal = self.policies.journal
        self.routing = Routing(self.policies.router, deployment, self.backends, self.metrics, journal)
        self._watchers: list[asyncio.Task[None]] = []
        self.url = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Serve. Raises HostError when the port is taken."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)  # SGLang closes idle connections after 5 s
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        self.engine: Engine[Any, Any] = SglangEngine(self.settings, self._session, dual=self._dual)
        queue = self._build_queue()
        self.serving = Serving(self.routing, self.backends, self.engine, self.admission, self.metrics, queue)
        await self.look()
        works: list[Callable[[], Awaitable[None]]] = [self.policies.share_signals]
        works += [functools.partial(self.backends.watch, backend, self.engine) for backend in self.backends.all]
        if queue is not None:
            works.append(queue.run)
        self._watchers = [asyncio.create_task(keep(work, self.metrics)) for work in works]
        self._runner = web.AppRunner(
            self._app(), access_log=None, handler_cancellation=True, shutdown_timeout=self.settings.drain_s
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            raise HostError(
                f"gateway: cannot listen on {host}:{port} ({error.strerror}); choose another port"
            ) from None
        name, bound = self._runner.addresses[0][:2]
        self.url = f"http://{name}:{bound}"

    async def stop(self) -> None:
        """Let requests in flight finish for a while, then end them, and everything else."""
        await self._runner.cleanup()
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await self.engine.close()
        await self._session.close()
        self.policies.close()

    def _build_queue(self) -> AdmissionQueue | None:
        if self.policies.flow is None:
            return None
        most, journal = self.settings.max_waiting, self.policies.journal
        flow = SafeFlow(self.policies.flow, most_waiting=most, journal=journal)
        return AdmissionQueue(flow, self.backends, self.metrics, self._ttft_s)

    async def look(self) -> None:
        """Ask the workers that answer now what they are. The others are polled later."""
        await asyncio.gather(*(self.backends.first_look(backend, self.engine) for backend in self.backends.all))

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY)
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

    # --- requests --------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        reply = Reply(request)
        outcome = "cancelled"
        self.metrics.in_flight.inc()
        try:
            with self.admission.request():
                outcome = await self._answered(request, reply)
        except GatewayError as error:
            outcome = f"error_{error.status}"
            await reply.fail(error)
        except (ConnectionResetError, aiohttp.ClientConnectionResetError):
            log.debug("a client went away")
        finally:
            self.metrics.in_flight.dec()
            self.metrics.requests.labels(outcome).inc()
        if reply.response is None:
            raise ConnectionResetError
        return reply.response

    async def _answered(self, request: web.Request, reply: Reply) -> str:
        """Answer a request, whatever happens; return how it ended."""
        try:
            body = await request.read()
            given = request.headers
            headers = {name: given[name] for name in FORWARDED if name in given}
            session = given.get("x-session-id")
            call = self.engine.parse(request.path, body, secrets.token_hex(16), session, headers)
            await self.serving.serve(call, reply)
        except GatewayError as error:
            if isinstance(error, ShortageError):
                self.metrics.fault("out_of_descriptors", error.why)
            await reply.fail(error)
            return f"error_{error.status}"
        except RefusedError as error:
            await reply.refuse(error)
            return "refused"
        except TimeoutError:
            await reply.fail(GatewayError(504, f"no end after {self.settings.timeout_s:g} s"))
            return "error_504"
        except (ConnectionResetError, web.HTTPException):
            raise
        except Exception as error:  # a fault of the gateway must not look like one of the client
            self.metrics.fault("gateway_error", error, error)
            await reply.fail(GatewayError(500, f"gateway: {type(error).__name__}"))
            return "error_500"
        return "ok"

    # --- everything else -------------------------------------------------------------------------------------------

    async def _pass(self, request: web.Request) -> web.Response:
        """Let any worker answer."""
        body = await request.read()
        for view in self.backends.now_ready():
            url = self.backends.by_id[view.id].url + request.path_qs
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with (
                    asyncio.timeout(self.settings.connect_s),
                    self._session.request(request.method, url, data=body, headers=_json(request)) as answer,
                ):
                    kind = answer.headers.get("Content-Type", "application/json")
                    return web.Response(body=await answer.read(), status=answer.status, headers={"Content-Type": kind})
        return web.json_response({"error": {"message": "no worker is there", "code": 503}}, status=503)

    async def _health(self, request: web.Request) -> web.Response:
        """Say whether requests can be served now."""
        return web.Response(status=200 if can_serve(self.backends.now_ready()) else 503)

    async def _workers(self, request: web.Request) -> web.Response:
        """Show the workers as the router sees them."""
        shown = json.dumps([_shown(backend) for backend in self.backends.all])
        return web.Response(text=shown, content_type="application/json")

    async def _show_metrics(self, request: web.Request) -> web.Response:
        for backend in self.backends.all:
            view = backend.view
            load = {name: value for name in LOAD_FIELDS if (value := getattr(view.load, name)) is not None}
            if view.free_kv_tokens is not None:
                load["free_kv_tokens"] = view.free_kv_tokens
            self.metrics.load(backend.id, load | {"alive": float(backend.alive)})
        return web.Response(body=generate_latest(self.metrics.registry), content_type="text/plain")


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
