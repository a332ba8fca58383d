"""The router in its loop: what it is asked, and what its placements become on the servers that are there.

A router that raises, or names a worker that takes no work, is replaced for that request by the least loaded workers.
What the servers cannot do (a stock decode server cannot prefill) becomes what is nearest to it by the host's own rule.
Both are counted, and logged once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from pdplugins.config import Choice, Config, settings_of
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import ElasticRouter, Ending, HearsOutcomes, Outcome, Placement, Router
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.gateway.calls import Call
from pdplugins.gateway.completions import splittable
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.fleet import Fleet, Worker, serves
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.registry import Registry, default_registry


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done for one request, in this order."""

    first: Worker
    """Prefills, at least the beginning."""
    second: Worker | None
    """Goes on; the same worker when all of it is local, None while it is open."""
    split: int
    """Tokens of prompt and output on `first`."""
    prompt: int

    @property
    def local(self) -> bool:
        """Whether one worker does all of it."""
        return self.first is self.second

    @property
    def primitive(self) -> str:
        """The name of what it comes to."""
        if self.second is None:
            return "warm"
        if self.local:
            return "local"
        return "pair" if self.split == self.prompt else "push" if self.split < self.prompt else "head"


class Routing:
    """Asks the router of a config; the least loaded workers are taken where there is none, or where it fails."""

    def __init__(
        self,
        config: Config,
        deployment: Deployment,
        fleet: Fleet,
        metrics: GatewayMetrics,
        registry: Registry | None = None,
    ) -> None:
        self._own = LeastLoaded(RouterSettings.model_validate({}), deployment)
        self._router: Router = self._own
        if (choice := config.router) is not None:
            self._router = build_router(choice, deployment, registry)
        self._fleet = fleet
        self._metrics = metrics
        self._elastic = self._router if isinstance(self._router, ElasticRouter) else None
        self._learns = self._router if isinstance(self._router, HearsOutcomes) else None

    def arrive(self, request: Request, call: Call, failed: Sequence[str] = ()) -> Plan:
        """Place a request that has just arrived, or that starts anew. Raises GatewayError when no worker is there.

        :param failed: workers that have failed this request, the most suspect first: it goes elsewhere, if it can.
        """
        workers = self._workers()
        placement = self._ask(lambda: self._router.on_arrival(request, workers, monotonic()), workers)
        if failed and (placement is None or {placement.first, placement.second} & set(failed)):
            workers, placement = self._without(failed, workers), None
        if placement is None:
            placement = self._own.on_arrival(request, workers, monotonic())
        return self._allowed(placement, request, call)

    def _without(self, failed: Sequence[str], workers: tuple[WorkerView, ...]) -> tuple[WorkerView, ...]:
        """Return the workers but those that failed; when the others cannot serve, all but the most suspect one."""
        for avoided in (failed, failed[:1]):
            others = tuple(worker for worker in workers if worker.id not in avoided)
            if serves([self._fleet.by_id[worker.id] for worker in others]):
                return others
        return workers

    def prefilled(self, request: Request, plan: Plan, call: Call) -> Plan:
        """Find who decodes a request whose prefill is done; its worker may have gone meanwhile."""
        workers = self._workers()
        open_placement = Placement(plan.first.id, None, plan.split)
        placement = self._ask(
            lambda: self._router.on_prefill_done(request, open_placement, workers, monotonic()), workers
        )
        second = placement.second if placement else None
        if second is None:
            second = self._own.on_arrival(request, workers, monotonic()).second
        return self._allowed(Placement(plan.first.id, second, plan.prompt), request, call)

    def finished(self, request: Request, output_tokens: int) -> None:
        """Tell a router that learns output lengths how long an answer was."""
        if self._learns is not None:
            try:
                self._learns.on_ended(request, Outcome(Ending.FINISHED, output_tokens))
            except Exception as error:  # whatever a policy does, serving goes on
                self._metrics.fault("router_error", error, error)

    def _workers(self) -> tuple[WorkerView, ...]:
        workers = self._fleet.now_ready()
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

    # --- the host's own rule -------------------------------------------------------------------------------------

    def _allowed(self, placement: Placement, request: Request, call: Call) -> Plan:
        """Return what of `placement` these servers and this request allow."""
        prompt = request.prompt_tokens
        first = self._fleet.by_id[placement.first]
        second = None if placement.second is None else self._fleet.by_id[placement.second]
        if second is not None and placement.split <= 0:
            first = second
        elif second is not None and placement.split >= prompt + (call.max_tokens or prompt + placement.split):
            second = first
        if first is second:
            return Plan(first, first, prompt, prompt) if first.alone else self._paired(first, first, prompt, "local")
        if not (first.prefills and (second is None or second.decodes)):
            return self._paired(first, second, prompt, "roles")
        if second is None:
            return Plan(first, None, prompt, prompt) if first.alone else self._decoded_now(first, request, call)
        split = placement.split
        if split != prompt and (why := self._whole(split, prompt, first, second, call)):
            self._metrics.fault(f"refused_{why}", f"split at {split} of {prompt} became a pair: {WHY[why]}")
            split = prompt
        return Plan(first, second, split, prompt)

    def _whole(self, split: int, prompt: int, first: Worker, second: Worker, call: Call) -> str | None:
        """Return the name of the reason why a request cannot be split here."""
        if not (first.alone and second.alone):
            return "stock_split"
        if call.batch is not None or call.sampling.get("n", 1) != 1:
            return "several_answers"
        return "decode_split" if split > prompt and not splittable(call) else None

    def _decoded_now(self, first: Worker, request: Request, call: Call) -> Plan:
        """Ask at once who decodes: a stock prefill server does not begin before a decode server has room."""
        self._metrics.fault("refused_open_second", WHY["open_second"])
        return self.prefilled(request, Plan(first, None, request.prompt_tokens, request.prompt_tokens), call)

    def _paired(self, first: Worker, second: Worker | None, prompt: int, why: str) -> Plan:
        """Return what is nearest to a placement that these servers cannot do."""
        self._metrics.fault(f"refused_{why}", WHY[why])
        prefills = [first] if first.prefills else self._fleet.pick(lambda worker: worker.prefills)
        decodes = [second] if second and second.decodes else self._fleet.pick(lambda worker: worker.decodes)
        if prefills and decodes:
            p = min(prefills, key=lambda worker: worker.view.load.queued_tokens)
            d = min(decodes, key=lambda worker: worker.view.load.running_requests)
            if p is not d:
                return Plan(p, d, prompt, prompt)
        alone = [w for w in (second, first) if w and w.alone] or self._fleet.pick(lambda worker: worker.alone)
        if not alone:
            raise GatewayError(503, "the workers that are there cannot serve together; see /workers")
        only = min(alone, key=lambda worker: worker.view.load.running_requests)
        return Plan(only, only, prompt, prompt)


WHY = {
    "local": "a stock prefill or decode server cannot serve alone",
    "roles": "the servers named cannot prefill or decode for each other",
    "stock_split": "a split needs dual-role servers",
    "several_answers": "a request with several prompts or answers is not split",
    "decode_split": "to go on elsewhere takes token ids, and sampling that depends on nothing but tokens",
    "open_second": "a stock prefill server needs its decode server before it begins; the router was asked at once",
}


def build_router(choice: Choice, deployment: Deployment, registry: Registry | None = None) -> Router:
    """Build the router that a config names."""
    registration = (registry or default_registry()).get("router", choice.name)
    router: Router = registration.factory(settings_of("router", choice, registry=registry), deployment)
    return router
