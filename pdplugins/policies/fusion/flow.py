"""What waits before the workers: deadlines decide who goes on, as soon as a worker can start it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pdplugins.contracts.flow import FlowDecision, Go, Hold, Refuse, Waiting
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Outcome
from pdplugins.contracts.workers import ANYTHING, Role, WorkerView
from pdplugins.policies.fusion.choices import Turns
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.deadlines import DeadlineQueue
from pdplugins.policies.fusion.pace import PoolPace
from pdplugins.policies.fusion.sacrifice import Job

LEAST_RETRY_S = 1.0
"""Least time after which a refused client may try again."""
HOLD = Hold()


class FusionFlow:
    """`pdplugins.types.Flow` of fusion. It binds late: a request stays here until a worker can start it."""

    def __init__(self, core: Core) -> None:
        settings = core.settings
        self._core = core
        self._costs = core.costs
        self._present = core.present
        self._queue = DeadlineQueue(settings.oldest_share)
        self._pace = PoolPace()
        self._speed = 1.0
        self._ahead_s = core.ahead_s
        self._refuses = settings.overload == "refuse"
        self._requests: dict[str, Request] = {}
        self._hopeless: dict[str, None] = {}
        """Requests whose prompt no KV cache holds: their host refuses them, so they need no turn."""
        self._released: set[str] = set()
        self._turns = Turns(settings.choices)
        self._looked_at: Sequence[WorkerView] = ()
        self._new = False
        """Whether all that waits came after a lull, and is judged by the speed of before it."""

    @property
    def signals(self) -> Mapping[str, float]:
        """Named numbers behind the decisions."""
        return {
            "late": float(self._queue.late),
            "pace": self._pace.ratio,
            "speed_workers": self._speed,
            "longest_wait_s": self._core.longest_wait_s,
        }

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        """Take in a request."""
        request = waiting.request
        self._released.discard(request.id)
        if not self._present.holds(request):
            self._hopeless[request.id] = None
            return
        known = self._core.known(request, self._looked_at)
        cost_s = self._costs.prefill_s(request.prompt_tokens, known) * self._core.drift.typical
        due_s = waiting.since_s + (waiting.due_s - waiting.since_s) * self._core.settings.ttft_share
        # Hosts do not ask while nothing waits. Where nobody is refused, a pace that is too low changes only the order.
        if self._refuses and not self._requests:
            self._pace.idle(now_s)
            self._new = True
        self._requests[request.id] = request
        job = self._queue.asked(Job(due_s, waiting.since_s, request.id, cost_s), request.terms)
        self._queue.push(job, now_s, self._speed)

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        """Let the next request go on if a worker can start it."""
        if not workers:
            return HOLD
        self._present.at(workers, now_s)
        if self._hopeless:
            return Go(self._hopeless.popitem()[0], "no KV cache holds its prompt")
        looked_at = self._looked_at = self._turns.of(workers)
        self._speed = self._pace.speed(self._predicted(looked_at) * len(workers) / len(looked_at), now_s)
        if self._new:
            self._queue.order(now_s, self._speed)
            self._new = False
        only_prefills = any(worker.role is Role.PREFILL for worker in looked_at)
        job = self._queue.first(now_s + self._starts_in_s(only_prefills=only_prefills), self._speed)
        if job is None:
            self._pace.idle(now_s)
            return HOLD
        if self._refuses and (late := self._queue.first_late()) is not None:
            return self._refused(late)
        if self._released and not self._has_place(workers, looked_at, job, only_prefills):
            return Hold(now_s + max(self._ahead_s, self._costs.step_s))
        why = self._queue.why(job, now_s)
        self._queue.start(job)
        self._pace.started(job.cost_s)
        self._released.add(job.key)
        self._core.longest_wait_s = max(self._core.longest_wait_s, now_s - job.since_s)
        self._core.began(self._requests.pop(job.key), looked_at, now_s)
        return Go(job.key, why)

    def on_left(self, request_id: str) -> None:
        """Forget a request whose client has gone away."""
        self._hopeless.pop(request_id, None)
        self._queue.remove(request_id)
        self._requests.pop(request_id, None)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Count a request as no longer in service."""
        self._released.discard(request.id)
        self._core.ended(request, outcome)

    def _refused(self, job: Job) -> Refuse:
        self.on_left(job.key)
        retry_s = max(self._queue.work_s / self._speed, LEAST_RETRY_S)
        return Refuse(
            job.key, retry_s, f"its first token cannot come in time: {self._queue.work_s:.1f} s of prefill wait"
        )

    def _predicted(self, workers: Sequence[WorkerView]) -> float:
        """Return the prefill speed of these workers, in idle workers, beside what they decode."""
        return sum(self._core.beside(worker) for worker in workers if _prefills(worker)) / self._core.alone

    def _starts_in_s(self, *, only_prefills: bool) -> float:
        """Return how long what goes on now may wait in a worker's queue.

        On one that prefills only that is a full step. With less queued its steps would not be full, and mixtures of
        experts read most weights whatever a step has.
        """
        step_s = self._costs.chunk / self._core.alone if only_prefills else 0.0
        return max(self._ahead_s, step_s)

    def _has_place(
        self, workers: tuple[WorkerView, ...], looked_at: Sequence[WorkerView], job: Job, only_prefills: bool
    ) -> bool:
        full = len(self._released) >= self._core.most_in_service(workers)
        soon_s = self._starts_in_s(only_prefills=False), self._starts_in_s(only_prefills=True)
        has = not full and any(
            self._can_start(worker, job, soon_s[worker.role is Role.PREFILL], only_in_time=only_prefills)
            for worker in looked_at
        )
        if not has:
            self._core.feedback.held(full=full)
        return has

    def _can_start(self, worker: WorkerView, job: Job, soon_s: float, *, only_in_time: bool) -> bool:
        """Return whether a worker has little waiting and a place to decode.

        :param soon_s: how long it may wait there.
        :param only_in_time: whether a worker that decodes counts only where the prompt takes no longer than its TTFT.
            Else the router would put it into the queue of one that only prefills: it waits here for that one.
        """
        if not _prefills(worker):
            return False
        decodes, context = self._present.decodes(worker)
        own_s = self._core.own_tpot_s(worker, decodes, context)
        slow = self._core.drift.of(worker.id)
        pace = self._costs.pace(decodes, context, own_s, slow)
        if self._present.ahead(worker) > pace.rate * soon_s:
            return False
        if worker.role is Role.PREFILL:
            return True
        limit_s = self._costs.limit_s(own_s) / slow
        return (
            (not only_in_time or pace.takes_s(job.cost_s * self._core.alone) <= job.due_s - job.since_s)
            and decodes < self._core.deployment.max_batch
            and (not decodes or self._costs.decode_s(decodes + 1, context / decodes) <= limit_s)
        )


def _prefills(worker: WorkerView) -> bool:
    """Return whether a worker can compute prompts: a stock decode server cannot."""
    can = worker.capabilities or ANYTHING
    return can.alone or Role.PREFILL in can.phases
