"""Settings of the planner ``dopd``. docs/policies/dopd.md says more about each."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from pdplugins.policies.dopd.forecast import Predictor


class DopdSettings(BaseModel):
    """Settings of the planner ``dopd``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    interval_s: float = Field(5.0, gt=0, description="T: seconds between two plans; the paper leaves it open")
    predictor: Predictor = Field("arima", description="forecaster of lengths and load; the paper's is arima")
    history: int = Field(600, ge=30, description="windows of history that arima is fitted to")
    correction_limit: float = Field(2.0, ge=1, description="largest correction factor of a forecast; 1 turns it off")
    hold_s: float = Field(60.0, ge=0, description="seconds that a smaller pool must have been enough before it shrinks")
    headroom: float = Field(1.5, ge=0, description="square-root staffing: workers beyond the mean, in sqrt(workers)")
    paper_literal: bool = Field(False, description="Algorithm 2 as printed: no headroom, no hold, its own ratio")
