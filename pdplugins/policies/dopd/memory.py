"""What the planner keeps for its next run: the levels of its forecasts, and what it learned of bursts and lengths."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from pdplugins.contracts.deployment import Deployment
from pdplugins.policies.dopd.load import LARGEST

LEVEL_S = 3600.0
"""A request rate that is older than this, in seconds, says nothing of now. Lengths and bursts change more slowly."""
SAMPLE_TOKENS = 1000
"""A prompt whose prefill time tells one profile from another, and the mean context of a batch that does."""
SAMPLE_BATCH = 8
"""Requests of that batch."""

Amount = Annotated[float, Field(ge=0, le=LARGEST)]
Moment = Annotated[float, Field(ge=-(LARGEST**2), le=LARGEST**2)]
Square = Annotated[float, Field(ge=0, le=LARGEST**3)]


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Made(_Kept):
    """What the numbers depend on. A run that differs in any of it begins anew."""

    interval_s: float
    startup_s: float
    prefill_tp: int
    prefill_s: float
    decode_tp: int
    decode_s: float
    max_batch: int
    kv_tokens: int | None
    ttft_s: float
    tpot_s: float
    paper_literal: bool
    """Then the load is the requests in flight, else the rate of requests."""

    @classmethod
    def by(cls, deployment: Deployment, interval_s: float, *, paper_literal: bool) -> Made:
        """Describe a planner."""
        perf, slo = deployment.perf, deployment.slo
        return cls(
            interval_s=interval_s,
            startup_s=deployment.startup_s,
            prefill_tp=deployment.prefill_tp,
            prefill_s=round(perf.prefill_s(SAMPLE_TOKENS, deployment.prefill_tp), 9),
            decode_tp=deployment.decode_tp,
            decode_s=round(perf.decode_step_s(SAMPLE_BATCH, SAMPLE_TOKENS, deployment.decode_tp), 9),
            max_batch=deployment.max_batch,
            kv_tokens=deployment.kv_tokens,
            ttft_s=slo.ttft_s,
            tpot_s=slo.tpot_s,
            paper_literal=paper_literal,
        )

    def differences(self, now: Made) -> str:
        """Say what has changed since; empty where nothing has."""
        names = [name for name in type(self).model_fields if getattr(self, name) != getattr(now, name)]
        return ", ".join(f"{name} was {getattr(self, name)} and is {getattr(now, name)}" for name in names)


class Rate(_Kept):
    """See :class:`pdplugins.policies.dopd.forecast.Reverting`."""

    mean: Amount
    weight: Amount
    covariance: Moment
    variance: Square
    clear_covariance: Moment = 0.0
    clear_variance: Square = 0.0


class Lengths(_Kept):
    """See :class:`pdplugins.policies.dopd.load.Spread`."""

    requests: Square
    variance: Square
    square: Square

    def within(self, tokens: float) -> bool:
        """Return whether prompts of at most `tokens` tokens can have these moments. Without requests there are none."""
        return max(self.variance, self.square) <= self.requests * tokens**2


class Bursts(_Kept):
    """See :class:`pdplugins.policies.dopd.staffing.Dispersion`."""

    variance: Square
    work: Square
    peak: Square


class Busy(_Kept):
    """See :class:`pdplugins.policies.dopd.decoding.Deviation`."""

    squares: Square = 0.0
    count: Amount = 0.0
    peak: Amount = 0.0


class Memory(_Kept):
    """All of it."""

    made: Made
    levels: dict[str, Amount] = Field(max_length=16)
    rate: Rate
    lengths: Lengths
    bursts: Bursts
    busy: Busy = Busy()
