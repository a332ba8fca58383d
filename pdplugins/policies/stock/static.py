"""Fixed pools: the baseline that a scaling policy has to beat."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.planner import PlannerView, ScalePlan
from pdplugins.errors import ConfigError
from pdplugins.policies._common import Interval


class StaticSettings(BaseModel):
    """Settings of the planner ``static``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prefill: int = Field(1, ge=1, description="prefill workers")
    decode: int = Field(1, ge=1, description="decode workers")
    interval_s: Interval = Field(5.0, description="seconds between two looks")


class StaticPlanner:
    """Always wants the same pools. Raises ConfigError when they do not fit the GPU budget."""

    def __init__(self, settings: StaticSettings, deployment: Deployment) -> None:
        used = deployment.gpus(settings.prefill, settings.decode)
        if used > deployment.gpu_budget:
            raise ConfigError(
                f"planner static: {settings.prefill}P{settings.decode}D needs {used} GPUs, gpu_budget is "
                f"{deployment.gpu_budget}; raise the budget or lower prefill or decode"
            )
        self._plan = ScalePlan(settings.prefill, settings.decode, f"static {settings.prefill}P{settings.decode}D")
        self.interval_s = settings.interval_s

    def plan(self, view: PlannerView) -> ScalePlan:
        """Return the pools of the settings."""
        return self._plan
