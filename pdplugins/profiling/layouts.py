"""Profiles of workers that share a model over several GPUs in ways of their own, from aiconfigurator's kernel tables.

A layout is written as its degrees: ``tp8`` splits everything over eight GPUs, ``tp8+ep8`` gives each of them experts of
its own, ``dp8+ep8`` gives each of them the attention of its own requests too, ``tp8+pp2`` makes two stages of eight.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pdplugins.errors import ConfigError
from pdplugins.files import is_file
from pdplugins.perf.draft import BATCHES, RESERVED_SHARE, never_falling
from pdplugins.perf.gpus import Gpu
from pdplugins.perf.profile import read_profile
from pdplugins.profiling import kernels
from pdplugins.profiling.thin import thinned

DEGREES = {"tp": "tensor", "dp": "attention_data", "pp": "pipeline", "ep": "expert", "etp": "expert_tensor"}
TOKENS = (
    1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576,
    32768,
)  # fmt: skip
CONTEXTS = (64, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768)
LONG_BATCHES = (*BATCHES, 768, 1024)
ENGINE_BYTES = 3e9
"""Memory of a GPU for activations and CUDA graphs, beyond the share that engines leave free."""
WINDOW_CONTEXT = 2048
"""Context that a request is taken to have, where layers keep only a window of it."""
MOST_ERROR = 0.01
"""Largest relative error that leaving out knots may make."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """How the GPUs of one worker share the model; see `pdplugins.perf.profile.Layout`."""

    tensor: int = 1
    attention_data: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of the worker."""
        return self.tensor * self.attention_data * self.pipeline

    @classmethod
    def read(cls, text: str) -> Degrees:
        """Read ``dp8+ep8``. Experts are split over the GPUs that `ep` leaves. Raises ConfigError for anything else."""
        parts = [re.fullmatch(r"(tp|dp|pp|ep|etp)([1-9][0-9]{0,2})", part) for part in text.split("+")]
        found = {DEGREES[part[1]]: int(part[2]) for part in parts if part}
        if len(found) != len(parts):
            raise ConfigError(f"--layout {text}: give degrees such as tp8, tp8+ep8 or dp8+ep8")
        over = found.get("tensor", 1) * found.get("attention_data", 1)
        expert = found.get("expert", 1)
        split = found.setdefault("expert_tensor", max(over // expert, 1))
        if expert * split != over:
            raise ConfigError(f"--layout {text}: experts lie on {expert * split} GPUs, attention on {over}")
        return cls(**found)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tables to read."""

    model: str
    """Name on Hugging Face that aiconfigurator knows, or the path of a config.json."""
    gpu: Gpu
    layouts: Sequence[Degrees]
    backend: str
    version: str | None
    python: str
    modes: Mapping[str, str] = field(default_factory=dict)
    """Number formats instead of the model's own: gemm, moe, kvcache, fmha."""
    experts: str = "power_law"
    """How work is spread over experts in the tables: ``power_law`` or ``balanced``."""
    shared_beside: bool = False
    """Shared experts compute beside the others in decode steps, on a stream of their own, instead of before them."""
    rails: int = 1
    """Network adapters of a server over which a collective of several servers runs at once."""
    draft_tokens: int = 0
    """Tokens that are guessed in each step by layers of the model's own (multi-token prediction)."""
    acceptance: float = 0.0
    most_error: float = MOST_ERROR


def read_modes(words: Sequence[str]) -> dict[str, str]:
    """Read ``kvcache=float16``. Raises ConfigError for anything else."""
    found = dict(word.partition("=")[::2] for word in words)
    for name, value in found.items():
        if name not in {"gemm", "moe", "kvcache", "fmha"} or not value:
            raise ConfigError(f"--precision {name}={value}: give gemm, moe, kvcache or fmha, and aiconfigurator's name")
    return found


def ask(wanted: Wanted) -> dict[str, Any]:
    """Return aiconfigurator's answer. Raises ConfigError when it is not installed or has no such tables."""
    if (system := wanted.gpu.aiconfigurator) is None:
        raise ConfigError(f"--gpu: aiconfigurator has no tables for {wanted.gpu.name}; choose from {kernels.known()}")
    with tempfile.TemporaryDirectory() as folder:
        model = wanted.model
        if is_file(path := Path(model)):
            (Path(folder) / "config.json").write_bytes(path.read_bytes())
            model = folder
        asked = {
            "model": model,
            "system": system,
            "backend": wanted.backend,
            "version": wanted.version,
            "modes": dict(wanted.modes),
            "experts": wanted.experts,
            "shared_beside": wanted.shared_beside,
            "rails": wanted.rails,
            "layouts": [asdict(layout) for layout in wanted.layouts],
            "tokens": TOKENS,
            "batches": LONG_BATCHES,
            "contexts": CONTEXTS,
        }
        answer = kernels.run(wanted.python, "layouts_reader", asked)
    if "error" in answer:
        reason = str(answer["error"]).splitlines()[0]
        raise ConfigError(f"aiconfigurator: {wanted.model} on {system}, {wanted.backend}: {reason}")
    return answer


def profile_parts(wanted: Wanted) -> tuple[str, list[str], dict[str, Any]]:
    """Return the source, the notes, and the parts of a profile file that follow from the tables."""
    sizes = [layout.gpus for layout in wanted.layouts]
    if len(set(sizes)) < len(sizes):
        raise ConfigError("--layout: a file has one layout for each number of GPUs; write another file")
    answer = ask(wanted)
    found = dict(zip(sizes, answer["layouts"], strict=True))
    first = answer["layouts"][0]
    source = (
        f"{answer['tool']}, {wanted.gpu.aiconfigurator}, {wanted.backend} {answer['version']} kernel tables, "
        f"experts {wanted.experts}"
    )
    notes = [
        "Times are of whole workers: tokens and batch are spread evenly over the groups of data-parallel attention.",
        "A decode step that takes longer than one with more requests or context takes the other's time.",
        f"On each axis, knots are left out where linear interpolation is off by at most {wanted.most_error:.1%}.",
    ]
    tables = {gpus: _tables(parts, wanted.most_error) for gpus, parts in found.items()}
    guesses = {
        "draft_tokens": wanted.draft_tokens,
        "acceptance": wanted.acceptance,
        "draft_share": round(1 / first["layers"], 4),
    }
    written = {
        "speculation": guesses if wanted.draft_tokens else None,
        "memory": _memory(first, wanted.gpu),
        "precision": first["modes"],
        "layouts": {str(layout.gpus): _layout(layout, found[layout.gpus]) for layout in wanted.layouts},
        **{
            part: {str(gpus): table[part] for gpus, table in tables.items() if part in table}
            for part in ("prefill", "decode", "dense", "experts")
        },
    }
    return source, notes, {name: part for name, part in written.items() if part}


def with_decode_of(path: Path, source: str, parts: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the source and the parts of a profile whose decode steps are those of the profile at `path`.

    Tables of one version may lack the kernels of an engine that another has. Raises ConfigError for other layouts.
    """
    other = read_profile(path).model_dump(mode="json", exclude_none=True)
    if (found := other["layouts"].keys()) != parts["layouts"].keys():
        raise ConfigError(
            f"--decode-of {path}: it has layouts of {', '.join(found)} GPUs; give one of the same layouts"
        )
    taken: dict[str, Any] = {**parts, "decode": other["decode"]}
    if "experts" in parts:
        if other.get("experts", {}).keys() != parts["experts"].keys():
            raise ConfigError(f"--decode-of {path}: it has no experts on the same GPUs; give a profile of that model")
        taken["experts"] = {
            gpus: {**mine, "decode": other["experts"][gpus]["decode"]} for gpus, mine in parts["experts"].items()
        }
    return f"{source}; decode steps: {other['provenance']['source']}", taken


def _memory(found: Mapping[str, Any], gpu: Gpu) -> dict[str, Any]:
    window = {
        "tokens": found["window_tokens"],
        "bytes_per_token": found["window_bytes_per_token"],
        "context_tokens": WINDOW_CONTEXT,
    }
    return {
        "gpu_bytes": gpu.memory_bytes,
        "reserved_bytes": round(gpu.memory_bytes * RESERVED_SHARE + ENGINE_BYTES),
        "model_bytes": round(found["weights_bytes"]),
        "kv_bytes_per_token": found["kv_bytes_per_token"],
        **({"window": window} if found["window_tokens"] else {}),
        "source": f"gpu: data sheet; reserved: {RESERVED_SHARE:.0%} of the GPU and {ENGINE_BYTES / 1e9:g} GB for "
        f"activations and CUDA graphs; weights and KV cache: aiconfigurator, KV cache {found['modes']['kvcache']}",
    }


def _layout(layout: Degrees, found: Mapping[str, Any]) -> dict[str, Any]:
    degrees = {name: degree for name, degree in asdict(layout).items() if degree > 1}
    return {
        **degrees,
        "model_bytes": round(found["weights_bytes"]),
        **({"kv_copies": found["kv_copies"]} if found["kv_copies"] > 1 else {}),
        **({"note": found["note"]} if found["note"] else {}),
    }


def _tables(found: Mapping[str, Any], most_error: float) -> dict[str, Any]:
    """Return the thinned tables of one layout. Attention never falls with the length of a prompt."""
    dense, attention = never_falling(found["dense"]), never_falling(found["attention"])
    prefill = [d + a for d, a in zip(dense, attention, strict=True)]
    steps = _unspiked(
        [
            [whole + attended for attended in row]
            for whole, row in zip(found["decode_dense"], found["decode_attention"], strict=True)
        ]
    )
    tokens = thinned(TOKENS, [prefill, dense], most_error)
    batches = thinned(LONG_BATCHES, list(zip(*steps, strict=True)), most_error)
    contexts = thinned(CONTEXTS, steps, most_error)
    tables: dict[str, Any] = {
        "prefill": {"tokens": _at(TOKENS, tokens), "raw_ms": _rounded(_at(prefill, tokens))},
        "dense": {"tokens": _at(TOKENS, tokens), "raw_ms": _rounded(_at(dense, tokens))},
        "decode": {
            "batch": _at(LONG_BATCHES, batches),
            "context_tokens": _at(CONTEXTS, contexts),
            "raw_ms": [_rounded(_at(row, contexts)) for row in _at(steps, batches)],
        },
    }
    if any(found["experts"]):
        axes = {"prefill": (TOKENS, found["experts"]), "decode": (LONG_BATCHES, found["decode_experts"])}
        tables["experts"] = {name: _curve(axis, times, most_error) for name, (axis, times) in axes.items()}
    return tables


def _unspiked(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the largest times that never fall with the row or the column, and are nowhere above `rows`.

    A single measurement that is several times too long, as these tables have them, is so cut to what more work takes.
    """
    table = np.array(rows)[::-1, ::-1]
    lower = np.minimum.accumulate(np.minimum.accumulate(table, axis=0), axis=1)[::-1, ::-1]
    return [[float(ms) for ms in row] for row in lower]


def _curve(axis: Sequence[int], times: Sequence[float], most_error: float) -> dict[str, Any]:
    kept = thinned(axis, [times], most_error)
    return {"tokens": _at(axis, kept), "raw_ms": _rounded(_at(times, kept))}


def _at(values: Sequence[Any], kept: Sequence[int]) -> list[Any]:
    return [values[index] for index in kept]


def _rounded(times: Sequence[float]) -> list[float]:
    return [round(time, 3) for time in times]
