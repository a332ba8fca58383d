"""Settings of the router and the batch scheduler ``dynaserve``. docs/policies/dynaserve.md says more about each."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Predictor = Literal["oracle", "noisy", "mean", "quantile"]


class DynaServeRouterSettings(BaseModel):
    """Settings of the router ``dynaserve``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    probes: int = Field(6, ge=1, le=32, description="K: most steps of the binary search (Algorithm 1)")
    tolerance_s: float = Field(1e-3, ge=0, description="epsilon: completion times this close are balanced (line 7)")
    pairs: Literal["roles", "any"] = Field(
        "roles", description="roles: while the pool is busy, prefill workers do not decode; any: all may"
    )
    choices: int = Field(8, ge=1, description="workers that are looked at for a request; groups of them take turns")
    split: Literal["prompt", "balanced"] = Field(
        "prompt", description="where a request is cut: after its prompt, or where both workers finish together"
    )
    underused: float = Field(
        0.5,
        ge=0,
        description="roles: every worker may decode while prompts would take less than this share of the time",
    )
    block_tokens: int = Field(512, ge=1, description="tokens of one prefix block")
    least_tokens: int = Field(32, ge=0, description="a shorter micro-request is not worth a handoff")
    predictor: Predictor = Field("quantile", description="where the output length comes from")
    margin_tokens: int = Field(20, ge=0, description="added to the predicted output length (section 5)")
    prior_tokens: int = Field(256, ge=1, description="output length while nothing is known")
    noise_tokens: float = Field(100.0, ge=0, description="noisy: standard deviation of the error (Table 4)")
    quantile: float = Field(0.5, gt=0, lt=1, description="quantile: which one of the finished requests' lengths")
    window: int = Field(256, ge=1, description="mean and quantile: finished requests that are remembered per bucket")
    seed: int = Field(0, ge=0, description="noisy: of the errors")


class DynaServeBatchSettings(BaseModel):
    """Settings of the batch scheduler ``dynaserve``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tbt_slo_s: float | None = Field(None, gt=0, description="S: longest step; slo.tpot_s when not given")
    headroom: float = Field(
        0.01, ge=0, lt=1, description="share of it that a step leaves, for what the profile table does not know"
    )
    step_tokens: int = Field(8192, ge=1, description="most prompt tokens of one step, whatever the SLO allows")
    prefill_only_tokens: int = Field(
        2048, ge=1, description="prompt tokens of a step in which nothing decodes: it breaks nobody's SLO"
    )
    learning_rate: float = Field(0.1, ge=0, le=1, description="weight of a new measurement in the profile table")
