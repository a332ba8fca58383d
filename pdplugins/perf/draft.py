"""Makes a profile file from timings, and writes it. The ``pdplugins profile`` commands share this code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from pdplugins.config import first_error
from pdplugins.errors import ConfigError
from pdplugins.files import check_outputs, write_whole
from pdplugins.perf.gpus import Gpu
from pdplugins.perf.profile import MOST_BYTES, Profile
from pdplugins.perf.roofline import Roofline
from pdplugins.perf.shapes import Shape

Row = Sequence[float]

RESERVED_SHARE = 0.1
"""Share of a GPU's memory that vLLM leaves free by default (gpu_memory_utilization 0.9)."""
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 200, 248, 320, 400, 512)


@dataclass(frozen=True, slots=True)
class Knots:
    """The points at which a model's tables have values."""

    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...] = BATCHES

    @classmethod
    def of(cls, max_context: int, shortest: int = 1) -> Knots:
        """Return knots from prompts of `shortest` to the longest context, denser where engines usually work."""
        short = tuple(tokens for tokens in (1, 8, 16, 32) if tokens >= shortest)
        return cls(short + _up_to(max_context, 40), _up_to(max_context, 24))


def _up_to(longest: int, count: int) -> tuple[int, ...]:
    usual = [*(int(x) for x in np.unique(np.geomspace(64, 32_768, count).astype(int))), 65_536]
    return (*(x for x in usual if x < longest), longest)


@dataclass(frozen=True, slots=True)
class Parts:
    """Milliseconds of the parts of the steps of one TP size, at the knots."""

    dense: Row
    """Dense part of prefill, over tokens."""
    attention: Row
    """Attention of one prompt, over tokens."""
    decode_dense: Row
    """Dense part of decode, over batch."""
    decode_attention: Sequence[Row]
    """Attention of decode: a row per batch, a column per context."""

    def tables(self, knots: Knots) -> dict[str, dict[str, Any]]:
        """Return the prefill, decode and dense table, rounded to microseconds.

        Attention is made non-decreasing in the prompt length, so that more history never takes less time.
        """
        attention = never_falling(self.attention)
        prefill = _round([d + a for d, a in zip(self.dense, attention, strict=True)])
        dense = _round([p - a for p, a in zip(prefill, _round(attention), strict=True)])
        steps = [
            [dense + attention for attention in row]
            for dense, row in zip(self.decode_dense, self.decode_attention, strict=True)
        ]
        axes = {"batch": list(knots.batches), "context_tokens": list(knots.contexts)}
        return {
            "prefill": {"tokens": list(knots.tokens), "raw_ms": prefill},
            "decode": axes | {"raw_ms": [_round(row) for row in steps]},
            "dense": {"tokens": list(knots.tokens), "raw_ms": dense},
        }


def roofline_parts(line: Roofline, knots: Knots) -> Parts:
    """Return the parts of the steps by the roofline."""
    return Parts(
        [1e3 * line.dense_s(t) for t in knots.tokens],
        [1e3 * line.prompt_attention_s(t) for t in knots.tokens],
        [1e3 * line.dense_s(b) for b in knots.batches],
        [[1e3 * line.decode_attention_s(b, c) for c in knots.contexts] for b in knots.batches],
    )


def moved(parts: Parts, here: Parts, there: Parts) -> Parts:
    """Move `parts` from one GPU to another: each time keeps its ratio to the roofline of its GPU.

    :param here: roofline of the GPU that `parts` were measured on.
    :param there: roofline of the other GPU.
    """

    def scaled(times: Row, old: Row, new: Row) -> list[float]:
        return [t * b / a for t, a, b in zip(times, old, new, strict=True)]

    rows = zip(parts.decode_attention, here.decode_attention, there.decode_attention, strict=True)
    return Parts(
        scaled(parts.dense, here.dense, there.dense),
        scaled(parts.attention, here.attention, there.attention),
        scaled(parts.decode_dense, here.decode_dense, there.decode_dense),
        [scaled(*row) for row in rows],
    )


def memory_part(shape: Shape, gpu: Gpu) -> dict[str, Any]:
    """Return the memory part of a profile, which bounds the KV cache, from the model's shape and the GPU's memory."""
    return {
        "gpu_bytes": gpu.memory_bytes,
        "reserved_bytes": round(gpu.memory_bytes * RESERVED_SHARE),
        "model_bytes": shape.model_bytes,
        "kv_bytes_per_token": shape.kv_bytes_per_token,
        "source": f"gpu: data sheet; reserved: 10 % of the GPU (vLLM's default gpu_memory_utilization 0.9); model: "
        f"layers at {shape.weight_bytes} bytes a weight and BF16 embeddings; kv: {shape.layers} layers x "
        f"{shape.kv_heads} KV heads x {shape.head_dim} x (K, V) x BF16",
    }


def bandwidth_part(gpu: Gpu) -> dict[str, Any]:
    """Return the bandwidth part of a profile, which bounds the KV cache that a step reads."""
    share = gpu.bandwidth_share
    return {"bytes_per_s": gpu.bytes_per_s, "utilisation": share, "source": "data sheet; aiconfigurator's 0.8 of it"}


def tables_by_tp(parts: Mapping[int, Parts], knots: Knots) -> dict[str, dict[str, Any]]:
    """Return the tables of all TP sizes in the layout of a profile file."""
    every = {tp: found.tables(knots) for tp, found in parts.items()}
    return {kind: {str(tp): tables[kind] for tp, tables in every.items()} for kind in ("prefill", "decode", "dense")}


def check_new(path: Path, force: bool) -> None:
    """Raise ConfigError when `path` cannot be written, or exists and `force` is not set.

    Call it before the work, so that none is lost. Folders that are missing will be made.
    """
    try:
        there = path.exists()
        folder = next(parent for parent in path.absolute().parents if parent.exists())
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}; give a path that can be written") from None
    if there and not force and not path.is_dir():
        raise ConfigError(f"--out {path}: it exists; give --force to replace it")
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise ConfigError(f"--out {path}: nothing can be written to {folder}; give a path that can be written")
    if folder == path.absolute().parent:
        check_outputs(path)


def write(data: Mapping[str, Any], path: Path, force: bool) -> Profile:
    """Check `data` and write it, with one row of numbers per line so that diffs are readable.

    Raises ConfigError when `data` is no valid profile or more than a reader takes, or when `path` exists and `force`
    is not set.
    """
    try:
        profile = Profile.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise ConfigError(f"profile {path}: {first_error(error, Profile)}; nothing was written") from None
    text = _layout(data) + "\n"
    if len(text.encode()) > MOST_BYTES:
        raise ConfigError(
            f"profile {path}: its tables take more than {MOST_BYTES // 1024} KiB, which nothing reads; give tables of "
            "fewer points"
        )
    check_new(path, force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}; give a path that can be written") from None
    write_whole(path, text)
    return profile


def _layout(value: Any, indent: str = "") -> str:
    inner = indent + " "
    if isinstance(value, Mapping) and any(isinstance(item, (Mapping, list, str)) for item in value.values()):
        rows = [f"{inner}{json.dumps(key)}: {_layout(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], (list, Mapping, str)):
        return "[\n" + ",\n".join(inner + _layout(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value)


def never_falling(times: Row) -> list[float]:
    """Make `times` non-decreasing: return the mean of their upper and their lower non-decreasing envelope."""
    above = accumulate(times, max)
    below = reversed([*accumulate(reversed(times), min)])
    return [(a + b) / 2 for a, b in zip(above, below, strict=True)]


def _round(times: Row) -> list[float]:
    return [round(time, 3) for time in times]
