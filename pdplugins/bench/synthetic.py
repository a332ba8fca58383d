"""A seeded synthetic workload: what bursty traffic looks like when there is no trace at hand.

Arrivals are a Markov-modulated Poisson process of two states, calm and burst, which is the least process that shows
the over-dispersion of production traces; lengths are log-normal, as the published traces roughly are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from pdplugins.types import TraceRequest


class SyntheticSettings(BaseModel):
    """The shape of the traffic."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(0, description="same seed, same trace")
    duration_s: float = Field(300.0, gt=0, description="length of the trace")
    rate: float = Field(4.0, gt=0, description="requests per second while calm")
    burst_rate: float = Field(20.0, gt=0, description="requests per second in a burst")
    calm_s: float = Field(40.0, gt=0, description="mean length of a calm spell")
    burst_s: float = Field(20.0, gt=0, description="mean length of a burst")
    isl_tokens: int = Field(1200, ge=1, description="median prompt length")
    osl_tokens: int = Field(180, ge=1, description="median output length")
    sigma: float = Field(0.6, ge=0, description="spread of both lengths: standard deviation of their logarithm")
    max_tokens: int = Field(16384, ge=1, description="longest prompt and longest output")


def synthetic(settings: SyntheticSettings, _path: Path | None = None) -> Iterator[TraceRequest]:
    """Generate the trace that `settings` describes; no file is read."""
    dice = random.Random(settings.seed)  # noqa: S311 - traffic, not secrets
    now_s, bursting = 0.0, False
    spell_ends_s = dice.expovariate(1 / settings.calm_s)
    while now_s < settings.duration_s:
        gap_s = dice.expovariate(settings.burst_rate if bursting else settings.rate)
        if now_s + gap_s >= spell_ends_s:  # memoryless: draw the gap anew in the next spell
            now_s, bursting = spell_ends_s, not bursting
            spell_ends_s = now_s + dice.expovariate(1 / (settings.burst_s if bursting else settings.calm_s))
            continue
        now_s += gap_s
        if now_s < settings.duration_s:
            isl = _length(dice, settings.isl_tokens, settings)
            yield TraceRequest(now_s, isl, _length(dice, settings.osl_tokens, settings))


def _length(dice: random.Random, median: int, settings: SyntheticSettings) -> int:
    drawn = dice.lognormvariate(math.log(median), settings.sigma)
    return max(1, min(settings.max_tokens, round(drawn)))
