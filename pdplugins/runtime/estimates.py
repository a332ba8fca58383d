"""What a placement or a pool would come to by the performance profile alone: made for comparing two of them.

A TTFT is the queue of the worker, then the prompt, then the transfer. A TPOT is one decode step with the request in it.
The share of a pool's requests that keep the objectives is that of an M/M/c queue before prefill, times whether the
decode batch that Little's law gives fits and is fast enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.planner import Traffic
from pdplugins.contracts.workers import Role

BLOCK_TOKENS = 512
"""Tokens of one prefix block."""
TURNS = 50
"""Steps of the fixed point of the decode batch."""


class PlacementEstimate:
    """Estimates placements from what a router saw, as a decision log has it."""

    def __init__(self, deployment: Deployment) -> None:
        self._perf = deployment.perf
        self._tp = {
            role: (deployment.perf.tp_sizes(role), tp)
            for role, tp in ((Role.PREFILL, deployment.prefill_tp), (Role.DECODE, deployment.decode_tp))
        }

    def ttft_s(self, placement: Mapping[str, Any], request: Mapping[str, Any], workers: Mapping[str, Any]) -> float:
        """Return the estimated seconds to the first token."""
        first, second = workers[placement["first"]], workers[placement["second"]]
        prompt = int(request["prompt_tokens"])
        new = max(prompt - _cached(request, first), 1)
        ahead = min(max(int(placement["split"]), 0), prompt)
        if ahead < prompt and first is not second:  # the second worker computes the rest of the prompt
            part = max(new - (prompt - ahead), 1)
            begun_s = self._queue_s(first) + self._prefill_s(part, first) + self._perf.transfer_s(ahead)
            return max(begun_s, self._queue_s(second)) + self._prefill_s(prompt - ahead, second)
        moved_s = 0.0 if first is second else self._perf.transfer_s(prompt)
        return self._queue_s(first) + self._prefill_s(new, first) + moved_s

    def tpot_s(self, placement: Mapping[str, Any], request: Mapping[str, Any], workers: Mapping[str, Any]) -> float:
        """Return the estimated seconds of one decode step with the request in it."""
        worker = workers[placement["second"]]
        load = worker.get("load", {})
        batch = float(load.get("running_requests", 0)) + 1
        context = (float(load.get("running_tokens", 0)) + request["prompt_tokens"]) / batch
        return self._perf.decode_step_s(batch, context, self._size(worker, Role.DECODE))

    def _queue_s(self, worker: Mapping[str, Any]) -> float:
        load = worker.get("load", {})
        queued, tokens = float(load.get("queued_requests", 0)), float(load.get("queued_tokens", 0))
        return queued * self._prefill_s(tokens / queued, worker) if queued > 0 and tokens > 0 else 0.0

    def _prefill_s(self, tokens: float, worker: Mapping[str, Any]) -> float:
        return self._perf.prefill_s(tokens, self._size(worker, Role.PREFILL))

    def _size(self, worker: Mapping[str, Any], role: Role) -> int:
        """Return the worker's own TP size where the profile knows it, else that of the deployment."""
        sizes, usual = self._tp[role]
        own = worker.get("tp")
        return own if own in sizes else usual


def _cached(request: Mapping[str, Any], worker: Mapping[str, Any]) -> int:
    """Return the prompt tokens whose KV cache a worker should have."""
    history = request.get("history_tokens", 0) if request.get("bound_worker") == worker["id"] else 0
    return max(int(history), int(worker.get("cached_blocks", 0)) * BLOCK_TOKENS)


def attainment(deployment: Deployment, traffic: Traffic, prefill: int, decode: int) -> float | None:
    """Return the estimated share of the requests that keep both objectives, if this went on; None without lengths."""
    if traffic.isl_tokens is None or traffic.osl_tokens is None or traffic.rate <= 0:
        return None
    if not (prefill and decode):  # one role serves both phases: no such queue
        return None
    prompt_s = deployment.perf.prefill_s(
        traffic.isl_tokens * (1 - (traffic.prefix_hit_rate or 0)), deployment.prefill_tp
    )
    left_s = deployment.slo.ttft_s - prompt_s - deployment.perf.transfer_s(traffic.isl_tokens)
    if left_s < 0 or not _decodes(deployment, traffic, decode):
        return 0.0
    return 1 - waits_longer(left_s, traffic.rate, prompt_s, prefill)


def waits_longer(than_s: float, rate: float, service_s: float, servers: int) -> float:
    """Return the probability of such a wait in an M/M/c queue; 1 where it has no steady state (Erlang C)."""
    offered = rate * service_s
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    waits = blocked / (1 - offered / servers * (1 - blocked))
    return waits * math.exp(-(servers - offered) * than_s / service_s)


def _decodes(deployment: Deployment, traffic: Traffic, workers: int) -> bool:
    """Tell whether the batch of each decode worker fits, and keeps the objective."""
    assert traffic.isl_tokens is not None and traffic.osl_tokens is not None  # noqa: S101, PT018 - the caller looked
    context = traffic.isl_tokens + traffic.osl_tokens / 2
    tp, perf = deployment.decode_tp, deployment.perf
    capacity = deployment.kv_tokens or perf.kv_capacity_tokens(tp)
    most = min(deployment.max_batch, capacity / context)
    batch = 1.0
    for _ in range(TURNS):
        step_s = perf.decode_step_s(max(batch, 1.0), context, tp)
        batch = traffic.rate * traffic.osl_tokens * step_s / workers
        if batch > most or step_s > deployment.slo.tpot_s:
            return False
    return True
