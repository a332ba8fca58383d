"""The routers that serving frameworks ship, as baselines. Prompts run on prefill workers, outputs on decode workers.

Where all workers have the same role (co-location), both phases of a request run on the same worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from pydantic import BaseModel, ConfigDict, Field

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Placement, swift_placement
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies._common import SplitMix64, by_role, cheapest

Pool = Sequence[WorkerView]
P, D = Role.PREFILL, Role.DECODE
"""Here because an enumeration takes as long to name a member as the rest of a choice does."""


class RouterSettings(BaseModel):
    """Settings of the stock routers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(0, ge=0, description="of the choices of random and power-of-two")
    colocated: bool = Field(False, description="run every request on one worker, whatever the roles")
    sticky: bool = Field(False, description="rounds of a session decode where its KV cache is")


class CacheAwareSettings(RouterSettings):
    """Settings of the router ``cache-aware``."""

    overlap_weight: float = Field(1.0, ge=0, description="cost of an uncached token, against one that waits or runs")
    block_tokens: int = Field(512, ge=1, description="tokens of one prefix block")


class StockRouter:
    """Chooses a prefill worker and a decode worker, independently of each other, with `pick`."""

    def __init__(self, settings: RouterSettings, deployment: Deployment) -> None:
        self._colocated = settings.colocated
        self._sticky = settings.sticky
        self._by_id: dict[str, WorkerView] = {}
        self._workers: tuple[WorkerView, ...] = ()
        self._pools: dict[Role, Pool] = {}

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request."""
        if workers is not self._workers:
            self._split(workers)
        held = self._by_id.get(request.bound_worker or "") if self._sticky else None
        if self._colocated:
            first = second = held or self.pick(request, self._pools[P], P)
        else:
            first = self.pick(request, self._pools[P], P)
            second = held or self.pick(request, self._pools[D], D)
        return swift_placement(first.id, second.id, request.prompt_tokens)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Return `placement`, which was complete at arrival, with another decode worker where its own is gone."""
        if workers is not self._workers:
            self._split(workers)
        if placement.second in self._by_id:
            return placement
        return Placement(placement.first, self.pick(request, self._pools[D], D).id, placement.split)

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose one worker of `pool`."""
        raise NotImplementedError

    def _split(self, workers: tuple[WorkerView, ...]) -> None:
        pools = by_role("of the stock", workers)
        self._workers = workers
        self._by_id = {worker.id: worker for worker in workers}
        self._pools = {role: workers if self._colocated else pool or workers for role, pool in pools.items()}


class RoundRobin(StockRouter):
    """Chooses each worker in turn."""

    def __init__(self, settings: RouterSettings, deployment: Deployment) -> None:
        super().__init__(settings, deployment)
        self._next = dict.fromkeys(Role, 0)

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose the next one."""
        turn = self._next[role]
        self._next[role] = turn + 1
        return pool[turn % len(pool)]


class Random(StockRouter):
    """Chooses a random worker."""

    def __init__(self, settings: RouterSettings, deployment: Deployment) -> None:
        super().__init__(settings, deployment)
        self._random = SplitMix64(settings.seed).next

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose any worker with equal probability."""
        return pool[self._random() % len(pool)]


class PowerOfTwo(Random):
    """Chooses the less loaded of two random workers (Mitzenmacher, IEEE TPDS 2001)."""

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose between two."""
        one, other = super().pick(request, pool, role), super().pick(request, pool, role)
        load = LOADS[role]
        return one if load(one) <= load(other) else other


class LeastLoaded(StockRouter):
    """Chooses the least loaded worker: by prompt tokens for prefill, by requests for decode. Equal ones take turns."""

    def __init__(self, settings: RouterSettings, deployment: Deployment) -> None:
        super().__init__(settings, deployment)
        self._turns = 0

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose the least loaded."""
        load = LOADS[role]
        loads = list(map(load, pool))
        least = min(loads)
        if loads.count(least) == 1:
            return pool[loads.index(least)]
        self._turns += 1
        equals = [worker for worker, value in zip(pool, loads, strict=True) if value == least]
        equals = equals or list(pool)  # a NaN minimum equals no load, not even itself
        return equals[self._turns % len(equals)]


class CacheAware(StockRouter):
    """Weighs the cached part of the prompt against the work that waits on a worker (the KV router of NVIDIA Dynamo)."""

    def __init__(self, settings: CacheAwareSettings, deployment: Deployment) -> None:
        super().__init__(settings, deployment)
        self._weight = settings.overlap_weight
        self._block_tokens = settings.block_tokens

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose the worker with the fewest tokens to compute: its present ones and those of the prompt not cached."""
        return cheapest(request, pool, _tokens, self._weight, self._block_tokens)


def _tokens(worker: WorkerView) -> float:
    load = worker.load
    return load.queued_tokens + load.running_tokens


def _requests(worker: WorkerView) -> float:
    return worker.load.running_requests + worker.load.queued_requests


LOADS: dict[Role, Callable[[WorkerView], float]] = {
    Role.PREFILL: attrgetter("load.queued_tokens"),
    Role.DECODE: _requests,
}
