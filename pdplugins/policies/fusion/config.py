"""Settings of fusion. docs/policies/fusion.md says more about each."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pdplugins.policies._common import Interval


class FusionSettings(BaseModel):
    """Settings of the bundle ``fusion`` and of each of its parts."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tpot_share: float = Field(0.98, gt=0, le=1, description="share of the TPOT SLO that a step of an engine may take")
    saved_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="part of a short answer in which decodes may save time for one longer step, where larger "
        "chunks pay; 0: every step keeps the TPOT SLO",
    )
    ttft_share: float = Field(
        0.9, gt=0, le=1, description="share of the TTFT SLO within which the pool plans; engines have all of it"
    )
    oldest_share: float = Field(
        0.1, ge=0, lt=1, description="share of the prefill work that goes to the oldest request, in time or not"
    )
    overload: Literal["wait", "refuse"] = Field(
        "wait", description="what happens to a request that cannot be in time: it waits, or it is refused at once"
    )
    ahead_steps: float = Field(
        2.0,
        gt=0,
        description="prefill work that a worker may have queued, in steps within the TPOT SLO, and no more than 0.45 "
        "of the TTFT within which the pool plans; one that prefills only may have a full step of its own",
    )
    kv_share: float = Field(
        0.85,
        gt=0,
        le=1,
        description="share of the KV cache that is planned with; the rest is for answers that are long",
    )
    step_tokens: int = Field(8192, ge=1, description="most prompt tokens of one step")
    prefill_only_tokens: int | None = Field(
        None,
        ge=1,
        description="prompt tokens of a step without decodes; None: the fastest, and for several prompts what takes "
        "about half of the TTFT at most",
    )
    learning_rate: float = Field(0.1, gt=0, le=1, description="weight of a measured step against what is known")
    composition: bool = Field(True, description="choose how many workers prefill only; else roles stay as they are")
    long_prompts: bool = Field(
        True,
        description="keep one worker that only prefills, if the load allows, while prompts come that would be late "
        "beside decodes; and keep decodes away from such prompts",
    )
    short_steps: bool = Field(
        True,
        description="shorten steps where all workers do both phases and decodes fill the KV cache; else steps are as "
        "long as the TPOT SLO allows",
    )
    interval_s: Interval = Field(2.0, description="seconds between two solutions of the programme")
    dwell_s: float = Field(
        10.0,
        ge=0,
        description="seconds that a composition stays at least; at the start until answers have come, if these come "
        "sooner",
    )
    gain: float = Field(
        0.03, ge=0, description="capacity that fewer prefill-only workers, or the present number, may cost"
    )
    feedback: float = Field(
        0.02, ge=0, description="capacity that moving workers towards the objective that is missed may cost"
    )
    prior_tokens: int = Field(256, ge=1, description="output length while none is known")
    block_tokens: int = Field(512, ge=1, description="tokens of one prefix block of the host")
    choices: int = Field(
        8, ge=1, description="workers of each role that one decision looks at; larger pools take turns"
    )
    power_budget_w: float | None = Field(
        None, gt=0, description="watts that the caps of all GPUs may sum to; None: caps stay as they are"
    )
    scale: bool = Field(False, description="have a planner that scales the pool; it then chooses the composition too")
    spare_share: float = Field(0.25, ge=0, description="scale: capacity beyond the forecast, as a share of it")
    hold_s: float = Field(300.0, ge=0, description="scale: how long a pool stays as large as it was last wanted")
