"""The policies under which `pdplugins.testing.hosts` looks at a host."""

from __future__ import annotations

from collections.abc import Mapping

from pdplugins.contracts.batching import BatchPlan, BatchView
from pdplugins.contracts.flow import FlowDecision, Go, Hold, Refuse, Waiting
from pdplugins.contracts.planner import PlannerView, ScalePlan
from pdplugins.contracts.power import Flip, GpuView, PowerPlan
from pdplugins.contracts.request import Request
from pdplugins.contracts.roles import RoleChange, RoleMove
from pdplugins.contracts.router import Outcome, Placement
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.testing.scripted import PoolsPlanner, RecordingRouter


class RaisingRouter(RecordingRouter):
    """A router that fails."""

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request."""
        raise RuntimeError("a router that always fails")


class UnknownRouter(RecordingRouter):
    """A router that names workers that do not exist."""

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request."""
        return Placement("nobody", "nobody", request.prompt_tokens)


class SilentRouter(RecordingRouter):
    """A router that answers nothing."""

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request."""
        return None  # type: ignore[return-value]


class PlanningRouter(RecordingRouter):
    """A router that plans ahead, and notes on how many workers."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: list[int] = []

    def plan_ahead(self, workers: tuple[WorkerView, ...], now_s: float) -> None:
        """Plan."""
        self.planned.append(len(workers))


class LoggingRouter(RecordingRouter):
    """A router that writes down what it places."""

    def __init__(self, log: list[tuple[str, str]]) -> None:
        super().__init__()
        self._log = log

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request."""
        self._log.append(("placed", request.id))
        return super().on_arrival(request, workers, now_s)


class CountingRouter(RecordingRouter):
    """A router that counts how often loads of now show nothing, while requests that it placed go on."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = 0

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request."""
        loads, goes_on = [worker.load for worker in workers], len(self.asked) > len(self.ended)
        shown = sum(load.queued_requests + load.running_requests for load in loads)
        self.hidden += goes_on and not shown and any(getattr(load, "reported_s", None) is None for load in loads)
        return super().on_arrival(request, workers, now_s)


class OneByOne:
    """A flow policy that lets one request go when the one before has ended, and writes down what happens."""

    def __init__(self, log: list[tuple[str, str]]) -> None:
        self._log = log
        self._queue: list[str] = []
        self._busy = False

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        """Join the end of the queue."""
        self._log.append(("arrived", waiting.request.id))
        self._queue.append(waiting.request.id)

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        """Let the first one go where nothing runs."""
        if self._busy or not self._queue:
            return Hold()
        self._busy = True
        name = self._queue.pop(0)
        self._log.append(("go", name))
        return Go(name)

    def on_left(self, request_id: str) -> None:
        """Forget a request."""
        self._queue.remove(request_id)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Let the next one go."""
        self._log.append(("ended", request.id))
        self._busy = False


class EverySecond:
    """A flow policy that refuses every second request."""

    def __init__(self) -> None:
        self._queue: list[str] = []
        self._count = 0

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        """Join the end of the queue."""
        self._queue.append(waiting.request.id)

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        """Let one go and refuse one."""
        if not self._queue:
            return Hold()
        self._count += 1
        name = self._queue.pop(0)
        return Go(name) if self._count % 2 else Refuse(name, 7.0, "every second one")

    def on_left(self, request_id: str) -> None:
        """Forget a request."""
        self._queue.remove(request_id)


class HearsChanges:
    """Notes what became of moves."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[RoleChange] = []

    def on_role_change(self, change: RoleChange) -> None:
        """Note it."""
        self.changes.append(change)


class WholePrompts:
    """A batch scheduler that runs one whole prompt in a step, and notes its plans and the steps."""

    def __init__(self) -> None:
        self.plans: list[Mapping[str, int]] = []
        self.stepped: list[float] = []
        """Seconds of each step that it heard of."""
        self.own_tpots: list[tuple[float, ...]] = []
        """What the decodes of each step asked for themselves, s."""

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Take the first prompt of the queue."""
        plan = {waiting.request.id: waiting.remaining_tokens for waiting in view.queue[:1]}
        self.plans.append(plan)
        self.own_tpots.append(view.decode_tpots_s)
        return BatchPlan(plan)

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Note a step."""
        self.stepped.append(took_s)


class WatchingPlanner(PoolsPlanner):
    """Wants pools by the clock, and keeps what it saw."""

    def __init__(self, *script: tuple[float, int, int]) -> None:
        super().__init__(*script)
        self.views: list[PlannerView] = []

    def plan(self, view: PlannerView) -> ScalePlan:
        """Answer by the clock."""
        self.views.append(view)
        return super().plan(view)


class BadPlanner:
    """A planner whose answer is no plan to follow, or that raises."""

    interval_s = 1.0

    def __init__(self, answer: object) -> None:
        self._answer = answer
        self.views: list[PlannerView] = []

    def plan(self, view: PlannerView) -> ScalePlan:
        """Fail."""
        self.views.append(view)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]


class HearingPlanner(HearsChanges):
    """Wants two prefill workers and one for decode."""

    interval_s = 1.0

    def plan(self, view: PlannerView) -> ScalePlan:
        """Answer the same each time."""
        return ScalePlan(2, 1, "one more for prefill")


class MovingRouter(HearsChanges, RecordingRouter):
    """Moves a decode worker once."""

    def __init__(self) -> None:
        super().__init__()
        self._moved = False

    def take_role_moves(self) -> tuple[RoleMove, ...]:
        """Propose the move once a request has been placed."""
        if self._moved or not self.asked:
            return ()
        self._moved = True
        name = next(worker.id for worker in self.asked[-1].looked if worker.role is Role.DECODE)
        return (RoleMove(name, Role.PREFILL, "one more for prefill"),)


class FlippingPower(HearsChanges):
    """Flips a decode GPU once."""

    interval_s = 1.0

    def __init__(self) -> None:
        super().__init__()
        self._done = False

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        """Change no cap."""
        gpu = next((gpu for gpu in gpus if gpu.role is Role.DECODE), None)
        if self._done or gpu is None:
            return PowerPlan({})
        self._done = True
        return PowerPlan({}, (Flip(gpu.index, Role.PREFILL),), "one more for prefill")


class CappingPower:
    """Caps every GPU at the same watts, and notes the caps that it finds."""

    interval_s = 1.0
    cap_w = 400.0

    def __init__(self) -> None:
        self.caps_w: list[list[float]] = []
        """Of all GPUs, at each call."""

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        """Want the same caps each time."""
        self.caps_w.append([gpu.cap_w for gpu in gpus])
        return PowerPlan({gpu.index: self.cap_w for gpu in gpus})
