"""Distributions of lengths, gaps and counts, as a workload file names them: ``{kind: lognormal, median: 1200}``."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pdplugins.workloads.rows import LARGEST, MAX_TOKENS

Floats = NDArray[np.float64]
Real = Annotated[float, Field(ge=0, le=LARGEST)]


class _Draw(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    low: Real = Field(0.0, description="smallest value; smaller draws become it")
    high: float | None = Field(None, gt=0, le=LARGEST, description="largest value; larger draws become it")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.high is not None and self.low > self.high:
            raise ValueError(f"low is {self.low:g}, above high, which is {self.high:g}; give the smaller one as low")
        return self

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Return `count` values."""
        return np.clip(self._raw(rng, count), self.low, LARGEST if self.high is None else self.high)

    def tokens(self, rng: np.random.Generator, count: int) -> list[int]:
        """Return `count` whole numbers from 1 to `MAX_TOKENS`."""
        drawn: list[int] = np.clip(np.rint(self.draw(rng, count)), 1, MAX_TOKENS).astype(np.int64).tolist()
        return drawn

    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        raise NotImplementedError


class Fixed(_Draw):
    """Always the same value. A bare number is a short form of it."""

    kind: Literal["fixed"] = "fixed"
    value: Real

    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        return np.full(count, self.value)


class Normal(_Draw):
    """Normal distribution."""

    kind: Literal["normal"] = "normal"
    mean: Real
    std: Real

    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.normal(self.mean, self.std, count)


class Lognormal(_Draw):
    """Log-normal; `sigma` is the standard deviation of the logarithm."""

    kind: Literal["lognormal"] = "lognormal"
    median: float = Field(gt=0, le=LARGEST)
    sigma: Real

    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.lognormal(math.log(self.median), self.sigma, count)


class Uniform(_Draw):
    """Uniform from `low` to `high`."""

    kind: Literal["uniform"] = "uniform"
    low: Real
    high: float = Field(gt=0, le=LARGEST)

    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.uniform(self.low, self.high, count)


class Exponential(_Draw):
    """Exponential distribution."""

    kind: Literal["exponential"] = "exponential"
    mean: Real

    def _raw(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.exponential(self.mean, count)


def _number(value: Any) -> Any:
    if isinstance(value, dict | BaseModel):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"kind": "fixed", "value": value}
    raise ValueError("must be a number, or keys with values such as {kind: lognormal, median: 1200, sigma: 0.6}")


Draw = Annotated[
    Annotated[Fixed | Normal | Lognormal | Uniform | Exponential, Field(discriminator="kind")], BeforeValidator(_number)
]
"""A distribution in a workload file."""
