"""Settings of fusion."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class FusionSettings(BaseModel):
    """Settings of the bundle ``fusion`` and of each of its parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tpot_share: float = Field(0.95, gt=0, le=1, description="share of the TPOT SLO that the steps of an engine may take")
    ttft_share: float = Field(0.9, gt=0, le=1, description="share of the TTFT SLO within which a prompt is planned")
    oldest_share: float = Field(
        0.1, ge=0, lt=1, description="share of the prefill work that goes to the oldest request, in time or not"
    )
    ahead_steps: float = Field(
        2.0, gt=0, description="prefill work that a worker may have queued, in steps: what keeps it busy until it is asked"
    )
    step_tokens: int = Field(8192, ge=1, description="most prompt tokens of one step")
    prefill_only_tokens: int = Field(2048, ge=1, description="prompt tokens of a step without decodes")
    learning_rate: float = Field(0.1, gt=0, le=1, description="weight of a measured step against what is known")
    composition: bool = Field(True, description="choose how many workers prefill only; else roles stay as they are")
    interval_s: float = Field(5.0, gt=0, description="seconds between two solutions of the programme")
    dwell_s: float = Field(10.0, ge=0, description="seconds that a composition stays at least")
    gain: float = Field(0.03, ge=0, description="gain in capacity from which the composition changes")
    prior_tokens: int = Field(256, ge=1, description="output length while none is known")
