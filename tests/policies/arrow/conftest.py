"""A fleet of plain workers whose loads a test sets, and a performance model of one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pdplugins.policies.arrow.config import ArrowSettings
from pdplugins.policies.arrow.router import ArrowRouter
from pdplugins.types import Capabilities, Deployment, Ending, Outcome, Placement, PlainPerf, Request, Role, Slo


class Perf(PlainPerf):
    """Prefill takes 1 ms + 0.1 ms a token + 1 ns a token squared; a decode step 5 ms + 0.1 us a token."""

    def prefill_s(self, tokens: float, tp: int) -> float:
        return (1e-3 + 1e-4 * tokens + 1e-9 * tokens**2) / tp

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        return 5e-3 + 1e-7 * batch * context_tokens

    def transfer_s(self, tokens: float) -> float:
        return 1e-3

    def kv_capacity_tokens(self, tp: int) -> int:
        return 400_000

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        return 1e9

    def tp_sizes(self, role: Role) -> tuple[int, ...]:
        return (1, 2, 4)


@dataclass
class Load:
    worker: str = "w"
    queued_requests: float = 0.0
    queued_tokens: float = 0.0
    running_requests: float = 0.0
    running_tokens: float = 0.0
    recent_ttft_s: float | None = None
    recent_tbt_s: float | None = None


@dataclass
class Worker:
    id: str
    role: Role
    load: Load = field(default_factory=Load)
    kv_capacity_tokens: int = 400_000
    cached_blocks: frozenset[int] = frozenset()
    tp: int | None = None
    capabilities: Capabilities | None = None
    free_kv_tokens: int | None = None


DEPLOYMENT = Deployment(Slo(1.0, 0.05), Perf(), gpu_budget=8, prefill_tp=1, decode_tp=1, startup_s=0.0, max_batch=256)


class Cluster:
    """A router and its workers. `clock_s` is the time of every call."""

    def __init__(self, prefill: int, decode: int, **settings: Any) -> None:
        roles = [Role.PREFILL] * prefill + [Role.DECODE] * decode
        self.workers: tuple[Worker, ...] = tuple(Worker(f"{role[0]}{index}", role) for index, role in enumerate(roles))
        self.router = ArrowRouter(
            ArrowSettings(**{"ttft_share": 1.0, "low_load": 0.5, "busy_load": 0.7, **settings}), DEPLOYMENT
        )
        self.clock_s = 0.0
        self.count = 0
        self.open: dict[str, tuple[Request, Placement]] = {}

    def arrive(self, tokens: int) -> Placement:
        request = Request(str(self.count), self.clock_s, tokens)
        self.count += 1
        placement = self.router.on_arrival(request, self.workers, self.clock_s)
        self.open[request.id] = request, placement
        return placement

    def prefilled(self, name: str) -> Placement:
        request, placement = self.open.pop(name)
        return self.router.on_prefill_done(request, placement, self.workers, self.clock_s)

    def end(self, name: str, ending: Ending) -> None:
        self.router.on_ended(self.open[name][0], Outcome(ending))

    def pool(self, worker: str) -> str:
        return str(self.router._instances[worker].pool)

    def load(self, worker: str) -> Load:
        return next(w.load for w in self.workers if w.id == worker)

    def decoding(self, worker: str, requests: int, tokens: int) -> None:
        load = self.load(worker)
        load.running_requests, load.running_tokens = requests, tokens


@pytest.fixture
def cluster() -> Callable[..., Cluster]:
    return Cluster
