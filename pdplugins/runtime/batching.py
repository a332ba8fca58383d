"""The safe batch scheduler: the engine goes on when its batch scheduler fails.

When the policy raises, its own fallback composes that step, else the engine by itself. The engine does so too where a
plan cannot be followed, and where it has been left idle for too long while prompts wait.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

from pdplugins.contracts.batching import BatchPlan, BatchScheduler, BatchView, FallsBackToBatches
from pdplugins.contracts.kinds import Kind
from pdplugins.runtime.decision import Decision, Journal
from pdplugins.runtime.faults import Guard, SafePolicy, Tally, fallback_of, one_line

MOST_IDLE_S = 60.0
"""Seconds that a policy may leave an engine idle while prompts wait."""


class SafeBatchScheduler(SafePolicy[BatchScheduler]):
    """A batch scheduler that never raises. A plan may name requests that do not wait any more: hosts skip these.

    The schedulers of several engines may share a `tally`.
    """

    __slots__ = ("_fallback", "_holds", "_idle_s")

    def __init__(
        self, scheduler: BatchScheduler, *, journal: Journal | None = None, tally: Tally | None = None
    ) -> None:
        super().__init__(Kind.BATCH_SCHEDULER, scheduler, journal, tally)
        self._fallback: BatchScheduler | None = fallback_of(scheduler, FallsBackToBatches, "next_batch")
        self._idle_s: float | None = None
        """Since when the engine has been idle while prompts wait; None where it is not."""
        self._holds = False
        """Whether prompts have waited for too long there, and the policy has let none run since."""

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan | None:
        """Return the plan for the next step; None when the engine must compose it by itself. Never raises."""
        plan: BatchPlan | None = None
        answer, fault, took = self._asked(lambda: self.policy.next_batch(view, now_s))
        if fault is not None:
            plan = self._simpler(view, now_s)
        else:
            try:
                plan = self._lively(_checked(answer), view, now_s)
            except Exception as error:
                fault = self._unsafe(f"{type(self.policy).__name__}: {one_line(error)}")
        journal = self._journal
        if journal is not None and (fault is not None or not journal.skips(Kind.BATCH_SCHEDULER, took * 1e-9)):
            seen = {"view": view, "now_s": now_s}
            journal.decided(Decision(Kind.BATCH_SCHEDULER, plan, fault, took / 1e9), seen)
        return plan

    def _lively(self, plan: BatchPlan, view: BatchView, now_s: float) -> BatchPlan:
        """Return `plan`. Raises ValueError where it leaves the engine idle that has been so for too long already."""
        tokens = plan.prefill_tokens
        busy = view.decode_requests or not view.queue or any(tokens.get(item.request.id) for item in view.queue)
        if busy or not (plan.wait_s or any(tokens.values())):  # at a plan for nothing at all hosts go on at once
            self._idle_s, self._holds = None, False
            return plan
        self._idle_s = now_s if self._idle_s is None else min(self._idle_s, now_s)
        since_s = max(self._idle_s, min(item.queued_s for item in view.queue))
        self._holds = self._holds or now_s - since_s >= MOST_IDLE_S
        if self._holds:
            raise ValueError(f"it lets none of {len(view.queue)} prompts run, and the engine is idle")
        return plan

    def _simpler(self, view: BatchView, now_s: float) -> BatchPlan | None:
        """Return the plan of the policy's own fallback; None where it has none, or that fails too."""
        if self._fallback is not None:
            with Guard(self._fallback, self.tally):
                return self._lively(_checked(self._fallback.next_batch(view, now_s)), view, now_s)
        return None

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Let the policy learn from a step that has completed. Never raises."""
        self._told(lambda: self.policy.on_step(view, plan, took_s))


def _checked(plan: object) -> BatchPlan:
    """Return `plan` as plain numbers. Raises ValueError or TypeError, in one line, when it is no plan to follow."""
    if not isinstance(plan, BatchPlan):
        raise TypeError(f"the answer is {type(plan).__name__}, not BatchPlan")
    if not isinstance(plan.prefill_tokens, Mapping):
        raise TypeError(f"prefill_tokens is {type(plan.prefill_tokens).__name__}, not a mapping")
    wait_s = float(plan.wait_s)
    if not math.isfinite(wait_s) or wait_s < 0:
        raise ValueError(f"wait_s is {wait_s}, not a time to wait")
    tokens = {name: operator.index(count) for name, count in plan.prefill_tokens.items()}
    for name, count in tokens.items():
        if count < 0:
            raise ValueError(f"{count} tokens for request {name}")
    return BatchPlan(tokens, min(wait_s, MOST_IDLE_S), one_line(plan.reason))
