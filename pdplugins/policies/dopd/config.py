"""Settings of DOPD's planner, router and batch scheduler. docs/policies/dopd.md says more about each."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from pdplugins.policies._common import Interval
from pdplugins.policies.dopd.forecast import Predictor


class DopdSettings(BaseModel):
    """Settings of the planner ``dopd``. Those below `correction_limit` are not in the paper."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    paper_literal: bool = Field(False, description="Algorithm 2 as printed: ARIMA, correction factor, nothing else")
    interval_s: Interval = Field(5.0, description="T: seconds between two plans; the paper does not tell its own")
    predictor: Predictor = Field("kalman", description="forecaster of ISL, OSL and request rate; the paper's is arima")
    history: int = Field(600, ge=30, description="windows of history that arima is fitted to")
    correction_limit: float = Field(1.0, ge=1, description="bound of the correction factor; 1 turns it off")
    wait_share: float = Field(
        0.55,
        gt=0,
        description="mean wait for prefill that is planned for (Eq. 10), as a share of what it leaves of the TTFT SLO",
    )
    spare: float = Field(
        1.0,
        ge=0,
        description="prefill workers beyond that: workers do not share a queue; more where a start-up takes over 30 s",
    )
    rate_sigmas: float = Field(1.0, ge=0, description="standard errors of the request rate that are planned for")
    length_cv2: float = Field(
        1.0,
        ge=0,
        description="squared coefficient of variation of prompt lengths (Eq. 6-8) where the host does not report it",
    )
    decode_sigmas: float = Field(
        2.0, ge=0, description="decode capacity beyond the mean concurrency, in standard deviations"
    )
    follow_rises: bool = Field(
        True, description="tell a rise of the request rate from the noise of arrivals, and follow it at once"
    )
    learn_bursts: bool = Field(True, description="learn how large bursts are and whether a level lasts a start-up")
    drain_backlog: bool = Field(True, description="add the workers that clear a queue within one start-up")
    hold_s: float = Field(
        300.0, ge=0, description="seconds that a smaller pool must have been enough for, at most: less where load lasts"
    )


class DopdRouterSettings(BaseModel):
    """Settings of the router ``dopd``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    local_tokens: int | None = Field(
        None, ge=0, description="longest prompt that counts as ultra-short; else derived from the profile"
    )
    cache_weight: float = Field(1.0, ge=0, description="requests that a whole cached prompt is worth")
    block_tokens: int = Field(512, ge=1, description="tokens of one prefix block")


class DopdBatchSettings(BaseModel):
    """Settings of the batch scheduler ``dopd``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    threshold_tokens: int | None = Field(
        None, ge=1, description="length from which a prompt runs at once; else the forecast ISL, or an efficient step"
    )
    predictor: Predictor = Field("kalman", description="forecaster of the ISL; the paper's is arima")
    interval_s: Interval = Field(5.0, description="seconds of one window of the forecast")
    timeout_share: float = Field(1.0, gt=0, le=1, description="alpha of Eq. 18: timeout over the mean wait W_q")
