"""What DOPD's planner learned, as its next run gets it: lengths, their spread, and how bursts were missed."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_ERRORS = 2000
"""Forecasts whose errors are kept, the newest."""
Amount = Annotated[float, Field(ge=0, le=1e18)]


class RateMemory(BaseModel):
    """How the request rate behaved."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    dispersion: Annotated[float, Field(ge=1, le=1e9)]
    peak: Amount
    errors: list[tuple[Amount, Amount]] = Field(max_length=MOST_ERRORS)
    """By how much forecasts were exceeded, and the rate that came."""


class Memory(BaseModel):
    """All that is kept. Errors of forecasts are only those of this interval and number of steps."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    interval_s: Annotated[float, Field(gt=0)]
    steps: int = Field(ge=1)
    rate: RateMemory
    means: dict[str, Amount] = Field(max_length=16)
    """By series: its last forecast."""
    spread: tuple[Amount, Annotated[float, Field(ge=0, le=1e30)], Annotated[float, Field(ge=0, le=1e30)]]
    """Requests, and the sums of the variances and of the squares of their prompt lengths."""
