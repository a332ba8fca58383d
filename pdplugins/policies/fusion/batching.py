"""The engine's queue: as much prefill as the TPOT SLO leaves, for what can still be in time first."""

from __future__ import annotations

from dataclasses import replace

from pdplugins.contracts.batching import BatchPlan, BatchView, QueuedPrefill
from pdplugins.contracts.deployment import Deployment
from pdplugins.policies.dynaserve.batching import DynaServeBatchScheduler, done_tokens
from pdplugins.policies.dynaserve.config import DynaServeBatchSettings
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.costs import Costs
from pdplugins.policies.fusion.deadlines import Job, Owed, in_time

LOOKED_AT = 256
"""Queued requests that are put in order. What is behind them waits its turn."""
TURN_TOKENS = 256
"""Prompt tokens of the oldest request's turn; of fewer the step would hardly be worth it."""


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
        self._owed = Owed(settings.oldest_share)
        self._jobs: dict[str, tuple[int, Job]] = {}
        """By request: the tokens that remain, and its job."""

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Compose the next step."""
        if len(view.queue) < 2:
            return self._steps.next_batch(view, now_s)
        queue = view.queue[:LOOKED_AT]
        oldest = min(queue, key=lambda prefill: (prefill.request.arrival_s, prefill.request.id))
        order = self._ordered(queue, self._speed(view), now_s)
        if turn := self._owed.covers(min(oldest.remaining_tokens, TURN_TOKENS)):
            order.remove(oldest)
            order.insert(0, oldest)
        plan = self._steps.next_batch(replace(view, queue=(*order, *view.queue[LOOKED_AT:])), now_s)
        self._owed.worked(sum(plan.prefill_tokens.values()))
        if turn:
            self._owed.paid(plan.prefill_tokens.get(oldest.request.id, 0))
        return plan

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Learn from a step."""
        self._steps.on_step(view, plan, took_s)

    def _ordered(self, queue: tuple[QueuedPrefill, ...], speed: float, now_s: float) -> list[QueuedPrefill]:
        """Return those that can be in time by deadline, then the late ones by age."""
        waiting = {prefill.request.id: prefill for prefill in queue}
        self._jobs = jobs = {name: self._job(prefill) for name, prefill in waiting.items()}
        open_jobs = (job for _, job in jobs.values() if job.due_s > now_s)
        timely = [waiting.pop(job.key) for job in in_time(open_jobs, now_s, speed)]
        return [*timely, *sorted(waiting.values(), key=lambda prefill: prefill.request.arrival_s)]

    def _job(self, prefill: QueuedPrefill) -> tuple[int, Job]:
        """Return the tokens that remain of a prompt, and its job: the one before while they are the same."""
        request, remaining = prefill.request, prefill.remaining_tokens
        known = self._jobs.get(request.id)
        if known is not None and known[0] == remaining:
            return known
        done = done_tokens(prefill)
        cost_s = self._costs.prefill_s(done + remaining, done)
        return remaining, Job(request.id, request.arrival_s, request.arrival_s + self._ttft_s, cost_s)

    def _speed(self, view: BatchView) -> float:
        """Return the share of an idle worker's prefill that is left beside the decodes."""
        beside = self._costs.beside(max(view.decode_requests, 0), max(view.decode_context_tokens, 0))
        return min(beside / self._costs.alone, 1.0)
