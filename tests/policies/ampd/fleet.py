"""Workers, tasks and a performance model with times that a reader can check by head."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdplugins.types import Capabilities, Deployment, PlainPerf, QueuedPrefill, Request, Role, Slo, WorkerLoad

TOKEN_S = 0.001


class Linear(PlainPerf):
    """A millisecond a token, attention 1 us for each pair of a new token and a thousand earlier ones; no constants."""

    def prefill_s(self, tokens: float, tp: int) -> float:
        return (tokens * TOKEN_S + tokens * tokens * 1e-9) / tp

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        return (0.010 + 0.001 * batch) / tp

    def transfer_s(self, tokens: float) -> float:
        return 0.002 + tokens * 1e-5

    def kv_capacity_tokens(self, tp: int) -> int:
        return 100_000 * tp

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        return 1e9

    def tp_sizes(self, role: Role) -> tuple[int, ...]:
        return (1, 2, 4)


PERF = Linear()
DEPLOYMENT = Deployment(Slo(1.0, 0.1), PERF, gpu_budget=16, prefill_tp=1, decode_tp=1, startup_s=30.0, max_batch=64)


@dataclass
class Worker:
    id: str
    role: Role
    load: WorkerLoad
    kv_capacity_tokens: int = 100_000
    cached_blocks: set[int] = field(default_factory=set)
    tp: int | None = None
    capabilities: Capabilities | None = None
    free_kv_tokens: int | None = None


def worker(
    name: str,
    ttft_s: float | None = None,
    tbt_s: float | None = None,
    queued: float = 0,
    running: float = 0,
    capacity: int = 100_000,
    tp: int | None = None,
) -> Worker:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    load = WorkerLoad(
        name,
        queued_requests=1 if queued else 0,
        queued_tokens=queued,
        running_requests=1 if running else 0,
        running_tokens=running,
        recent_ttft_s=ttft_s,
        recent_tbt_s=tbt_s,
    )
    return Worker(name, role, load, capacity, tp=tp)


def task(name: str, new: int, queued_s: float = 0.0, history: int = 0) -> QueuedPrefill:
    request = Request(name, queued_s, history + new, history_tokens=history)
    return QueuedPrefill(request, new, queued_s, history)
