"""The three time cost functions of §3 over a performance model: T_pre, T_dec and T_kv.

The paper fits a piecewise alpha-beta model to an offline profile for each; the tables of a profile are that.
"""

from __future__ import annotations

from math import inf

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.perf.steps import StepModel, step_model
from pdplugins.policies._common import largest_within

LONGEST_TOKENS = 1 << 20
"""A longer prompt meets no TTFT SLO."""
MEAN_CONTEXT_TOKENS = 1024.0
"""Context of a decode whose own is not known."""


class Costs:
    """Estimates of one deployment. What a host does not say, or says as NaN, costs infinitely much."""

    def __init__(self, deployment: Deployment) -> None:
        self._perf = perf = deployment.perf
        self._by_role = {Role.PREFILL: deployment.prefill_tp, Role.DECODE: deployment.decode_tp}
        self._sizes = {role: frozenset(perf.tp_sizes(role)) for role in Role}
        self._steps: dict[int, StepModel[float]] = {}

    def degree(self, worker: WorkerView) -> int:
        """Return theta of `worker`, its tensor-parallel size.

        It is that of its role in the deployment where the host does not say it, or the profile has no times for it.
        """
        tp, role = worker.tp, worker.role
        return tp if tp is not None and tp in self._sizes[role] else self._by_role[role]

    def prefill_s(self, history_tokens: int, new_tokens: int, tp: int) -> float:
        """T_pre(l_hist, l_incr; theta): seconds to prefill `new_tokens` after `history_tokens` in the KV cache."""
        if (steps := self._steps.get(tp)) is None:
            steps = self._steps[tp] = step_model(self._perf, tp)
        return steps.prefill([(new_tokens, max(history_tokens, 0))])

    def queue_s(self, worker: WorkerView, tp: int) -> float:
        """Sum of T_pre over the prefill queue of `worker` (last terms of Eq. 1 and 2).

        Hosts report the totals of a queue only, so its prompts are taken as equally long and without history. On a
        prefill worker the step that runs now counts in full.
        """
        load = worker.load
        tokens = known(load.queued_tokens + (load.running_tokens if worker.role is Role.PREFILL else 0))
        if not 0 < tokens < inf:
            return max(tokens, 0.0)
        count = max(known(load.queued_requests), 1.0)
        return count * self._perf.prefill_s(tokens / count, tp) if count < inf else self._perf.prefill_s(tokens, tp)

    def tokens_within(self, time_s: float, tp: int) -> int:
        """Return the longest prompt with ``T_pre(0, l; theta) <= time_s``, at most `LONGEST_TOKENS`."""
        return largest_within(time_s, LONGEST_TOKENS, lambda tokens: self._perf.prefill_s(tokens, tp))

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


def known(load: float) -> float:
    """Return `load`, or infinity where it is NaN: a worker whose load is unknown comes last."""
    return load if load < inf else inf
