"""TTFT-aware reordering of the prefill queue of one instance (Algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations
from math import inf

from pdplugins.contracts.batching import BatchPlan, BatchView, QueuedPrefill
from pdplugins.contracts.deployment import Deployment
from pdplugins.policies.ampd.config import AmpdSchedulerSettings
from pdplugins.policies.ampd.costs import Costs

COSTS_KEPT = 1024
MOST_TASKS = 20
"""Most tasks of one step, so that a decision stays fast."""
Order = tuple[int, ...]
"""An ordering pi: indexes into the window, first to run first."""


class AmpdScheduler:
    """Puts the first w tasks into the order that meets the most TTFT SLOs, and prefills the first of them.

    On a prefill worker the next tasks join its step, as long as that makes no task in the step miss its SLO. A step of
    many tokens takes less time per token. Each instance has its own scheduler, which counts how often tasks were
    postponed.
    """

    def __init__(self, settings: AmpdSchedulerSettings, deployment: Deployment) -> None:
        self._window = settings.window
        self._step_tokens = settings.step_tokens
        self._perf = deployment.perf
        self._ttft_s = deployment.slo.ttft_s
        self._prefill_tp, self._decode_tp = deployment.prefill_tp, deployment.decode_tp
        self._postponed: dict[str, int] = {}
        # The cost of a waiting task does not change, and every step needs it, so it is cached.
        self._t_pre = lru_cache(COSTS_KEPT)(Costs(deployment).prefill_s)

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Algorithm 2: schedule one task of the queue. Without a queue, decode only."""
        if not view.queue:
            self._postponed.clear()
            return BatchPlan({}, reason="no prefill waits")
        tp = self._decode_tp if view.decode_requests else self._prefill_tp
        window = view.queue[: self._window]  # line 1
        order, good = self._best_order(window, now_s, tp)
        for place, index in enumerate(order):  # line 7
            if place > index:
                name = window[index].request.id
                self._postponed[name] = self._postponed.get(name, 0) + 1
        tasks = [window[index] for index in order]  # line 8
        if not view.decode_requests:
            tasks = self._joining(tasks + list(view.queue[self._window : MOST_TASKS]), now_s, tp)
        else:
            del tasks[1:]
        for task in tasks:
            self._postponed.pop(task.request.id, None)
        self._drop_gone(view)
        return BatchPlan(  # line 9
            {task.request.id: task.remaining_tokens for task in tasks},
            reason=f"{tasks[0].request.id} first: {good} of {len(window)} within the TTFT SLO",
        )

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Do nothing: the costs come from the profile."""

    def _best_order(self, window: Sequence[QueuedPrefill], now_s: float, tp: int) -> tuple[Order, int]:
        """Lines 2-6: return the first ordering with the most TTFT-satisfying tasks, and the number of those tasks."""
        took_s = [self._prefill_s(task, tp) for task in window]
        left_s = [self._ttft_s - (now_s - task.queued_s) for task in window]
        best: Order = ()
        best_good = -1
        for order in self._allowed_orders(window):  # lines 2-4
            done_s, good = 0.0, 0
            for index in order:
                done_s += took_s[index]  # Eq. 3
                good += done_s <= left_s[index]  # Eq. 4
            if good > best_good:  # line 6
                best, best_good = order, good
                if good == len(window):
                    break
        return best, best_good

    def _allowed_orders(self, window: Sequence[QueuedPrefill]) -> Iterator[Order]:
        """Yield the orderings that postpone no task already postponed w times, starting with the order of the queue."""
        at_limit = [i for i, task in enumerate(window) if self._postponed.get(task.request.id, 0) >= self._window]
        for order in permutations(range(len(window))):
            if all(order.index(index) <= index for index in at_limit):
                yield order

    def _joining(self, tasks: list[QueuedPrefill], now_s: float, tp: int) -> list[QueuedPrefill]:
        """Return the first task, and the next tasks that can join its step without making any of them late."""
        tokens, apart_s, deadline_s = 0, 0.0, inf
        for count, task in enumerate(tasks):
            tokens += task.remaining_tokens
            alone_s = self._prefill_s(task, tp)
            apart_s += alone_s - self._perf.prefill_s(task.remaining_tokens, tp)
            took_s = self._perf.prefill_s(tokens, tp) + apart_s
            left_s = self._ttft_s - (now_s - task.queued_s)
            if alone_s <= left_s:
                deadline_s = min(deadline_s, left_s)
            if count and (tokens > self._step_tokens or took_s > deadline_s):
                return tasks[:count]
        return tasks

    def _prefill_s(self, task: QueuedPrefill, tp: int) -> float:
        new, done = task.remaining_tokens, task.done_tokens
        return self._t_pre(task.request.history_tokens if done is None else done, new, tp)

    def _drop_gone(self, view: BatchView) -> None:
        """Drop the counters of tasks that left without running, now and then."""
        if len(self._postponed) > 8 * self._window:
            waiting = {queued.request.id for queued in view.queue}
            self._postponed = {name: count for name, count in self._postponed.items() if name in waiting}
