"""The engine's queue: as much prefill as the TPOT SLO leaves, for what can still be in time first."""

from __future__ import annotations

from dataclasses import replace

from pdplugins.contracts.batching import BatchPlan, BatchView, QueuedPrefill
from pdplugins.contracts.deployment import Deployment
from pdplugins.policies.dynaserve.batching import DynaServeBatchScheduler, done_tokens
from pdplugins.policies.dynaserve.config import DynaServeBatchSettings
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.costs import Costs
from pdplugins.policies.fusion.deadlines import Job, in_time

LOOKED_AT = 256
"""Queued requests that are put in order. What is behind them waits its turn."""


class FusionBatchScheduler:
    """Deadlines decide who is prefilled; DynaServe's Algorithm 2 decides how much."""

    def __init__(self, settings: FusionSettings, deployment: Deployment) -> None:
        self._steps = DynaServeBatchScheduler(
            DynaServeBatchSettings(
                headroom=1 - settings.tpot_share, step_tokens=settings.step_tokens,
                prefill_only_tokens=settings.prefill_only_tokens, learning_rate=settings.learning_rate,
            ),
            deployment,
        )  # fmt: skip
        self._costs = Costs(settings, deployment)
        self._ttft_s = deployment.slo.ttft_s * settings.ttft_share
        self._share = settings.oldest_share
        self._owed_tokens = 0.0
        self._oldest: str | None = None

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Compose the next step."""
        if len(view.queue) > 1:
            view = replace(view, queue=self._ordered(view, now_s))
        plan = self._steps.next_batch(view, now_s)
        self._account(plan)
        return plan

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Learn from a step."""
        self._steps.on_step(view, plan, took_s)

    def _ordered(self, view: BatchView, now_s: float) -> tuple[QueuedPrefill, ...]:
        queue = view.queue[:LOOKED_AT]
        waiting = {prefill.request.id: prefill for prefill in queue}
        oldest = min(queue, key=lambda prefill: (prefill.request.arrival_s, prefill.request.id))
        self._oldest = oldest.request.id
        speed = self._speed(view)
        jobs = [self._job(prefill) for prefill in queue]
        timely = [waiting.pop(job.key) for job in in_time((j for j in jobs if j.due_s > now_s), now_s, speed)]
        late = sorted(waiting.values(), key=lambda prefill: prefill.request.arrival_s)
        order = [*timely, *late]
        if self._share and self._owed_tokens >= min(oldest.remaining_tokens, 256):
            order.remove(oldest)
            order.insert(0, oldest)
        return (*order, *view.queue[LOOKED_AT:])

    def _job(self, prefill: QueuedPrefill) -> Job:
        done = done_tokens(prefill)
        cost_s = self._costs.prefill_s(done + prefill.remaining_tokens, done)
        arrived_s = prefill.request.arrival_s
        return Job(prefill.request.id, arrived_s, arrived_s + self._ttft_s, cost_s)

    def _speed(self, view: BatchView) -> float:
        """Return the share of an idle worker's prefill that is left beside the decodes."""
        alone = self._costs.beside(0, 0)
        return min(self._costs.beside(view.decode_requests, view.decode_context_tokens) / alone, 1.0)

    def _account(self, plan: BatchPlan) -> None:
        tokens = sum(plan.prefill_tokens.values())
        given = plan.prefill_tokens.get(self._oldest or "", 0)
        self._owed_tokens = max(self._owed_tokens + self._share * tokens - given, 0.0)
