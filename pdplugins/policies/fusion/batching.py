"""The engine's queue: as much prefill as the TPOT SLO leaves, for what can still be in time first.

An engine has the whole TTFT SLO. The pool plans with a share of it, and the rest is for what cannot be foreseen: a
prompt that runs into it is still in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pdplugins.contracts.batching import BatchPlan, BatchView, QueuedPrefill
from pdplugins.policies.dynaserve.batching import DynaServeBatchScheduler, Step, done_tokens
from pdplugins.policies.dynaserve.config import DynaServeBatchSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.deadlines import DeadlineQueue
from pdplugins.policies.fusion.sacrifice import Job
from pdplugins.policies.fusion.saved import Saved

TURN_TOKENS = 256
"""Prompt tokens of the oldest request's turn; of fewer the step would hardly be worth it."""
REORDER = 8.0
"""Changes of the queue for each request in it after which its order is made anew: one step of a hundred."""


class FusionBatchScheduler:
    """Deadlines decide who is prefilled; DynaServe's Algorithm 2 decides how much."""

    def __init__(self, core: Core) -> None:
        settings, deployment = core.settings, core.deployment
        self._core = core
        core.sizes_steps = True
        self._sizes: dict[float, DynaServeBatchScheduler] = {}
        """What sizes steps, by how many times as long as the profile says they take."""
        self.fallback = self._sized(1.0)
        """Composes steps when this raises: as large as the TPOT SLO allows, first come, first served."""
        self._costs = core.costs
        self._drift = core.drift
        self._saved = Saved(core.costs)
        self._worker = ""
        """Whose engine this is, once that is known."""
        self._ttft_s = deployment.slo.ttft_s
        turn_s = TURN_TOKENS / core.costs.alone
        self._queue = DeadlineQueue(settings.oldest_share, REORDER, turn_s)

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Compose the next step."""
        slow = self._drift.of(self._worker)
        saved_s = self._saved.before(view, now_s, slow)
        if not view.queue:
            return BatchPlan({})
        steps, view = self._sized(slow), scaled(view, slow)
        step, budget = steps.begin(view, saved_s / slow)
        if not view.decode_requests:  # then the TPOT limits nothing
            step.alone, budget = True, self._costs.chunk
        elif not self._saved.saves:
            budget = self._within(step, budget, self._core.limit_s(view.decode_context_tokens) / slow)
        if self._saved.waits(view, budget, now_s):
            return BatchPlan({}, reason="saves time for a larger chunk")
        if len(view.queue) < 2:
            plan = self._filled(steps, step, view.queue, budget)
        else:
            order = self._ordered(view, budget, self._speed(step, budget), now_s)
            plan = self._filled(steps, step, order, budget)
            plan = BatchPlan(plan.prefill_tokens, reason=f"{self._queue.late} of {len(view.queue)} are late")
        if self._saved.composes_ahead:
            self._saved.composed(plan, step.predicted_s() * slow, now_s)
        return plan

    def _within(self, step: Step, budget: int, limit_s: float) -> int:
        """Return the part of `budget` with which a step takes `limit_s`; a turn of the oldest prompt always fits."""
        if limit_s >= step.slo_s:
            return budget
        turn_s = step.predicted_s() + self._costs.added_s(min(budget, TURN_TOKENS), step.covered, step.dnum)
        step.slo_s = min(max(limit_s, turn_s), step.slo_s)
        return max(step.max_prefill_allowed(step.covered, budget), min(budget, TURN_TOKENS))

    def _filled(
        self, steps: DynaServeBatchScheduler, step: Step, order: Sequence[QueuedPrefill], budget: int
    ) -> BatchPlan:
        """Return a step of the prompts of `order`. Where nothing decodes, the first may have more than `budget`."""
        if step.alone and order:
            budget = max(budget, min(order[0].remaining_tokens, self._costs.longest))
        return steps.fill(step, order, budget)

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Learn from a step."""
        self._worker = self._drift.whose(plan.prefill_tokens) or self._worker
        slow = self._drift.of(self._worker)
        self._saved.after(view, plan, took_s)
        modelled_s = self._sized(slow).learn(view, plan, took_s / slow)
        self._costs.measured(modelled_s * slow, took_s, decodes=view.decode_requests > 0)
        if self._worker:
            self._drift.measured(self._worker, modelled_s, took_s)

    def _sized(self, slow: float) -> DynaServeBatchScheduler:
        """Return what sizes steps that take `slow` times as long: by the profile's times, within a tighter SLO."""
        if (steps := self._sizes.get(slow)) is None:
            settings, deployment = self._core.settings, self._core.deployment
            steps = self._sizes[slow] = DynaServeBatchScheduler(
                DynaServeBatchSettings(
                    headroom=1 - settings.tpot_share, step_tokens=settings.step_tokens,
                    prefill_only_tokens=self._core.costs.chunk, learning_rate=settings.learning_rate,
                    tbt_slo_s=deployment.slo.tpot_s / slow,
                ),
                deployment,
            )  # fmt: skip
        return steps

    def _ordered(self, view: BatchView, budget: int, speed: float, now_s: float) -> list[QueuedPrefill]:
        """Return whose turn it is in a step of `budget` tokens."""
        queue, chosen = self._queue, list[QueuedPrefill]()
        waiting = {prefill.request.id: prefill for prefill in view.queue}
        known = queue.keys
        new = [prefill for name, prefill in waiting.items() if name not in known]
        if len(known) + len(new) > len(waiting):
            for gone in [name for name in known if name not in waiting]:
                queue.remove(gone)
        for prefill in new:
            queue.push(self._job(prefill), now_s, speed)
        while budget > 0 and (job := queue.first(now_s, speed)) is not None:
            prefill = waiting[job.key]
            tokens = max(prefill.remaining_tokens, 1)
            queue.start(job, min(budget / tokens, 1.0))
            chosen.append(prefill)
            budget -= tokens
        return chosen

    def _job(self, prefill: QueuedPrefill) -> Job:
        request, done, left = prefill.request, done_tokens(prefill), prefill.remaining_tokens
        cost_s = self._costs.prefill_s(done + left, done) if done else self._costs.whole_s(max(left, 0))
        cost_s *= self._drift.of(self._worker)
        terms, since_s = request.terms, request.arrival_s
        if terms is None:
            return Job(since_s + self._ttft_s, since_s, request.id, cost_s)
        ttft_s = self._ttft_s if terms.ttft_s is None else terms.ttft_s
        return self._queue.asked(Job(since_s + ttft_s, since_s, request.id, cost_s), terms)

    def _speed(self, step: Step, budget: int) -> float:
        """Return the share of an idle worker's prefill that a step of `budget` tokens leaves beside its decodes."""
        return min(max(budget, 1) / step.slo_s / self._costs.alone, 1.0) if step.dnum else 1.0


def scaled(view: BatchView, slow: float) -> BatchView:
    """Return the view of an engine whose steps take `slow` times as long, in times of the profile."""
    if slow == 1 or not view.decode_tpots_s:
        return view
    return replace(view, decode_tpots_s=tuple(tpot_s / slow for tpot_s in view.decode_tpots_s))
