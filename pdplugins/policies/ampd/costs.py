"""The three time cost functions of §3 over a performance model: T_pre, T_dec and T_kv.

The paper fits a piecewise alpha-beta model to an offline profile for each function. Here the profile's tables serve.
"""

from __future__ import annotations

from math import inf

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.perf.steps import StepModel, step_model

MEAN_CONTEXT_TOKENS = 1024.0
"""Assumed context of a decoding request where the host does not report it."""


class Costs:
    """Cost estimates for one deployment. A load that the host reports as NaN, or not at all, has infinite cost."""

    def __init__(self, deployment: Deployment) -> None:
        self._perf = perf = deployment.perf
        self._by_role = {Role.PREFILL: deployment.prefill_tp, Role.DECODE: deployment.decode_tp}
        self._sizes = {role: frozenset(perf.tp_sizes(role)) for role in Role}
        self._steps: dict[int, StepModel[float]] = {}

    def degree(self, worker: WorkerView) -> int:
        """Return theta of `worker`, its tensor-parallel size.

        If the host does not report it, or the profile has no times for it, the deployment's size for the role counts.
        """
        tp, role = worker.tp, worker.role
        return tp if tp is not None and tp in self._sizes[role] else self._by_role[role]

    def prefill_s(self, history_tokens: int, new_tokens: int, tp: int) -> float:
        """T_pre(l_hist, l_incr; theta): seconds to prefill `new_tokens` after `history_tokens` in the KV cache.

        If the profile has no prefill of that size, as of a decode worker's, the deployment's size for prefill counts.
        """
        if (steps := self._steps.get(tp)) is None:
            size = tp if tp in self._sizes[Role.PREFILL] else self._by_role[Role.PREFILL]
            steps = self._steps[tp] = step_model(self._perf, size)
        return steps.prefill([(new_tokens, max(history_tokens, 0))])

    def queue_s(self, worker: WorkerView, tp: int) -> float:
        """Sum of T_pre over the prefill queue of `worker`, and over what it prefills now (last terms of Eq. 1 and 2).

        Hosts report only the totals of a queue, so its prompts are assumed to be equally long, after histories of equal
        length. The step that runs counts in full, on a decode worker the local prefill in it.
        """
        load, prefills = worker.load, worker.role is Role.PREFILL
        running = load.running_tokens if prefills else load.prefill_tokens or 0.0
        tokens = known(load.queued_tokens + running)
        if not 0 < tokens < inf:
            return max(tokens, 0.0)
        count = load.queued_requests + (load.running_requests if prefills else running > 0)
        count = count if 1 <= count < inf else 1
        history = load.prefill_history_tokens
        history = history if is_number(history) else 0.0
        return count * self.prefill_s(round(history / count), max(round(tokens / count), 1), tp)

    def decode_s(self, worker: WorkerView, tp: int) -> float:
        """T_dec(b; theta): seconds of one decode step of the batch of `worker`."""
        load = worker.load
        batch, tokens = max(known(load.running_requests), 1.0), known(load.running_tokens)
        if not (batch < inf and tokens < inf):
            return inf
        return self._perf.decode_step_s(batch, tokens / batch or MEAN_CONTEXT_TOKENS, tp)

    def transfer_s(self, tokens: float) -> float:
        """T_kv(l): seconds to move the KV cache of `tokens` tokens; 0 for no tokens, as nothing is sent then."""
        return self._perf.transfer_s(tokens) if tokens > 0 else 0.0


def known(load: float) -> float:
    """Return `load`, or infinity where it is NaN, so that a worker with unknown load is chosen last."""
    return load if load < inf else inf
