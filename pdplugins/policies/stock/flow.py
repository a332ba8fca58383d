"""First come, first served: requests go on in order of arrival, as soon as the first one has a place."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.flow import FlowDecision, Go, Hold, Refuse, Waiting
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Outcome
from pdplugins.contracts.workers import Role, WorkerView


class FcfsSettings(BaseModel):
    """Settings of the flow policy ``fcfs``. With the defaults nothing ever waits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    per_worker: int | None = Field(
        None, ge=1, description="requests in service for each worker that takes work, on average; no limit when absent"
    )
    free_kv: bool = Field(False, description="hold until the prompt fits into the free KV tokens of a prefill worker")
    prefill_tokens: int | None = Field(
        None, ge=1, description="hold while every prefill worker has so many prompt tokens queued or in its step"
    )
    decode_requests: int | None = Field(
        None, ge=1, description="hold while every decode worker has so many requests that decode"
    )
    max_wait_s: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="refuse what has waited so long; no limit when absent"
    )


class FirstComeFirstServed:
    """Every call is O(1) in the number of waiting requests. With a limit on loads, `next` also looks at each worker."""

    def __init__(self, settings: FcfsSettings, deployment: Deployment) -> None:
        self._per_worker = settings.per_worker
        self._free_kv = settings.free_kv
        self._prefill_tokens = settings.prefill_tokens
        self._decode_requests = settings.decode_requests
        limits = (settings.prefill_tokens, settings.decode_requests)
        self._looks = settings.free_kv or any(limit is not None for limit in limits)
        """Whether the loads of the workers count at all."""
        self._max_wait_s = settings.max_wait_s
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()
        self._in_service: set[str] = set()

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        """Put a request at the end of the queue. A request that starts again is no longer in service."""
        self._in_service.discard(waiting.request.id)
        self._waiting[waiting.request.id] = waiting

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        """Release the first request if it has a place, refuse it if it has waited too long, else hold."""
        if not self._waiting:
            return Hold()
        request_id, head = next(iter(self._waiting.items()))
        due_s = None if self._max_wait_s is None else head.since_s + self._max_wait_s
        if due_s is not None and now_s >= due_s:
            del self._waiting[request_id]
            return Refuse(request_id, self._max_wait_s or 0.0, f"waited {now_s - head.since_s:.1f} s for a worker")
        if not self._has_place(head.request, workers):
            return Hold(due_s)
        del self._waiting[request_id]
        self._in_service.add(request_id)
        return Go(request_id)

    def on_left(self, request_id: str) -> None:
        """Forget a request that no longer waits."""
        self._waiting.pop(request_id, None)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Count a request as no longer in service."""
        self._in_service.discard(request.id)

    def _has_place(self, request: Request, workers: tuple[WorkerView, ...]) -> bool:
        if self._per_worker is not None and len(self._in_service) >= self._per_worker * len(workers):
            return False
        if not self._looks or not self._in_service:  # with nothing in service no load will become less
            return bool(workers)
        prefill = [worker for worker in workers if can_serve(worker, Role.PREFILL)]
        decode = [worker for worker in workers if can_serve(worker, Role.DECODE)]
        return (
            (not self._free_kv or not prefill or any(_fits(request, worker) for worker in prefill))
            and _below(self._prefill_tokens, prefill, _prompt_tokens)
            and _below(self._decode_requests, decode, _decoding)
        )


def can_serve(worker: WorkerView, phase: Role) -> bool:
    """Return whether `worker` can serve `phase`: by its capabilities, or by its role where those are unknown."""
    if worker.capabilities is None:
        return worker.role is phase
    return worker.capabilities.alone or phase in worker.capabilities.phases


def _below(limit: int | None, workers: Sequence[WorkerView], load: Callable[[WorkerView], float | None]) -> bool:
    """Return whether some worker's load is below `limit`. True without a limit or a worker, and for an unknown load."""
    if limit is None or not workers:
        return True
    loads = map(load, workers)
    return any(value is None or not value >= limit for value in loads)


def _prompt_tokens(worker: WorkerView) -> float:
    """Return the prompt tokens that wait or are computed on `worker`; what the host does not say counts as none."""
    return worker.load.queued_tokens + (worker.load.prefill_tokens or 0)


def _decoding(worker: WorkerView) -> float | None:
    """Return how many requests decode on `worker`; None where the host does not say."""
    return worker.load.decode_requests


def _fits(request: Request, worker: WorkerView) -> bool:
    """Return whether the prompt fits into the free KV cache. True where that is unknown, or the prompt can never fit.

    A host that does not say the free tokens may say the context that decodes: the rest of the capacity is free.
    """
    free, used = worker.free_kv_tokens, worker.load.decode_tokens
    if free is None and used is not None:
        free = int(worker.kv_capacity_tokens - used) if math.isfinite(used) else None
    return free is None or free >= request.prompt_tokens or worker.kv_capacity_tokens < request.prompt_tokens
