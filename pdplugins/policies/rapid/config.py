"""Settings of the power controller ``rapid``. docs/policies/rapid.md says more about each."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pdplugins.policies._common import Interval


class RapidSettings(BaseModel):
    """Settings of the power controller ``rapid``. The defaults are the paper's node: eight MI300X within 4800 W."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    move: Literal["nothing", "power", "gpus", "both"] = Field(
        "both", description="what moves between the phases: nothing (static), power, gpus, or power first and then gpus"
    )
    budget_w: float = Field(4800.0, gt=0, description="watts that the caps of all GPUs may sum to")
    prefill_w: float | None = Field(None, gt=0, description="cap of a prefill GPU at start; else an equal share")
    decode_w: float | None = Field(None, gt=0, description="cap of a decode GPU at start; else an equal share")
    step_w: float = Field(50.0, gt=0, description="watts that one move takes from each GPU of the source phase")
    min_w: float = Field(400.0, gt=0, description="no cap is below this")
    max_w: float = Field(750.0, gt=0, description="no cap is above this: the board power of the GPU")
    max_decode_w: float = Field(600.0, gt=0, description="no decode GPU is given more: decode gains little above it")
    queue_threshold: float = Field(
        1.0, ge=0, description="THRESHOLD: waiting prompts per prefill GPU that show overload"
    )
    cooldown_s: float = Field(0.5, ge=0, description="COOLDOWN: seconds between a move of power and the next move")
    gpu_cooldown_s: float = Field(3.0, ge=0, description="seconds between a move of a GPU and the next move")
    flip_timeout_s: float = Field(60.0, gt=0, description="seconds until a flip that has not happened is given up")
    interval_s: Interval = Field(0.5, description="MIN_TIME: seconds between two looks")
    recent_s: float = Field(2.0, gt=0, description="seconds of the mean TTFT and of the median token interval")

    @model_validator(mode="after")
    def _possible(self) -> RapidSettings:
        if not self.min_w <= self.max_decode_w <= self.max_w:
            raise ValueError("min_w, max_decode_w and max_w must ascend")
        for name in ("prefill_w", "decode_w"):
            cap_w = getattr(self, name)
            if cap_w is not None and not self.min_w <= cap_w <= self.max_w:
                raise ValueError(f"{name} must lie between min_w and max_w")
        if self.decode_w is not None and self.decode_w > self.max_decode_w:
            raise ValueError("decode_w must not exceed max_decode_w")
        return self
