"""The HTTP side of the gateway: routes, deadlines, errors, and an end in which nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Sequence

import aiohttp
from aiohttp import web
from prometheus_client import generate_latest

from pdplugins.config import Config
from pdplugins.errors import HostError
from pdplugins.gateway.calls import CHAT, COMPLETIONS, parse
from pdplugins.gateway.engines.sglang.protocol import GENERATE, SERVER_INFO, TOKENIZE, dumps
from pdplugins.gateway.errors import GatewayError, RefusedError
from pdplugins.gateway.fleet import Fleet, Worker, WorkerOption, serves
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.routing import Routing
from pdplugins.gateway.serving import Serving
from pdplugins.gateway.settings import GatewaySettings
from pdplugins.gateway.streams import Reply
from pdplugins.gateway.upstream import Upstream
from pdplugins.registry import Registry
from pdplugins.runtime.assembly import build_deployment

log = logging.getLogger("pdplugins.gateway")

LARGEST_BODY = 256 * 2**20
FORWARDED = ("authorization", "traceparent", "tracestate", "x-request-id")
"""Headers of the client that workers get too."""
PASSED = ("/v1/models", "/model_info", "/get_model_info", SERVER_INFO, "/get_server_info")
PASSED_POSTS = (TOKENIZE, "/tokenize", "/v1/detokenize", "/detokenize")
LOAD_FIELDS = (
    "queued_requests",
    "queued_tokens",
    "running_requests",
    "running_tokens",
    "recent_ttft_s",
    "recent_tbt_s",
)


class Gateway:
    """One gateway. `start` and `stop` frame its life; `url` says where it is.

    Raises ConfigError when the config's profile or router, or a worker's address, cannot be used.
    """

    def __init__(
        self,
        config: Config,
        workers: Sequence[WorkerOption],
        settings: GatewaySettings | None = None,
        registry: Registry | None = None,
        metrics: GatewayMetrics | None = None,
    ) -> None:
        self.settings = settings or GatewaySettings()
        self.metrics = metrics or GatewayMetrics()
        self.fleet = Fleet(
            workers,
            dual=config.sglang.dual_role,
            prefill=min(config.deployment.prefill.replicas, max(len(workers) - 1, 0)),
            settings=self.settings,
        )
        deployment = build_deployment(config, registry)
        self._routing = Routing(config, deployment, self.fleet, self.metrics, registry)
        self._watchers: list[asyncio.Task[None]] = []
        self.url = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Serve. Raises HostError when the port is taken."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)  # SGLang closes idle connections after 5 s
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        self.upstream = Upstream(self.settings)
        self.serving = Serving(self._routing, self.fleet, self.upstream, self.settings, self.metrics)
        await self.look()
        loop = asyncio.get_running_loop()
        self._watchers = [loop.create_task(self.fleet.watch(worker, self._session)) for worker in self.fleet.workers]
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
        await self.upstream.settle()
        await self._session.close()

    async def look(self) -> None:
        """Get to know the workers that are there now; the others are looked for later."""
        await asyncio.gather(*map(self._look, self.fleet.workers))

    async def _look(self, worker: Worker) -> None:
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError, TypeError, KeyError):
            async with asyncio.timeout(self.settings.connect_s):
                await self.fleet.look(worker, self._session)

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY)
        for path in (GENERATE, COMPLETIONS, CHAT):
            app.router.add_post(path, self._answer)
        for path in ("/health", "/health_generate"):
            app.router.add_get(path, self._health)
        for path in PASSED:
            app.router.add_get(path, self._pass)
        for path in PASSED_POSTS:
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
            outcome = await self._answered(request, reply)
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
            call = parse(request.path, body, secrets.token_hex(16), given.get("x-session-id"), headers)
            async with asyncio.timeout(self.settings.timeout_s):
                await self.serving.serve(call, reply)
        except GatewayError as error:
            await reply.fail(error.status, str(error))
            return f"error_{error.status}"
        except RefusedError as error:
            await reply.refuse(error)
            return "refused"
        except TimeoutError:
            await reply.fail(504, f"no end after {self.settings.timeout_s:g} s")
            return "error_504"
        except (ConnectionResetError, web.HTTPException):
            raise
        except Exception as error:  # a fault of the gateway must not look like one of the client
            self.metrics.fault("gateway_error", error, error)
            await reply.fail(500, f"gateway: {type(error).__name__}")
            return "error_500"
        return "ok"

    # --- everything else -------------------------------------------------------------------------------------------

    async def _pass(self, request: web.Request) -> web.Response:
        """Let any worker answer."""
        body = await request.read()
        for view in self.fleet.now_ready():
            url = self.fleet.by_id[view.id].url + request.path_qs
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
        workers = [self.fleet.by_id[view.id] for view in self.fleet.now_ready()]
        return web.Response(status=200 if serves(workers) else 503)

    async def _workers(self, request: web.Request) -> web.Response:
        """Show the workers as the router sees them."""
        return web.Response(
            body=dumps([_shown(worker) for worker in self.fleet.workers]), content_type="application/json"
        )

    async def _show_metrics(self, request: web.Request) -> web.Response:
        for worker in self.fleet.workers:
            load = {name: value for name in LOAD_FIELDS if (value := getattr(worker.view.load, name)) is not None}
            self.metrics.load(worker.id, load | {"alive": float(worker.alive)})
        return web.Response(body=generate_latest(self.metrics.registry), content_type="text/plain")


def _json(request: web.Request) -> dict[str, str]:
    kept = {name: request.headers[name] for name in FORWARDED if name in request.headers}
    return kept | ({"Content-Type": "application/json"} if request.method == "POST" else {})


def _shown(worker: Worker) -> dict[str, object]:
    view = worker.view
    load = {name: getattr(view.load, name) for name in LOAD_FIELDS}
    facts = {"id": worker.id, "kind": worker.kind, "alive": worker.alive, "role": view.role}
    return facts | {
        "bootstrap_port": worker.bootstrap_port,
        "kv_capacity_tokens": view.kv_capacity_tokens,
        "load": load,
    }
