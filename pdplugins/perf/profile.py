"""The profile file: how fast one model runs on one GPU, as JSON under ``profiles/<gpu>/<model>.json``.

``profiles/README.md`` describes every field with its unit. Original times (``raw_ms``) are stored next to the factor
that they are multiplied by (``scale``). So a modelled profile shows both the output of the tool and the correction that
makes it agree with a measurement. One file holds all tensor-parallel (TP) sizes. Tables hold whole steps of an engine.
The overhead of the engine (kernel launches, sampling, its scheduler) is part of them, or is ``scale.step_ms``.
"""

from __future__ import annotations

import codecs
import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pdplugins.config import first_error
from pdplugins.config.base import MOST_GPUS
from pdplugins.errors import ConfigError, one_line
from pdplugins.files import TwiceError, object_once, read_limited

SMALLEST, LARGEST = 1e-9, 1e18
"""Bounds of all figures. What is computed of them is a number that clocks and counts can hold."""
MOST_STEP_MS, MOST_LATENCY_S, MOST_SCALE = 1e6, 60.0, 1e3
"""Bounds of times and of factors on them. With longer steps few requests would take years of the simulator's clock."""
MOST_DRAFTS = 64
"""Tokens that are guessed in one step."""
MOST_SHARE = 100.0
"""Time of a guess over that of a step."""
SLOWEST_LINK = 1.0
"""Bytes a second of a link."""
MOST_BYTES = 2**22
"""Size of the largest file."""
Positive = Annotated[float, Field(ge=SMALLEST, le=LARGEST, allow_inf_nan=False)]
Natural = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=1, le=MOST_SCALE, allow_inf_nan=False)]
Degree = Annotated[int, Field(ge=1, le=MOST_GPUS)]
Scaling = Annotated[float, Field(ge=SMALLEST, le=MOST_SCALE, allow_inf_nan=False)]
Steps = Annotated[
    tuple[Annotated[float, Field(ge=SMALLEST, le=MOST_STEP_MS, allow_inf_nan=False)], ...], Field(min_length=2)
]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Axis = Annotated[tuple[Positive, ...], Field(min_length=2)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Provenance(_Part):
    """Where the times come from."""

    source: str = Field(description="who or what said so: a paper and table, a tool and its version, a machine")
    command: str = Field(description="what was run to write this file")
    notes: tuple[str, ...] = Field((), description="assumptions a reader must know")


class Window(_Part):
    """Layers with sliding-window attention, which keep the KV cache of the last tokens only."""

    tokens: Positive = Field(description="tokens that such a layer keeps")
    bytes_per_token: Positive = Field(description="KV cache of one token, over all such layers")
    context_tokens: Positive = Field(
        description="context that a request is taken to have, over which the window is spread"
    )

    def held_bytes(self, tokens: float) -> float:
        """Return the bytes that these layers hold of a context of `tokens` tokens."""
        return min(tokens, self.tokens) * self.bytes_per_token

    @property
    def share_bytes(self) -> float:
        """Bytes of these layers for one token of a context of `context_tokens`."""
        return self.held_bytes(self.context_tokens) / self.context_tokens


class Memory(_Part):
    """The memory figures that bound the KV cache of a worker: DOPD Eq. 11 and 13."""

    gpu_bytes: Positive = Field(description="M_gpu: memory of one GPU")
    reserved_bytes: Natural = Field(description="M': memory per GPU for neither weights nor KV cache")
    model_bytes: Positive = Field(description="M_model: weights, over all GPUs of a worker")
    kv_bytes_per_token: Positive = Field(description="M_token: KV cache of one token, over all layers and KV heads")
    window: Window | None = Field(None, description="layers that keep only the last tokens; not in kv_bytes_per_token")
    source: str


class Layout(_Part):
    """How the GPUs of one worker share the model. Degrees are numbers of GPUs."""

    tensor: Degree = Field(1, description="split each attention layer and, without experts, each feed-forward layer")
    attention_data: Degree = Field(1, description="groups that keep the attention of their own requests")
    pipeline: Degree = Field(1, description="stages of consecutive layers")
    expert_tensor: Degree = Field(1, description="split each expert")
    expert: Degree = Field(1, description="groups that hold experts of their own")
    model_bytes: Positive = Field(description="weights over all GPUs of the worker, copies included")
    kv_copies: Positive = Field(
        1.0, description="GPUs that hold the same KV cache: all of a tensor group with MLA, which has one KV head"
    )
    note: str | None = Field(None, description="what the times of this layout assume")

    @property
    def gpus(self) -> int:
        """GPUs of the worker."""
        return self.tensor * self.attention_data * self.pipeline

    @model_validator(mode="after")
    def _same_gpus(self) -> Layout:
        if self.expert_tensor * self.expert not in {1, self.tensor * self.attention_data}:
            raise ValueError("expert_tensor times expert must be tensor times attention_data, or 1 without experts")
        return self


class Speculation(_Part):
    """Speculative decoding, as multi-token prediction (MTP) does it."""

    draft_tokens: int = Field(ge=1, le=MOST_DRAFTS, description="tokens that are guessed in each step")
    acceptance: Share = Field(description="probability that a guessed token is right, if those before it were")
    draft_share: float = Field(
        ge=0, le=MOST_SHARE, allow_inf_nan=False, description="time of a guess over the time of a step"
    )

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of a request in one step."""
        return sum(self.acceptance**guess for guess in range(self.draft_tokens + 1))

    @property
    def slower(self) -> float:
        """Time of a step with its guesses over the time of a step without."""
        return 1 + self.draft_tokens * self.draft_share


class Bandwidth(_Part):
    """The bandwidth figures that bound the KV cache that one decode step reads: DOPD Eq. 12."""

    bytes_per_s: Positive = Field(description="BW: memory bandwidth of one GPU")
    utilisation: float = Field(gt=0, le=1, description="alpha: share of it that decode reaches")
    source: str


class Transfer(_Part):
    """KV transfer from a prefill to a decode worker: latency + bytes / rate."""

    latency_s: float = Field(ge=0, le=MOST_LATENCY_S, allow_inf_nan=False, description="fixed part")
    bytes_per_s: float = Field(ge=SLOWEST_LINK, le=LARGEST, allow_inf_nan=False)
    source: str


class Scale(_Part):
    """The correction of ``raw_ms``. The times in use are factor * raw_ms + step_ms."""

    prefill: Scaling = Field(description="factor on prefill and dense times")
    decode: Scaling = Field(description="factor on decode times")
    step_ms: float = Field(
        0.0, ge=0, le=MOST_STEP_MS, allow_inf_nan=False, description="added once to every step, of any kind"
    )
    expert_imbalance: Factor = Field(
        1.0, description="factor on the times of experts: the most loaded GPU over that of the tables"
    )
    source: str
    points: dict[str, list[dict[str, float]]] = Field({}, description="what the factors were computed from")


class TokenTable(_Part):
    """Time over tokens: the prefill of one prompt, alone in its batch, or the dense part of a step."""

    tokens: Axis
    raw_ms: Steps

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
    raw_ms: tuple[Steps, ...]

    @model_validator(mode="after")
    def _shape(self) -> DecodeTable:
        _ascending("batch", self.batch)
        _ascending("context_tokens", self.context_tokens)
        if {len(row) for row in self.raw_ms} != {len(self.context_tokens)} or len(self.raw_ms) != len(self.batch):
            raise ValueError(f"raw_ms must be {len(self.batch)} rows of {len(self.context_tokens)} values")
        return self


class ExpertTable(_Part):
    """Time that experts take in a prefill step, and in a decode step, over the tokens that it computes."""

    prefill: TokenTable
    decode: TokenTable


class Power(_Part):
    """What a power cap does to one GPU. Values are linear between the caps, and constant outside."""

    cap_w: Annotated[tuple[Positive, ...], Field(min_length=1)] = Field(description="caps, ascending; the last is none")
    prefill_slow: tuple[Factor, ...] = Field(description="time of a prefill step over its time without a cap")
    decode_slow: tuple[Factor, ...] = Field(description="the same for a decode step")
    settle_s: Natural = Field(description="from setting a cap until the device keeps it")
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
    prefill: dict[Degree, TokenTable] = Field(min_length=1, description="by tensor-parallel size")
    decode: dict[Degree, DecodeTable] = Field(min_length=1, description="by tensor-parallel size")
    dense: dict[Degree, TokenTable] = Field(
        {}, description="by tensor-parallel size: all of a step but attention, over the tokens that it computes"
    )
    power: Power | None = Field(None, description="what power caps do; they do nothing when absent")
    layouts: dict[Degree, Layout] = Field(
        {},
        description="by GPUs of a worker, which are then the keys of all tables; without it only tensors are split",
    )
    experts: dict[Degree, ExpertTable] = Field({}, description="by GPUs: the part of the times that experts take")
    precision: dict[str, str] = Field({}, description="number formats: gemm, moe, kvcache and fmha")
    speculation: Speculation | None = Field(None, description="speculative decoding; None without")

    @model_validator(mode="after")
    def _layouts_fit(self) -> Profile:
        for gpus, layout in self.layouts.items():
            if layout.gpus != gpus:
                raise ValueError(f"layouts has {layout.gpus} GPUs under {gpus}")
        for gpus in self.experts:
            if gpus not in self.prefill or gpus not in self.decode:
                raise ValueError(f"experts has {gpus} GPUs, which prefill or decode lacks")
        return self

    @model_validator(mode="after")
    def _dense_is_for_both(self) -> Profile:
        for tp in self.dense:
            if tp not in self.prefill:
                raise ValueError(f"dense has TP {tp}, which prefill lacks")
        return self


def read_profile(path: Path) -> Profile:
    """Read and check a profile file. Raises ConfigError with one line for the first error."""
    try:
        raw = read_limited(path, MOST_BYTES)
    except OSError as error:
        where = one_line(path)
        raise ConfigError(f"profile {where}: {error.strerror}; give a .json file or a shipped profile") from None
    except ConfigError as error:
        raise ConfigError(f"profile {path}: {error}") from None
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        profile = Profile.model_validate_json(raw)
        json.loads(raw, object_pairs_hook=object_once)
    except ValidationError as error:
        raise ConfigError(f"profile {path}: {first_error(error, Profile)}; see profiles/README.md") from None
    except TwiceError as error:
        raise ConfigError(f"profile {path}: {error}") from None
    return profile


def _ascending(name: str, axis: tuple[float, ...]) -> None:
    if any(b <= a for a, b in pairwise(axis)):
        raise ValueError(f"{name} must ascend")
