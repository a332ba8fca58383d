"""Settings of the router and the batch scheduler ``arrow``. docs/policies/arrow.md says more about each."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ArrowSettings(BaseModel):
    """Settings of the router ``arrow``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    ttft_share: float = Field(
        0.5,
        gt=0,
        description="TTFT threshold of Algorithm 1: most wait, as a share of what prefill leaves of the SLO",
    )
    tpot_share: float = Field(1.0, gt=0, description="TPOT threshold of Algorithm 2, as a share of the TPOT SLO")
    max_running_tokens: int | None = Field(
        None, ge=1, description="most tokens that one instance decodes; from a profile at start-up when absent"
    )
    low_load: float = Field(
        0.9, ge=0, le=1, description="decode gives an instance away while the others would be loaded at most this much"
    )
    busy_load: float = Field(
        0.95, ge=0, description="idle prefill instances help decode when its instances are loaded this much"
    )
    slow_s: float = Field(1.0, ge=0, description="seconds of token intervals over the TPOT threshold before a flip")
    idle_s: float = Field(1.0, ge=0, description="seconds without a prompt before a prefill instance is idle")
    elastic: bool = Field(True, description="move instances between the pools; false is the paper's Minimal Load")

    @model_validator(mode="after")
    def _apart(self) -> ArrowSettings:
        if self.low_load >= self.busy_load:
            raise ValueError("low_load must be below busy_load, or instances would go back and forth at constant load")
        return self


class ArrowBatchSettings(BaseModel):
    """Settings of the batch scheduler ``arrow``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    step_tokens: int = Field(2048, ge=1, description="tokens of one step: one for each decode, the rest for prefill")
