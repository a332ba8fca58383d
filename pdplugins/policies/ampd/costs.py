"""The three time cost functions of §3 over a performance model: T_pre, T_dec and T_kv.

The paper fits a piecewise alpha-beta model to an offline profile for each; the tables of a profile are that.
"""

from __future__ import annotations

from math import inf

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.workers import Role, WorkerView

LONGEST_TOKENS = 1 << 20
"""No queue of more is within any SLO."""
MEAN_CONTEXT_TOKENS = 1024.0
"""Context of a decode whose own is not known."""


class Costs:
    """Estimates of one deployment. What a host does not say, or says as NaN, costs infinitely much."""

    def __init__(self, deployment: Deployment) -> None:
        self._perf = perf = deployment.perf
        self._by_role = {Role.PREFILL: deployment.prefill_tp, Role.DECODE: deployment.decode_tp}
        self._by_capacity = {role: {perf.kv_capacity_tokens(tp): tp for tp in perf.tp_sizes(role)} for role in Role}

    def degree(self, worker: WorkerView) -> int:
        """Return theta of `worker`, its tensor-parallel size.

        A view does not say it. Where degrees are mixed, the profile gives each a KV capacity of its own, which a view
        does say; else a worker has the degree that the deployment gives its role.
        """
        role = worker.role
        return self._by_capacity[role].get(worker.kv_capacity_tokens, self._by_role[role])

    def prefill_s(self, history_tokens: float, new_tokens: float, tp: int) -> float:
        """T_pre(l_hist, l_incr; theta): seconds to prefill `new_tokens` after `history_tokens` in the KV cache."""
        return prefill_s(self._perf, history_tokens, new_tokens, tp)

    def queue_s(self, worker: WorkerView, tp: int) -> float:
        """Sum of T_pre over the prefill queue of `worker` (last terms of Eq. 1 and 2), of which only totals are known.

        Exact for prompts of equal length without history. A prefill worker's step counts as if it had just begun.
        """
        load = worker.load
        tokens = known(load.queued_tokens + (load.running_tokens if worker.role is Role.PREFILL else 0))
        if not 0 < tokens < inf:
            return max(tokens, 0.0)
        count = max(known(load.queued_requests), 1.0)
        return count * self._perf.prefill_s(tokens / count, tp) if count < inf else self._perf.prefill_s(tokens, tp)

    def tokens_within(self, time_s: float, tp: int) -> float:
        """Return the longest prompt with ``T_pre(0, l; theta) <= time_s``, at most `LONGEST_TOKENS`."""
        low, high = 0, LONGEST_TOKENS
        while low < high:
            tokens = (low + high + 1) // 2
            low, high = (tokens, high) if self._perf.prefill_s(tokens, tp) <= time_s else (low, tokens - 1)
        return low

    def decode_s(self, worker: WorkerView, tp: int) -> float:
        """T_dec(b; theta): seconds of one decode step of the batch of `worker`."""
        load = worker.load
        batch, tokens = max(known(load.running_requests), 1.0), known(load.running_tokens)
        if not (batch < inf and tokens < inf):
            return inf
        return self._perf.decode_step_s(batch, tokens / batch or MEAN_CONTEXT_TOKENS, tp)

    def transfer_s(self, tokens: float) -> float:
        """T_kv(l): seconds to move the KV cache of `tokens` tokens; nothing is sent for none."""
        return self._perf.transfer_s(tokens) if tokens > 0 else 0.0


def prefill_s(perf: PerfModel, history_tokens: float, new_tokens: float, tp: int) -> float:
    """T_pre(l_hist, l_incr; theta): a prompt of l_incr tokens alone, and what its tokens attend to before it.

    The latter is the part of T(l_hist + l_incr) that neither T(l_hist) nor T(l_incr) accounts for, unless the profile
    tells attention from the rest of a step.
    """
    if history_tokens <= 0:
        return perf.prefill_s(new_tokens, tp)
    step_s = getattr(perf, "prefill_step_s", None)  # what `pdplugins.perf.table` knows beyond the contract
    if step_s is not None:
        return float(step_s([(new_tokens, history_tokens)], tp))
    alone_s = perf.prefill_s(new_tokens, tp)
    more_s = perf.prefill_s(history_tokens + new_tokens, tp) - perf.prefill_s(history_tokens, tp)
    return alone_s + max(more_s - alone_s + perf.prefill_s(0, tp), 0.0)


def known(load: float) -> float:
    """Return `load`, or infinity where it is NaN: a worker whose load is unknown comes last."""
    return load if load < inf else inf
