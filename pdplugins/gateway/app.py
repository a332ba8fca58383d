"""One gateway: built from a config, started, and stopped so that nothing is left running."""

from __future__ import annotations

import asyncio
import functools
import resource
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.web_log import AccessLogger

from pdplugins.config import Config
from pdplugins.contracts.request import Slo
from pdplugins.errors import cannot_listen
from pdplugins.gateway.access.access import Access
from pdplugins.gateway.access.gate import Gate
from pdplugins.gateway.access.rates import KeyRates
from pdplugins.gateway.access.tls import Site
from pdplugins.gateway.account import JsonAccessLogger
from pdplugins.gateway.admin import Admin
from pdplugins.gateway.admission import Admission
from pdplugins.gateway.backends import Backend, Backends, WorkerOption
from pdplugins.gateway.clients import Clients
from pdplugins.gateway.dashboard import Board, WatchedJournal
from pdplugins.gateway.descriptors import connections_within
from pdplugins.gateway.discovery import Discovery, Source
from pdplugins.gateway.endpoints import Endpoints
from pdplugins.gateway.engine import Engine
from pdplugins.gateway.engines.sglang.engine import SglangEngine
from pdplugins.gateway.http import name_server
from pdplugins.gateway.logs import ACCESS_FORMAT, ACCESS_LOG, HTTP_LOG
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.peers import Peers
from pdplugins.gateway.policies import GatewayPolicies
from pdplugins.gateway.queue import AdmissionQueue
from pdplugins.gateway.routing import Routing
from pdplugins.gateway.serving import Serving
from pdplugins.gateway.share import Share
from pdplugins.gateway.terms import Asking
from pdplugins.gateway.tracing import Tracing
from pdplugins.gateway.watchers import keep
from pdplugins.registry import Registry
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision import Journal

ADMIN_CONNECTIONS = 64
"""Connections of operators."""
LONGEST_LINE, MOST_HEADERS = 8190, 128
"""Bytes of a line of a request's head, and its headers."""
LINGER_S = 1.0
"""How long what a client still sends is read after its answer, so that the answer arrives."""
CLOSE_S = 0.1
"""How long aiohttp waits for the end of each connection, twice, once no request should be left."""
CUT_SHARE, LONGEST_CUT_S = 0.2, 3.0
"""What is left of the time of a stop when requests are cut, for their error events and for workers to hear of it."""


class Gateway:
    """One gateway. Call `start` before and `stop` after use; `url` is its address, `admin_url` that for operators.

    :param decision_log: where a sample of what router and flow policy decide is logged; None for nowhere.
    :param sources: where more workers are found while it runs.
    :param tracing: makes spans of requests; None: there are none.
    :param share: that of this process where several serve the same port.
    :param access: its keys, certificates and listeners; the default has no keys and no certificates.

    Raises ConfigError when the config's profile or policies, a worker's address, or the log cannot be used.
    """

    def __init__(  # noqa: PLR0913 - the parts of a gateway
        self,
        config: Config,
        workers: Sequence[WorkerOption],
        *,
        registry: Registry | None = None,
        metrics: GatewayMetrics | None = None,
        decision_log: Path | None = None,
        access: Access | None = None,
        sources: Sequence[Source] = (),
        tracing: Tracing | None = None,
        share: Share | None = None,
    ) -> None:
        self.settings = config.gateway
        self.access = access or Access()
        self.metrics = metrics or GatewayMetrics(slo=Slo(config.slo.ttft_s, config.slo.tpot_s))
        self._dual = config.sglang.dual_role
        self._sources = sources
        self._tracing = tracing
        self._share = share
        self._alone: Callable[[], None] = lambda: None
        replicas = config.deployment.prefill.replicas
        self.backends = Backends(
            workers,
            prefill=replicas if sources else min(replicas, max(len(workers) - 1, 0)),
            settings=self.settings,
            metrics=self.metrics,
            keys=self.access.worker_keys,
        )
        self.admission = Admission(self.settings, self.metrics)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(self.settings.max_connections, connections_within(descriptors))
        self.clients = Clients(self.settings, self.metrics, "public", most)
        self._operators = Clients(self.settings, self.metrics, "admin", ADMIN_CONNECTIONS)
        deployment = build_deployment(config, registry)
        self.policies = GatewayPolicies(config, deployment, registry, self.metrics, decision_log)
        self._asking = Asking(config.terms)
        self._ttft_s = deployment.slo.ttft_s
        self.board = None if self.access.dashboard is None else Board(config, self.access.dashboard)
        self._journal: Journal = self.policies.journal
        if self.board is not None:
            self._journal = WatchedJournal(self._journal, self.board)
        self.routing = Routing(
            self.policies.router, deployment, self.backends, self.metrics, self._journal, shadow=self.settings.shadow
        )
        self._watchers: list[asyncio.Task[None]] = []
        self.url = ""
        self.admin_url = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Serve. Raises HostError when it cannot listen."""
        if self.board is not None:
            await self.board.start()
        self.access.warn(host, [backend.url for backend in self.backends.all])
        self._session = self._open_session()
        self.engine: Engine[Any, Any] = SglangEngine(
            self.settings, self._session, dual=self._dual, tls=self.access.worker_ca
        )
        queue = self._build_queue()
        self.serving = Serving(self.routing, self.backends, self.engine, self.admission, self.metrics, queue)
        longest_s = self.settings.timeout_s + self.settings.drain_s
        self._discovery = Discovery(self._sources, self.backends, self.engine, self.metrics, longest_s)
        fixed = [*self.backends.all]
        if self._share is not None:
            self._alone = Peers(self._share, self.serving.sessions, self.metrics).start()
        try:
            await self._discovery.look()
            await self.look()
        except asyncio.CancelledError:  # told to stop while it starts
            await self._discovery.close()
            await self._session.close()
            if self.board is not None:
                await self.board.stop()
            raise
        if (board := self.board) is not None:
            self.serving.on_end = board.heard
            self.backends.labels.tell(board, lambda error: self.metrics.fault("gateway_error", error, error))
        self._watchers = [asyncio.create_task(keep(work, self.metrics)) for work in self._works(fixed, queue)]
        rates = KeyRates(self.settings.key_rate, self.settings.key_burst)
        gate = Gate(self.metrics, self.access.api_keys, rates=rates)
        endpoints = Endpoints(
            self.serving, self.engine, self.admission, self.clients, gate, self._session, self._asking, self._tracing
        )
        admin_gate = Gate(self.metrics, self.access.admin_keys, admin=True)
        admin = Admin(self.backends, self.metrics, admin_gate, self._operators, self.settings.body_s)
        self._runner = await self._set_up(endpoints.app(), self.clients)
        assert self._runner.server is not None  # noqa: S101 - it has just been set up
        endpoints.shortcut(self._runner.server)
        self._admin = await self._set_up(admin.app(), self._operators)
        self.url = await self._listen(self._runner, self.clients, host, port, shared=self._share is not None)
        admin_host, admin_port = self.access.admin_host, self.access.admin_port
        self.admin_url = await self._listen(self._admin, self._operators, admin_host, admin_port)

    def _open_session(self) -> aiohttp.ClientSession:
        """Return the connections to the workers."""
        connector = aiohttp.TCPConnector(  # SGLang closes idle connections after 5 s
            limit=0, keepalive_timeout=4, ssl=self.access.worker_ca
        )
        return aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
        )

    def _works(self, fixed: Sequence[Backend], queue: AdmissionQueue | None) -> list[Callable[[], Awaitable[None]]]:
        """Return what runs for as long as it serves.

        :param fixed: the workers that the config names. Discovery watches those that it finds.
        """
        works: list[Callable[[], Awaitable[None]]] = [self.clients.watch, self._operators.watch]
        works += [self.policies.share_signals, self.routing.plan_ahead]
        works += [functools.partial(self.backends.watch, backend, self.engine) for backend in fixed]
        if self._sources:
            works.append(self._discovery.run)
        if queue is not None:
            works.append(queue.run)
        if self.board is not None:
            works.append(functools.partial(self.board.watch, self))
        if self.access.api_keys is not None:
            works.append(self.access.api_keys.watch)
        return works

    async def _listen(
        self, runner: web.AppRunner, clients: Clients, host: str, port: int, *, shared: bool = False
    ) -> str:
        """Listen, and return the URL. Raises HostError when it cannot; then nothing runs any more."""
        tls = None if self.access.tls is None else self.access.tls.context
        site = Site(runner, host, port, tls, clients, self.settings.head_s, shared=shared)
        try:
            await site.start()
        except (OSError, UnicodeError) as error:
            await self.stop()
            raise cannot_listen("gateway", host, port, error) from None
        return site.name

    async def _set_up(self, app: web.Application, clients: Clients) -> web.AppRunner:
        """Return what serves `app`, and looks after its connections."""
        app.on_response_prepare.append(name_server)
        runner = web.AppRunner(
            app,
            access_log=ACCESS_LOG if self.settings.access_log or self.settings.access_log_json else None,
            access_log_class=JsonAccessLogger if self.settings.access_log_json else AccessLogger,
            access_log_format=ACCESS_FORMAT,
            logger=HTTP_LOG,
            handler_cancellation=True,
            auto_decompress=False,
            keepalive_timeout=self.settings.idle_s,
            lingering_time=LINGER_S,
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
            max_headers=MOST_HEADERS,
            shutdown_timeout=CLOSE_S,
        )
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - it has just been set up
        clients.guard(runner.server)
        return runner

    def _build_queue(self) -> AdmissionQueue | None:
        if self.policies.flow is None:
            return None
        return AdmissionQueue(
            self.policies.flow,
            self.backends,
            self.metrics,
            self._ttft_s,
            most_waiting=self.settings.max_waiting,
            worker_wait_s=self.settings.worker_wait_s,
            journal=self._journal,
        )

    async def look(self) -> None:
        """Ask the workers that answer now what they are. The others are polled later."""
        await asyncio.gather(*(self.backends.first_look(backend, self.engine) for backend in self.backends.all))

    async def stop(self, within_s: float | None = None) -> None:
        """Let requests in flight finish, cut what is left in time, and end everything else.

        Cancelled, it goes on to the next of these.

        :param within_s: how long all of that may take; None: as long as the config says.
        """
        within_s = self.settings.drain_s if within_s is None else within_s
        cut_s = min(CUT_SHARE * within_s, LONGEST_CUT_S)
        for site in self._runner.sites:
            await site.stop()
        self.admission.close()
        self.clients.close_idle()
        await self._emptied(within_s - cut_s)
        self.admission.serving.expire()
        await self._emptied(cut_s / 3)
        await self._runner.cleanup()
        await self._admin.cleanup()
        if self.board is not None:
            await self.board.stop()
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await self._discovery.close()
        await self.engine.close(cut_s / 3)
        self._alone()
        if self._tracing is not None:
            await self._tracing.stop(cut_s / 3)
        await self._session.close()
        self.policies.close()

    async def _emptied(self, within_s: float) -> None:
        """Wait until no request is left, but not too long, and not when this is cancelled."""
        try:
            async with asyncio.timeout(within_s):
                await self.admission.empty()
        except TimeoutError:
            return
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - this runs in one
            task.uncancel()
