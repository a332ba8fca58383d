"""TTFT-aware reordering of the prefill queue of one instance (Algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from pdplugins.policies.ampd.config import AmpdSchedulerSettings
from pdplugins.policies.ampd.costs import prefill_s
from pdplugins.types import BatchPlan, BatchView, Deployment, QueuedPrefill

Order = tuple[int, ...]
"""An ordering pi: places in the window, first to run first."""


class AmpdScheduler:
    """Prefills one task per step: the first of the ordering of the window's tasks that meets most TTFT SLOs.

    One object serves one instance. What it remembers is how often each waiting task was postponed.
    """

    def __init__(self, settings: AmpdSchedulerSettings, deployment: Deployment) -> None:
        self._window = settings.window
        self._perf = deployment.perf
        self._ttft_s = deployment.slo.ttft_s
        self._prefill_tp, self._decode_tp = deployment.prefill_tp, deployment.decode_tp
        self._postponed: dict[str, int] = {}

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Algorithm 2: schedule one task of the queue. Without a queue, decode only."""
        if not view.queue:
            self._postponed.clear()
            return BatchPlan({}, reason="no prefill waits")
        window = view.queue[: self._window]  # line 1
        order, good = self._best_order(window, now_s, self._decode_tp if view.decode_requests else self._prefill_tp)
        for place, index in enumerate(order):  # line 7
            if place > index:
                name = window[index].request.id
                self._postponed[name] = self._postponed.get(name, 0) + 1
        task = window[order[0]]  # line 8
        self._forget(task, view)
        name, tokens = task.request.id, task.remaining_tokens
        return BatchPlan({name: tokens}, reason=f"{name} first: {good} of {len(window)} within the TTFT SLO")  # line 9

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Learn nothing: the cost model is the profile's."""

    def _best_order(self, window: Sequence[QueuedPrefill], now_s: float, tp: int) -> tuple[Order, int]:
        """Lines 2-6: the first of the orderings with the most TTFT-satisfying tasks, and how many those are."""
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
        """Yield the orderings that postpone no task that was postponed w times, the queue's own one first."""
        at_limit = [i for i, task in enumerate(window) if self._postponed.get(task.request.id, 0) >= self._window]
        for order in permutations(range(len(window))):
            if all(order.index(index) <= index for index in at_limit):
                yield order

    def _prefill_s(self, task: QueuedPrefill, tp: int) -> float:
        new, done = task.remaining_tokens, task.done_tokens
        return prefill_s(self._perf, task.request.history_tokens if done is None else done, new, tp)

    def _forget(self, task: QueuedPrefill, view: BatchView) -> None:
        """Drop the counter of a task that runs, and now and then those of tasks that left without."""
        self._postponed.pop(task.request.id, None)
        if len(self._postponed) > 8 * self._window:
            waiting = {queued.request.id for queued in view.queue}
            self._postponed = {name: count for name, count in self._postponed.items() if name in waiting}
