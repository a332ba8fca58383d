"""The router in its loop: what it is asked, and what its placements become on the workers that are there.

A router that raises, or names a worker that takes no work, is replaced for that request by the least loaded workers.
What the workers cannot do becomes what is nearest to it (see `primitive`). Both are counted, and logged once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from pdplugins.config import Choice, Config, settings_of
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import ElasticRouter, HearsOutcomes, Outcome, Placement, Router
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.gateway.backends import Backends
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.primitive import Deviation, Execution, NobodyServesError, Splittable, can_serve, resolve
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.registry import Registry, default_registry


class Routing:
    """Asks the router of a config; the least loaded workers are taken where there is none, or where it fails."""

    def __init__(
        self,
        config: Config,
        deployment: Deployment,
        backends: Backends,
        metrics: GatewayMetrics,
        registry: Registry | None = None,
    ) -> None:
        self._own = LeastLoaded(RouterSettings.model_validate({}), deployment)
        self._backends = backends
        self._metrics = metrics
        self.use(self._own if config.router is None else build_router(config.router, deployment, registry))

    def use(self, router: Router) -> None:
        """Ask `router` from now on."""
        self.router = router
        self._elastic = router if isinstance(router, ElasticRouter) else None
        self._learns = router if isinstance(router, HearsOutcomes) else None

    def arrive(self, request: Request, call: Splittable, failed: Sequence[str] = ()) -> Execution:
        """Place a request that has just arrived, or that starts anew. Raises GatewayError when no worker is there.

        :param failed: workers that have failed this request, the most suspect first: it goes elsewhere, if it can.
        """
        workers = self._workers()
        placement = self._ask(lambda: self.router.on_arrival(request, workers, monotonic()), workers)
        if failed and (placement is None or {placement.first, placement.second} & set(failed)):
            workers, placement = _without(failed, workers), None
        if placement is None:
            placement = self._own.on_arrival(request, workers, monotonic())
        return self._execution(placement, request, call)

    def prefilled(self, request: Request, first: str, split: int, call: Splittable) -> Execution:
        """Find who decodes a request whose prefill on `first` is done; that worker may have gone meanwhile."""
        workers = self._workers()
        open_placement = Placement(first, None, split)
        placement = self._ask(
            lambda: self.router.on_prefill_done(request, open_placement, workers, monotonic()), workers
        )
        second = placement.second if placement else None
        if second is None:
            second = self._own.on_arrival(request, workers, monotonic()).second
        return self._execution(Placement(first, second, request.prompt_tokens), request, call)

    def ended(self, request: Request, outcome: Outcome) -> None:
        """Tell a router that wants to know how a request ended."""
        if self._learns is not None:
            try:
                self._learns.on_ended(request, outcome)
            except Exception as error:  # whatever a policy does, serving goes on
                self._metrics.fault("router_error", error, error)

    def _workers(self) -> tuple[WorkerView, ...]:
        workers = self._backends.now_ready()
        if not workers:
            raise GatewayError(503, "no worker is there; see /workers")
        return workers

    def _ask(self, ask: Callable[[], Placement], workers: tuple[WorkerView, ...]) -> Placement | None:
        """Return the router's placement; None when it is none to follow."""
        try:
            placement = ask()
            ids = {worker.id for worker in workers}
            if placement.first in ids and (placement.second is None or placement.second in ids):
                self._show_pools()
                return Placement(placement.first, placement.second, int(placement.split), placement.reason)
            self._metrics.fault("router_unknown_worker", f"{placement.first} or {placement.second} takes no work")
        except Exception as error:  # whatever a policy does, serving goes on
            self._metrics.fault("router_error", error, error)
        return None

    def _show_pools(self) -> None:
        if self._elastic is not None:
            for role, size in zip(Role, self._elastic.pools, strict=True):
                self._metrics.pools.labels(role).set(size)

    def _execution(self, placement: Placement, request: Request, call: Splittable) -> Execution:
        """Return what of `placement` these workers and this request allow. Raises GatewayError."""
        backends = self._backends
        try:
            execution, deviation = resolve(placement, request.prompt_tokens, call, backends.views, backends.now_ready())
        except NobodyServesError as error:
            raise GatewayError(503, f"{error}; see /workers") from None
        if deviation is not None:
            self._metrics.fault(f"refused_{deviation}", deviation.why)
        if deviation is Deviation.OPEN_SECOND:
            return self.prefilled(request, execution.first, execution.prompt, call)
        return execution


def _without(failed: Sequence[str], workers: tuple[WorkerView, ...]) -> tuple[WorkerView, ...]:
    """Return the workers but those that failed; when the others cannot serve, all but the most suspect one."""
    for avoided in (failed, failed[:1]):
        others = tuple(worker for worker in workers if worker.id not in avoided)
        if can_serve(others):
            return others
    return workers


def build_router(choice: Choice, deployment: Deployment, registry: Registry | None = None) -> Router:
    """Build the router that a config names."""
    registration = (registry or default_registry()).get("router", choice.name)
    router: Router = registration.factory(settings_of("router", choice, registry=registry), deployment)
    return router
