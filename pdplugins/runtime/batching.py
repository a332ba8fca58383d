"""The safe batch scheduler: the engine goes on when its batch scheduler fails.

When the policy raises, or its plan cannot be followed, its own fallback composes that step, else the engine by itself.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from time import perf_counter_ns

from pdplugins.contracts.batching import BatchPlan, BatchScheduler, BatchView, FallsBackToBatches
from pdplugins.contracts.kinds import Kind
from pdplugins.runtime.decision import Decision, Fault, Journal
from pdplugins.runtime.faults import SafePolicy, Tally, fallback_of, one_line, raised


class SafeBatchScheduler(SafePolicy):
    """A batch scheduler that never raises. A plan may name requests that do not wait any more: hosts skip these.

    :param tally: counts; its own when None. The schedulers of several engines may share one.
    """

    __slots__ = ("_fallback", "_journal", "policy")

    def __init__(
        self, scheduler: BatchScheduler, *, journal: Journal | None = None, tally: Tally | None = None
    ) -> None:
        super().__init__(Kind.BATCH_SCHEDULER, journal, tally)
        self.policy = scheduler
        self._fallback: BatchScheduler | None = fallback_of(scheduler, FallsBackToBatches, "next_batch")
        self._journal = journal

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan | None:
        """Return the plan for the next step; None when the engine must compose it by itself. Never raises."""
        tally = self.tally
        tally.calls += 1
        plan, fault = None, None
        began = perf_counter_ns()
        try:
            answer: object = self.policy.next_batch(view, now_s)
        except Exception as error:  # a policy that fails must not stop serving
            took = perf_counter_ns() - began
            fault = Fault.POLICY_ERROR
            tally.fault(fault, raised(self.policy, error), error)
            plan = self._simpler(view, now_s)
        else:
            took = perf_counter_ns() - began
            try:
                plan = _checked(answer)
            except Exception as error:
                fault = Fault.UNSAFE_ANSWER
                tally.fault(fault, f"{type(self.policy).__name__}: {one_line(error)}")
        tally.ns += took
        journal = self._journal
        if journal is not None and (fault is not None or not journal.skips(tally.kind, took * 1e-9)):
            seen = {"view": view, "now_s": now_s}
            journal.decided(Decision(Kind.BATCH_SCHEDULER, plan, fault, took / 1e9), seen)
        return plan

    def _simpler(self, view: BatchView, now_s: float) -> BatchPlan | None:
        """Return the plan of the policy's own fallback; None where it has none, or that fails too."""
        if self._fallback is None:
            return None
        try:
            return _checked(self._fallback.next_batch(view, now_s))
        except Exception as error:
            self.tally.fault(Fault.POLICY_ERROR, raised(self._fallback, error), error)
            return None

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Let the policy learn from a step that has completed. Never raises."""
        tally = self.tally
        tally.calls += 1
        began = perf_counter_ns()
        try:
            self.policy.on_step(view, plan, took_s)
        except Exception as error:
            tally.fault(Fault.POLICY_ERROR, raised(self.policy, error), error)
        tally.ns += perf_counter_ns() - began


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
    return BatchPlan(tokens, wait_s, one_line(plan.reason))
