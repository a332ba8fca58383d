"""A bundle of two parts: a flow policy that lets each worker have so much, and a planner that scales by what waits.

Where both parts run in one process they share `Core`. Where they do not (a gateway holds the queue, Dynamo's planner
runs beside it), the flow policy tells the length of its queue as a signal, and the planner hears it.
"""

from collections import deque
from collections.abc import Mapping

from pydantic import BaseModel, Field

import pdplugins
from pdplugins.types import (
    Bundle,
    Deployment,
    FlowDecision,
    Go,
    Hold,
    Outcome,
    PlannerView,
    Register,
    Request,
    ScalePlan,
    Waiting,
    WorkerView,
)

SIGNAL = "backlog_requests"


class BacklogSettings(BaseModel, extra="forbid"):
    """The keys that users may write under ``bundle:``, beside ``name: backlog``."""

    per_worker: int = Field(16, ge=1, description="requests in service for each worker; the others wait")
    interval_s: float = Field(5.0, gt=0, description="seconds between two decisions of the planner")


class Core:
    """What both parts know."""

    def __init__(self) -> None:
        self.queue: deque[str] = deque()
        self.in_service: set[str] = set()
        self.heard_requests = 0.0

    @property
    def backlog_requests(self) -> float:
        """Requests that wait: counted here, or told by the part that holds the queue."""
        return max(float(len(self.queue)), self.heard_requests)


class BacklogFlow:
    """First come, first served, with a limit for each worker."""

    def __init__(self, core: Core, settings: BacklogSettings) -> None:
        self._core = core
        self._per_worker = settings.per_worker

    @property
    def signals(self) -> Mapping[str, float]:
        """What a planner in another process needs."""
        return {SIGNAL: float(len(self._core.queue))}

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        """Queue a request."""
        self._core.queue.append(waiting.request.id)

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        """Let the first request go when a worker has a free place."""
        core = self._core
        if not core.queue or len(core.in_service) >= self._per_worker * len(workers):
            return Hold()
        request_id = core.queue.popleft()
        core.in_service.add(request_id)
        return Go(request_id)

    def on_left(self, request_id: str) -> None:
        """Forget a request whose client has gone away."""
        if request_id in self._core.queue:
            self._core.queue.remove(request_id)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Free the place of a request that has ended."""
        self._core.in_service.discard(request.id)


class BacklogPlanner:
    """Wants one more decode worker, and two more prefill workers, at every look that finds requests waiting."""

    def __init__(self, core: Core, settings: BacklogSettings, deployment: Deployment) -> None:
        self.interval_s = settings.interval_s
        self._core = core
        self._deployment = deployment

    def on_signals(self, signals: Mapping[str, float], now_s: float) -> None:
        """Hear how much waits elsewhere; a signal that is not there counts as an empty queue."""
        self._core.heard_requests = signals.get(SIGNAL, 0.0)

    def plan(self, view: PlannerView) -> ScalePlan:
        """Add workers while requests wait; take some away when nothing waits and nothing runs."""
        backlog = self._core.backlog_requests
        idle = backlog == 0 and view.decode.running_requests == 0
        decode = max(view.decode.coming + (backlog > 0) - idle, 1)
        plan = ScalePlan(2 * decode, decode, f"{backlog:g} requests wait", {SIGNAL: backlog})
        if self._deployment.gpus(plan.prefill, plan.decode) <= self._deployment.gpu_budget:
            return plan
        reason = f"{backlog:g} requests wait; no GPU is left"
        return ScalePlan(max(1, view.prefill.coming), max(1, view.decode.coming), reason)


def backlog(settings: BacklogSettings, deployment: Deployment) -> Bundle:
    """Build the bundle: both parts around one core."""
    core = Core()
    return Bundle(planner=lambda: BacklogPlanner(core, settings, deployment), flow=lambda: BacklogFlow(core, settings))


@pdplugins.hookimpl
def pd_register_bundles(register: Register) -> None:
    """Make ``bundle: backlog`` a valid choice."""
    register("backlog", backlog, BacklogSettings)
