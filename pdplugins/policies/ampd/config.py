"""Settings of the router and the batch scheduler ``ampd``. docs/policies/ampd.md says more about each."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class AmpdRouterSettings(BaseModel):
    """Settings of the router ``ampd``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alpha: float | None = Field(
        None, ge=0, description="share of the TTFT SLO below which TTFT has slack; 0.5 predicted, 0.9 windowed (paper)"
    )
    beta: float = Field(0.85, ge=0, description="share of the TPOT SLO below which a decode worker has slack")
    slack: Literal["predicted", "windowed"] = Field(
        "predicted", description="judged by Eq. 1 and 2 for the task itself, or by recent TTFT and ITL as printed"
    )
    local: bool = Field(True, description="prefill may run on the session's decode worker; false: always remote")
    seed: int = Field(0, ge=0, description="of the random order in which prefill workers are looked at")

    @property
    def ttft_share(self) -> float:
        """Alpha, or what it is by default."""
        if self.alpha is not None:
            return self.alpha
        return 0.5 if self.slack == "predicted" else 0.9


class AmpdSchedulerSettings(BaseModel):
    """Settings of the batch scheduler ``ampd``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step_tokens: int = Field(
        8192, ge=1, description="tasks that follow in order join a step up to so many tokens; 1: one task per step"
    )
    window: int = Field(3, ge=1, le=5, description="w: tasks that are reordered, and times a task may be postponed")
