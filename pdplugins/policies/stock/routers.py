"""The routers that serving frameworks ship, as baselines. Prompt and output run where the two pools are: P, then D.

On workers of one role only (co-location) both phases run on the same worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from pydantic import BaseModel, ConfigDict, Field

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Placement
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.errors import ConfigError

Pool = Sequence[WorkerView]


class RouterSettings(BaseModel):
    """Settings of the stock routers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(0, ge=0, description="of the choices of random and power-of-two")
    colocated: bool = Field(False, description="run every request on one worker, whatever the roles")
    sticky: bool = Field(False, description="rounds of a session decode where its KV cache is")


class CacheAwareSettings(RouterSettings):
    """Settings of the router ``cache-aware``."""

    overlap_weight: float = Field(1.0, ge=0, description="cost of a block that is not cached, against running ones")
    block_tokens: int = Field(512, ge=1, description="tokens of one prefix block")


class StockRouter:
    """Chooses a prefill worker and a decode worker, independently of each other, with `pick`."""

    def __init__(self, settings: RouterSettings, deployment: Deployment) -> None:
        self._colocated = settings.colocated
        self._sticky = settings.sticky
        self._by_id: dict[str, WorkerView] = {}
        self._seed = settings.seed
        self._workers: tuple[WorkerView, ...] = ()
        self._pools: dict[Role, Pool] = {}
        self._picks = 0

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request."""
        if workers is not self._workers:
            self._split(workers)
        held = self._by_id.get(request.bound_worker or "") if self._sticky else None
        if self._colocated:
            first = second = held or self.pick(request, self._pools[Role.PREFILL], Role.PREFILL)
        else:
            first = self.pick(request, self._pools[Role.PREFILL], Role.PREFILL)
            second = held or self.pick(request, self._pools[Role.DECODE], Role.DECODE)
        return Placement(first.id, second.id, request.prompt_tokens)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Return `placement`: it was whole at arrival."""
        return placement

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose one worker of `pool`."""
        raise NotImplementedError

    def dice(self) -> int:
        """Return the next of a stream of pseudo-random 64-bit numbers (SplitMix64, Steele et al., OOPSLA 2014)."""
        self._picks += 1
        z = (self._seed + self._picks * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return z ^ (z >> 31)

    def _split(self, workers: tuple[WorkerView, ...]) -> None:
        if not workers:
            raise ConfigError("router: no worker is ready; start at least one")
        self._workers = workers
        self._by_id = {worker.id: worker for worker in workers}
        for role in Role:
            pool = workers if self._colocated else tuple(worker for worker in workers if worker.role is role)
            self._pools[role] = pool or workers


class RoundRobin(StockRouter):
    """Takes each worker in turn."""

    def __init__(self, settings: RouterSettings, deployment: Deployment) -> None:
        super().__init__(settings, deployment)
        self._next = dict.fromkeys(Role, 0)

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose the next one."""
        turn = self._next[role]
        self._next[role] = turn + 1
        return pool[turn % len(pool)]


class Random(StockRouter):
    """Takes any worker."""

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose one with equal chance."""
        return pool[self.dice() % len(pool)]


class PowerOfTwo(StockRouter):
    """Takes the less loaded of two random workers (Mitzenmacher, IEEE TPDS 2001)."""

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose between two."""
        one, other = pool[self.dice() % len(pool)], pool[self.dice() % len(pool)]
        load = LOADS[role]
        return one if load(one) <= load(other) else other


class LeastLoaded(StockRouter):
    """Takes the least loaded worker, in turn among equals: by prompt tokens for prefill, by requests for decode."""

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose the least loaded."""
        load = LOADS[role]
        loads = list(map(load, pool))
        least = min(loads)
        if loads.count(least) == 1:
            return pool[loads.index(least)]
        self._picks += 1
        equals = [worker for worker, its in zip(pool, loads, strict=True) if its == least] or pool  # none equals a NaN
        return equals[self._picks % len(equals)]


class CacheAware(StockRouter):
    """Weighs what a worker has cached of the prompt against what waits there (the KV router of NVIDIA Dynamo)."""

    def __init__(self, settings: CacheAwareSettings, deployment: Deployment) -> None:
        super().__init__(settings, deployment)
        self._weight = settings.overlap_weight
        self._block_tokens = settings.block_tokens

    def pick(self, request: Request, pool: Pool, role: Role) -> WorkerView:
        """Choose the worker with the fewest tokens to compute: its own, and those of the prompt it has not cached."""
        least = min(pool, key=_tokens)
        if not request.blocks:
            return least
        start = request.blocks[0]
        holders = [worker for worker in pool if start in worker.cached_blocks]

        def cost(worker: WorkerView) -> float:
            cached = min(_leading(request.blocks, worker) * self._block_tokens, request.prompt_tokens)
            return _tokens(worker) - self._weight * cached

        return min([least, *holders], key=cost)


def _leading(blocks: tuple[int, ...], worker: WorkerView) -> int:
    cached = worker.cached_blocks
    for count, block in enumerate(blocks):
        if block not in cached:
            return count
    return len(blocks)


def _tokens(worker: WorkerView) -> float:
    load = worker.load
    return load.queued_tokens + load.running_tokens


def _requests(worker: WorkerView) -> float:
    return worker.load.running_requests + worker.load.queued_requests


LOADS: dict[Role, Callable[[WorkerView], float]] = {
    Role.PREFILL: attrgetter("load.queued_tokens"),
    Role.DECODE: _requests,
}
