"""What waits before the workers: deadlines decide who goes on, as soon as a worker can start it."""

from __future__ import annotations

from pdplugins.contracts.flow import FlowDecision, Go, Hold, Waiting
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Outcome
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies.fusion.core import Core, work_ahead_s
from pdplugins.policies.fusion.costs import decodes_of
from pdplugins.policies.fusion.deadlines import DeadlineQueue, Job


class Pace:
    """How fast the pool really works off what waits, against what the costs predict."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._began_s = 0.0
        self._done_s = 0.0
        self._predicted_s = 0.0
        self._last_s = 0.0
        self.ratio = 1.0

    def speed(self, predicted: float, now_s: float) -> float:
        """Return the speed to expect where the costs predict `predicted`."""
        if self._since_s is None:
            self._since_s = self._last_s = now_s
        self._predicted_s += predicted * (now_s - self._last_s)
        self._last_s = now_s
        if now_s - self._since_s >= PACE_S and self._predicted_s > 0:
            ratio = min(max(self._done_s / self._predicted_s, 0.25), 1.0)
            self.ratio += 0.3 * (ratio - self.ratio)
            self._since_s, self._done_s, self._predicted_s = now_s, 0.0, 0.0
        return max(predicted * self.ratio, 1e-3)

    def started(self, cost_s: float) -> None:
        """Count work that goes on."""
        self._done_s += cost_s

    def idle(self, now_s: float) -> None:
        """Nothing waits: what goes on now says how much came, not how fast the pool is."""
        self._since_s = None
        self._done_s = self._predicted_s = 0.0


PACE_S = 2.0


class FusionFlow:
    """`pdplugins.types.Flow` of fusion."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._costs = core.costs
        self._queue = DeadlineQueue(core.settings.oldest_share)
        self._speed = 1.0
        self._pace = Pace()
        self._ahead_s = core.settings.ahead_steps * core.costs.step_s
        self._released: set[str] = set()

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        """Take in a request."""
        request = waiting.request
        cost_s = self._costs.prefill_s(request.prompt_tokens, request.history_tokens)
        due_s = waiting.since_s + (waiting.due_s - waiting.since_s) * self._core.settings.ttft_share
        self._released.discard(request.id)
        self._queue.push(Job(request.id, waiting.since_s, due_s, cost_s), now_s, self._speed)

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        """Let the next request go on if a worker can start it."""
        if not workers:
            return Hold()
        self._speed = self._pace.speed(self._measure(workers), now_s)
        job = self._queue.first(now_s + self._ahead_s, self._speed)
        if job is None:
            self._pace.idle(now_s)
            return Hold()
        if self._released and (
            len(self._released) >= self._core.decode_places(workers)
            or not any(self._can_start(worker) for worker in workers)
        ):
            return Hold(now_s + self._ahead_s)
        self._queue.start(job)
        self._pace.started(job.cost_s)
        self._released.add(job.key)
        return Go(job.key)

    def on_left(self, request_id: str) -> None:
        """Forget a request whose client has gone away."""
        self._queue.remove(request_id)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Count a request as no longer in service."""
        self._released.discard(request.id)

    def _measure(self, workers: tuple[WorkerView, ...]) -> float:
        alone = self._costs.beside(0, 0)
        return max(sum(self._costs.beside(*decodes_of(worker)) for worker in workers) / alone, 1e-3)

    def _can_start(self, worker: WorkerView) -> bool:
        if work_ahead_s(self._costs, worker) > self._ahead_s:
            return False
        if worker.role is Role.PREFILL:
            return True
        decodes, context = decodes_of(worker)
        return decodes < self._core.deployment.max_batch and (
            not decodes or self._costs.decode_s(decodes + 1, context / decodes) <= self._costs.step_s
        )
