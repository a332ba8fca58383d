"""The profile file: how fast one model runs on one GPU, as JSON under ``profiles/<gpu>/<model>.json``.

``profiles/README.md`` describes every field with its unit. Original times (``raw_ms``) are stored next to the factor
that they are multiplied by (``scale``). So a modelled profile shows both the output of the tool and the correction that
makes it agree with a measurement. One file holds all tensor-parallel (TP) sizes. Tables hold whole steps of an engine.
The overhead of the engine (kernel launches, sampling, its scheduler) is part of them, or is ``scale.step_ms``.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pdplugins.config import first_error
from pdplugins.errors import ConfigError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Axis = Annotated[tuple[Positive, ...], Field(min_length=2)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Provenance(_Part):
    """Where the times come from."""

    source: str = Field(description="who or what said so: a paper and table, a tool and its version, a machine")
    command: str = Field(description="what was run to write this file")
    notes: tuple[str, ...] = Field((), description="assumptions a reader must know")


class Memory(_Part):
    """The memory figures that bound the KV cache of a worker: DOPD Eq. 11 and 13."""

    gpu_bytes: Positive = Field(description="M_gpu: memory of one GPU")
    reserved_bytes: float = Field(ge=0, description="M': memory per GPU for neither weights nor KV cache")
    model_bytes: Positive = Field(description="M_model: weights, over all GPUs of a worker")
    kv_bytes_per_token: Positive = Field(description="M_token: KV cache of one token, over all layers and KV heads")
    source: str


class Bandwidth(_Part):
    """The bandwidth figures that bound the KV cache that one decode step reads: DOPD Eq. 12."""

    bytes_per_s: Positive = Field(description="BW: memory bandwidth of one GPU")
    utilisation: float = Field(gt=0, le=1, description="alpha: share of it that decode reaches")
    source: str


class Transfer(_Part):
    """KV transfer from a prefill to a decode worker: latency + bytes / rate."""

    latency_s: float = Field(ge=0, description="fixed part")
    bytes_per_s: Positive
    source: str


class Scale(_Part):
    """The correction of ``raw_ms``. The times in use are factor * raw_ms + step_ms."""

    prefill: Positive = Field(description="factor on prefill and dense times")
    decode: Positive = Field(description="factor on decode times")
    step_ms: float = Field(0.0, ge=0, allow_inf_nan=False, description="added once to every step, of any kind")
    source: str
    points: dict[str, list[dict[str, float]]] = Field({}, description="what the factors were computed from")


class TokenTable(_Part):
    """Time over tokens: the prefill of one prompt, alone in its batch, or the dense part of a step."""

    tokens: Axis
    raw_ms: Axis

    @model_validator(mode="after")
    def _shape(self) -> TokenTable:
        _ascending("tokens", self.tokens)
        if len(self.raw_ms) != len(self.tokens):
            raise ValueError(f"raw_ms has {len(self.raw_ms)} values for {len(self.tokens)} tokens")
        return self


class DecodeTable(_Part):
    """Time of one decode step: a row per batch size, a column per mean context length."""

    batch: Axis
    context_tokens: Axis
    raw_ms: tuple[Axis, ...]

    @model_validator(mode="after")
    def _shape(self) -> DecodeTable:
        _ascending("batch", self.batch)
        _ascending("context_tokens", self.context_tokens)
        if {len(row) for row in self.raw_ms} != {len(self.context_tokens)} or len(self.raw_ms) != len(self.batch):
            raise ValueError(f"raw_ms must be {len(self.batch)} rows of {len(self.context_tokens)} values")
        return self


class Power(_Part):
    """What a power cap does to one GPU. Values are linear between the caps, and constant outside."""

    cap_w: Annotated[tuple[Positive, ...], Field(min_length=1)] = Field(description="caps, ascending; the last is none")
    prefill_slow: tuple[Factor, ...] = Field(description="time of a prefill step over its time without a cap")
    decode_slow: tuple[Factor, ...] = Field(description="the same for a decode step")
    settle_s: float = Field(ge=0, allow_inf_nan=False, description="from setting a cap until the device keeps it")
    idle_w: Positive
    prefill_w: Positive = Field(description="draw of prefill without a cap")
    decode_w: Positive = Field(description="draw of decode without a cap")
    source: str

    @model_validator(mode="after")
    def _shape(self) -> Power:
        _ascending("cap_w", self.cap_w)
        for name in ("prefill_slow", "decode_slow"):
            slow = getattr(self, name)
            if len(slow) != len(self.cap_w):
                raise ValueError(f"{name} has {len(slow)} values for {len(self.cap_w)} caps")
            if any(b > a for a, b in pairwise(slow)):
                raise ValueError(f"{name} must not rise: a higher cap cannot take longer")
        return self


class Profile(_Part):
    """A whole profile file."""

    schema_version: Literal[1] = Field(alias="schema")
    gpu: str
    model: str
    kind: Literal["measured", "modelled"] = Field(description="measured on the device, or computed")
    provenance: Provenance
    memory: Memory
    bandwidth: Bandwidth
    transfer: Transfer
    scale: Scale
    prefill: dict[int, TokenTable] = Field(min_length=1, description="by tensor-parallel size")
    decode: dict[int, DecodeTable] = Field(min_length=1, description="by tensor-parallel size")
    dense: dict[int, TokenTable] = Field(
        {}, description="by tensor-parallel size: all of a step but attention, over the tokens that it computes"
    )
    power: Power | None = Field(None, description="what power caps do; they do nothing when absent")

    @model_validator(mode="after")
    def _dense_is_for_both(self) -> Profile:
        for tp in self.dense:
            if tp not in self.prefill:
                raise ValueError(f"dense has TP {tp}, which prefill lacks")
        return self


def read_profile(path: Path) -> Profile:
    """Read and check a profile file. Raises ConfigError with one line for the first error."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"profile {path}: {error.strerror}; give a .json file or a shipped profile") from None
    except ValidationError as error:
        raise ConfigError(f"profile {path}: {first_error(error, Profile)}; see profiles/README.md") from None


def _ascending(name: str, axis: tuple[float, ...]) -> None:
    if any(b <= a for a, b in pairwise(axis)):
        raise ValueError(f"{name} must ascend")
