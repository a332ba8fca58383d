"""Asks the router, and turns its placements into what the workers can do.

`pdplugins.runtime.router.SafeRouter` replaces a placement that cannot be followed. What the workers cannot do becomes
what is nearest to it (see `primitive`), and is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.roles import HearsRoles
from pdplugins.contracts.router import Outcome, Placement, Router
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.gateway.admission import overloaded
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.primitive import Deviation, Execution, NobodyServesError, Splittable, alone, can_serve, resolve
from pdplugins.gateway.shadow import ShadowRouter
from pdplugins.gateway.workers import Workers
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.runtime.decision import Fault, Journal
from pdplugins.runtime.faults import implements, raised
from pdplugins.runtime.router import SafeRouter

PACE_S = 1.0
"""Pause between two calls of a router that plans ahead."""


class Routing:
    """Asks the router; without one, the least loaded workers are taken.

    :param late: whether every worker that prefills can do so before it is known who decodes.
    :param shadow: the router decides and is not followed; requests go as without one.
    """

    def __init__(
        self,
        router: Router | None,
        deployment: Deployment,
        backends: Workers[Any],
        metrics: GatewayMetrics,
        journal: Journal | None = None,
        *,
        late: bool = False,
        shadow: bool = False,
    ) -> None:
        self._own = LeastLoaded(RouterSettings.model_validate({}), deployment)
        self._deployment = deployment
        self._backends = backends
        self._metrics = metrics
        self._journal = journal
        self._late = late
        self._shadowing = shadow
        self._shadow: ShadowRouter | None = None
        self._asked: set[str] = set()
        """Requests that the router has been asked for and that have not ended."""
        self._early: set[str] = set()
        """Of those, the ones whose prompt is not computed, although it has said who decodes."""
        self.use(router or self._own)

    def use(self, router: Router) -> None:
        """Ask `router` from now on."""
        self.router = router
        if self._shadowing:
            self._shadow = ShadowRouter(router, self._deployment, self._backends, self._metrics, self._journal)
            self._safe = SafeRouter(self._own, self._deployment)
            safe = self._shadow.safe
        else:
            self._safe = safe = SafeRouter(router, self._deployment, journal=self._journal)
        if implements(router, HearsRoles):
            more: Any = router
            self._backends.labels.tell(
                more, lambda error: safe.tally.fault(Fault.POLICY_ERROR, raised(router, error), error)
            )

    def check(self, call: Splittable) -> None:
        """Raise GatewayError for a request that none of the workers, those that are away included, can ever serve."""
        if (field := call.whole) is not None and not any(map(alone, self._backends.views.values())):
            why = f"{field}: only a server that serves whole requests alone can do that, and none is here"
            raise GatewayError(400, why, param=field)

    def arrive(self, request: Request, call: Splittable, failed: Sequence[str] = ()) -> Execution:
        """Place a request that has just arrived, or that starts anew. Raises GatewayError when no worker is there.

        :param failed: workers that have failed this request, the most suspect first: it goes elsewhere, if it can.
        """
        workers = self._workers()
        now_s = monotonic()
        self._asked.add(request.id)
        placement = self._safe.on_arrival(request, workers, now_s, self._backends.ready_ids)
        if failed and {placement.first, placement.second} & set(failed):
            placement = self._own.on_arrival(request, _without(failed, workers), now_s)
        if self._shadow is not None:
            self._shadow.arrive(request, placement, workers, now_s)
        self._after_decision()
        return self._execution(placement, request, call, failed)

    def begun(self, request: Request) -> None:
        """Note that the client of a request gets its first token."""
        if self._shadow is not None:
            self._shadow.prefilled(request)

    def computed(self, request: Request) -> None:
        """Note that a prompt has been computed for a worker that was named before."""
        if request.id in self._early:
            self._early.discard(request.id)
            self._safe.on_prefilled(request, monotonic())

    def prefilled(
        self,
        request: Request,
        first: str,
        split: int,
        call: Splittable,
        failed: Sequence[str] = (),
        *,
        early: bool = False,
    ) -> Execution:
        """Find who decodes a request whose prefill on `first` is done; that worker may have gone meanwhile.

        :param failed: as for `arrive`.
        :param early: prefill is not done, but `first` has to know it before.
        """
        workers, now_s = self._workers(), monotonic()
        open_placement = Placement(first, None, split)
        usable = self._backends.ready_ids
        placement = self._safe.on_prefill_done(request, open_placement, workers, now_s, usable, early=early)
        if early:
            self._early.add(request.id)
        if placement.second in failed:
            placement = self._own.on_arrival(request, _without(failed, workers), now_s)
        self._after_decision()
        return self._execution(Placement(first, placement.second, request.prompt_tokens), request, call)

    async def plan_ahead(self) -> None:
        """Let the router do what no request should wait for, for as long as this runs."""
        while True:
            self._safe.plan_ahead(self._backends.now_ready(), monotonic())
            if self._shadow is not None:
                self._shadow.plan_ahead()
            self._after_decision()
            await asyncio.sleep(PACE_S)

    def ended(self, request: Request, outcome: Outcome) -> None:
        """Tell a router that wants to know how a request ended that it was asked for."""
        if request.id in self._asked:
            self._asked.discard(request.id)
            self._early.discard(request.id)
            self._safe.on_ended(request, outcome)
            if self._shadow is not None:
                self._shadow.ended(request, outcome)

    def _workers(self) -> tuple[WorkerView, ...]:
        workers = self._backends.now_ready()
        if not workers:
            raise overloaded("no worker is there")
        return workers

    def _after_decision(self) -> None:
        """Show the pools of an elastic router, and do what it proposes for the roles of workers."""
        deciding = self._safe if self._shadow is None else self._shadow.safe
        if (pools := deciding.pools) is not None:
            for role, size in zip(Role, pools, strict=True):
                self._metrics.pools.labels(role).set(size)
        if self._safe.moves_roles:
            self._backends.labels.propose(self._safe.take_role_moves())

    def _execution(
        self, placement: Placement, request: Request, call: Splittable, failed: Sequence[str] = ()
    ) -> Execution:
        """Return what of `placement` these workers and this request allow. Raises GatewayError."""
        views, ready = self._backends.views, self._backends.now_ready()
        try:
            execution, deviation = resolve(placement, request.prompt_tokens, call, views, ready, late=self._late)
        except NobodyServesError as error:
            raise overloaded(str(error)) from None
        if deviation is not None:
            self._metrics.fault(f"refused_{deviation}", deviation.why)
        if deviation is Deviation.OPEN_SECOND:
            return self.prefilled(request, execution.first, execution.prompt, call, failed, early=True)
        return execution


def _without(failed: Sequence[str], workers: tuple[WorkerView, ...]) -> tuple[WorkerView, ...]:
    """Return the workers but those that failed; when the others cannot serve, all but the most suspect one."""
    for avoided in (failed, failed[:1]):
        others = tuple(worker for worker in workers if worker.id not in avoided)
        if can_serve(others):
            return others
    return workers
