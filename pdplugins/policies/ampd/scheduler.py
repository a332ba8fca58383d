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
    postponed: in how many steps a task behind them in the queue ran, and they did not. A host may refuse a planned task
    for want of KV capacity, so only what it reports as run counts.
    """

    def __init__(self, settings: AmpdSchedulerSettings, deployment: Deployment) -> None:
        self._window = settings.window
        self._step_tokens = settings.step_tokens
        self._perf = deployment.perf
        self._ttft_s = deployment.slo.ttft_s
        self._prefill_tp, self._decode_tp = deployment.prefill_tp, deployment.decode_tp
        self._postponed: dict[str, int] = {}
        self._planned: dict[str, list[str]] = {}
        """Tasks of the last plan, and those before each in the queue."""
        self._running: dict[str, list[str]] = {}
        """The same of the plan before, as far as its tasks left the queue: their host may report late that they ran."""
        # The cost of a waiting task does not change, and every step needs it, so it is cached.
        self._t_pre = lru_cache(COSTS_KEPT)(Costs(deployment).prefill_s)

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Algorithm 2: schedule one task of the queue. Without a queue, decode only."""
        if not view.queue:
            return BatchPlan({}, reason="no prefill waits")
        tp = self._decode_tp if view.decode_requests else self._prefill_tp
        head = view.queue[:MOST_TASKS]
        names = [task.request.id for task in head]
        self._running = {name: before for name, before in self._planned.items() if name not in names}
        window = head[: self._window]  # line 1
        order, good = self._best_order(window, now_s, tp)
        tasks = [window[index] for index in order]  # line 8
        if not view.decode_requests:
            tasks = self._joining(tasks + list(head[self._window :]), now_s, tp)
        else:
            del tasks[1:]
        chosen = {task.request.id: task.remaining_tokens for task in tasks}
        self._planned = {name: names[:place] for place, name in enumerate(names) if name in chosen}
        self._drop_gone(view)
        first = names[order[0]]
        return BatchPlan(chosen, reason=f"{first} first: {good} of {len(window)} within the TTFT SLO")  # line 9

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Line 7: count a postponement of each task that waits still, while one behind it has run in this step."""
        ran = plan.prefill_tokens
        before = [self._planned.pop(name, []) or self._running.pop(name, []) for name in ran]
        for name in {name for names in before for name in names}.difference(ran):
            self._postponed[name] = self._postponed.get(name, 0) + 1

    def _at_limit(self, name: str) -> bool:
        """Whether a task has been postponed w times, those in progress included."""
        in_progress = any(name in before for before in self._running.values())
        return self._postponed.get(name, 0) + in_progress >= self._window

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
        at_limit = [i for i, task in enumerate(window) if self._at_limit(task.request.id)]
        for order in permutations(range(len(window))):
            if all(order.index(index) <= index for index in at_limit):
                yield order

    def _joining(self, tasks: list[QueuedPrefill], now_s: float, tp: int) -> list[QueuedPrefill]:
        """Return the first task, and the next tasks that can join its step without making any of them late.

        None joins behind a task that was postponed w times: if the host then refuses that one, they would overtake it.
        """
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
            if self._at_limit(task.request.id):
                return tasks[: count + 1]
        return tasks

    def _prefill_s(self, task: QueuedPrefill, tp: int) -> float:
        new, done = task.remaining_tokens, task.done_tokens
        return self._t_pre(task.request.history_tokens if done is None else done, new, tp)

    def _drop_gone(self, view: BatchView) -> None:
        """Drop the counters of tasks that have left the queue, now and then."""
        if len(self._postponed) > 8 * self._window:
            waiting = {queued.request.id for queued in view.queue}
            self._postponed = {name: count for name, count in self._postponed.items() if name in waiting}
