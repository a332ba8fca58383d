"""The router as a component of Dynamo: it serves the model, and owns both legs of every request.

Dynamo's frontend has tokenized a request when it comes here, and turns the chunks of the answer into text. It knows of
no other worker. What gateways in front of SGLang do with a request is done here in the same way (`pdplugins.gateway`):
flow, router, sessions, retries, books.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest

from pdplugins.config import Config
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.flow import Flow
from pdplugins.contracts.router import Router
from pdplugins.contracts.workers import Role
from pdplugins.gateway.admission import Admission
from pdplugins.gateway.errors import GatewayError, RefusedError, WorkerFailedError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.policies import GatewayPolicies
from pdplugins.gateway.queue import AdmissionQueue
from pdplugins.gateway.routing import Routing
from pdplugins.gateway.serving import Serving
from pdplugins.gateway.terms import Asking
from pdplugins.gateway.watchers import keep
from pdplugins.hosts.dynamo.router.bootstrapped import Bootstrapped
from pdplugins.hosts.dynamo.router.calls import PreprocessedCall
from pdplugins.hosts.dynamo.router.engines import MOCKER, EngineKind
from pdplugins.hosts.dynamo.router.handed_over import HandedOver
from pdplugins.hosts.dynamo.router.places import NAMESPACE
from pdplugins.hosts.dynamo.router.relay import Answers
from pdplugins.hosts.dynamo.router.workers import DynamoWorkers
from pdplugins.registry import Registry

PREFIX = "pdplugins_dynamo_router_"
CUT_S = 1.0
"""What is left of the time of a stop for requests that are cut."""


class RouterComponent:
    """One router. Build it on the event loop; call `start` before and `stop` after use.

    :param decision_log: where a sample of what router and flow policy decide is logged; None for nowhere.
    :param namespace: that of the workers.
    :param kind: of their engines.

    Raises ConfigError when the config's policies, or the log, cannot be used.
    """

    def __init__(
        self,
        config: Config,
        deployment: Deployment,
        *,
        registry: Registry | None = None,
        decision_log: Path | None = None,
        namespace: str = NAMESPACE,
        kind: EngineKind = MOCKER,
    ) -> None:
        self._kind = kind
        self.settings = config.gateway
        self.metrics = GatewayMetrics(PREFIX, deployment.slo)
        self.policies = GatewayPolicies(config, deployment, registry, self.metrics, decision_log)
        self.workers = DynamoWorkers(
            kind,
            self.settings,
            self.metrics,
            both=config.any_role,
            tp={Role.PREFILL: deployment.prefill_tp, Role.DECODE: deployment.decode_tp},
            namespace=namespace,
        )
        self.admission = Admission(self.settings, self.metrics)
        tenant = config.terms.tenant_header
        self._asking = Asking(config.terms.model_copy(update={"tenant_header": tenant and tenant.lower()}))
        self._deployment = deployment
        self._watchers: list[asyncio.Task[None]] = []
        self.use(self.policies.router, self.policies.flow)

    def use(self, router: Router | None, flow: Flow | None) -> None:
        """Let these policies decide. Not while requests are served."""
        metrics, journal = self.metrics, self.policies.journal
        self.policies.router, self.policies.flow = router, flow
        self._queue: AdmissionQueue | None = None
        if flow is not None:
            self._queue = AdmissionQueue(
                flow,
                self.workers,
                metrics,
                self._deployment.slo.ttft_s,
                most_waiting=self.settings.max_waiting,
                worker_wait_s=self.settings.worker_wait_s,
                journal=journal,
            )
        shadow = self.settings.shadow
        self._routing = routing = Routing(
            router, self._deployment, self.workers, metrics, journal, late=self._kind.hands_over, shadow=shadow
        )
        self._legs = (HandedOver if self._kind.hands_over else Bootstrapped)(self.settings)
        self._serving = Serving(routing, self.workers, self._legs, self.admission, metrics, self._queue)

    async def start(self, runtime: Any) -> None:
        """Find the workers, and keep looking."""
        await self.workers.start(runtime)
        works: list[Callable[[], Awaitable[None]]] = [self.workers.watch, self.policies.share_signals]
        works.append(self._routing.plan_ahead)
        if self._queue is not None:
            works.append(self._queue.run)
        self._watchers = [asyncio.create_task(keep(work, self.metrics)) for work in works]

    async def stop(self, within_s: float) -> None:
        """Take nothing new, let requests in flight finish, cut what is left in time, and end everything else."""
        self.admission.close()
        await self._emptied(max(within_s - CUT_S, 0.0))
        self.admission.serving.expire()
        await self._emptied(CUT_S)
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await self._legs.close()
        self.workers.stop()
        self.policies.close()

    async def _emptied(self, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                await self.admission.empty()
        except TimeoutError:
            return

    # --- endpoints -------------------------------------------------------------------------------------------------

    async def generate(self, request: Any, context: Any) -> AsyncIterator[dict[str, Any]]:
        """Answer one request of Dynamo's frontend, chunk by chunk. Raises what the frontend makes an HTTP error of."""
        answers = Answers()
        work = asyncio.create_task(self._serve(request, context, answers))
        left = asyncio.ensure_future(context.async_killed_or_stopped())
        left.add_done_callback(lambda _: work.cancel())
        try:
            async for chunk in answers:
                yield chunk
        except GatewayError as error:
            raise http_error(error) from None
        finally:
            left.cancel()
            work.cancel()

    async def _serve(self, request: Any, context: Any, answers: Answers) -> None:
        """Serve one request. However it ends, `answers` hears of it."""
        error: Exception | None = None
        outcome = "cancelled"
        self.metrics.begun()
        try:
            self.admission.enter()
            try:
                call = PreprocessedCall(request, context, splits=self._kind.splits)
                call.terms = self._asking.terms(call.asking_headers, call.asks)
                self.workers.heed(call)
                await self._serving.serve(call, answers)
            finally:
                self.admission.leave()
            outcome = "ok"
        except Exception as raised:
            error = self._told(raised)
            outcome = "refused" if isinstance(raised, RefusedError) else f"error_{error.status}"
        finally:
            self.metrics.over(outcome)
            answers.end(error)

    def _told(self, error: Exception) -> GatewayError:
        """Return what the client is told of an error."""
        if isinstance(error, GatewayError):
            return error
        if isinstance(error, RefusedError):
            return GatewayError(error.status, error.body.decode())
        if isinstance(error, TimeoutError):
            return GatewayError(504, f"not answered within {self.settings.timeout_s:g} s")
        if isinstance(error, WorkerFailedError):  # in what it had said before it failed in the first place
            self.metrics.fault("worker_failed", error)
            return GatewayError(502, "the worker failed")
        self.metrics.fault("router_error", error, error)
        return GatewayError(500, "the router failed")

    async def state(self, request: Any, context: Any) -> AsyncIterator[dict[str, Any]]:
        """Say what the router knows of each worker."""
        for worker in list(self.workers.by_id.values()):  # some may come or go before all of them are told
            load = worker.view.load
            yield {
                "worker": worker.id,
                "role": worker.view.role,
                "alive": worker.alive,
                "queued_requests": load.queued_requests,
                "queued_tokens": load.queued_tokens,
                "running_requests": load.running_requests,
                "running_tokens": load.running_tokens,
                "free_kv_tokens": worker.view.free_kv_tokens,
                "recent_ttft_s": load.recent_ttft_s,
                "recent_tbt_s": load.recent_tbt_s,
            }

    def exposition(self) -> str:
        """Return the metrics as Prometheus reads them."""
        return generate_latest(self.metrics.registry).decode()


def http_error(error: GatewayError) -> Exception:
    """Return what Dynamo's frontend takes as an answer with that status."""
    from dynamo.llm import HttpError  # noqa: PLC0415 - brings Dynamo in

    failure: Exception = HttpError(error.status, str(error))
    return failure
