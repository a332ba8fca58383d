"""A planner that adds a worker to the role where requests wait, and takes one away where nothing has run."""

from pydantic import BaseModel, Field

import pdplugins
from pdplugins.types import Deployment, PlannerView, Pool, Register, ScalePlan


class QueueStepSettings(BaseModel, extra="forbid"):
    """The keys that users may write under ``planner:``, beside ``name: queue_step``."""

    interval_s: float = Field(5.0, gt=0, description="seconds between two decisions")
    queue: float = Field(1.0, ge=0, description="waiting requests per worker that call for one more")


class QueueStepPlanner:
    """One worker more or less per decision, each role on its own."""

    def __init__(self, settings: QueueStepSettings, deployment: Deployment) -> None:
        self.interval_s = settings.interval_s
        self._queue = settings.queue
        self._deployment = deployment

    def plan(self, view: PlannerView) -> ScalePlan:
        """Look at the queues, move each pool by at most one worker."""
        prefill, decode = self._step(view.prefill), self._step(view.decode)
        wanted = ScalePlan(prefill, decode, f"{view.prefill.queued_requests:g}/{view.decode.queued_requests:g} waiting")
        if self._deployment.gpus(prefill, decode) <= self._deployment.gpu_budget:
            return wanted
        return ScalePlan(max(1, view.prefill.coming), max(1, view.decode.coming), "the GPU budget is used up")

    def _step(self, pool: Pool) -> int:
        if pool.queued_requests > self._queue * pool.coming:
            return pool.coming + 1
        idle = pool.queued_requests == pool.running_requests == 0
        return max(1, pool.coming - idle)


@pdplugins.hookimpl
def pd_register_planners(register: Register) -> None:
    """Make ``planner: queue_step`` a valid choice."""
    register("queue_step", QueueStepPlanner, QueueStepSettings)
