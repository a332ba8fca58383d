"""Profiles from aiconfigurator's measured kernel tables.

aiconfigurator 0.7.0 pins numpy 1.26, so it may need another virtual environment than pdplugins. It therefore runs in a
separate Python process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pdplugins.errors import ConfigError
from pdplugins.perf.draft import Knots, Parts, moved, roofline_parts
from pdplugins.perf.gpus import GPUS, Gpu
from pdplugins.perf.profile import Profile
from pdplugins.perf.roofline import Roofline
from pdplugins.perf.shapes import Shape

PROGRAM = Path(__file__).with_name("tables_program.py")
INSTALL = "python3.11 -m venv aic && aic/bin/pip install aiconfigurator==0.7.0, then give --python aic/bin/python"
QUANTISED = ("nvidia/Llama-3.1-70B-Instruct-FP8",)
"""Models whose quantisation aiconfigurator knows by name. For others a config.json is written."""
SHORTEST_SCALED = 700
"""Shorter prompts are launch-bound, and aiconfigurator's table is uneven there. The prefill factor ignores them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tables to read."""

    model: str
    shape: Shape
    gpu: Gpu
    """A GPU that aiconfigurator has tables for."""
    tp: tuple[int, ...]
    backend: str = "sglang"
    version: str | None = None
    """Version of the tables; None for the newest."""
    python: str = sys.executable


@dataclass(frozen=True, slots=True)
class Found:
    """The answer of aiconfigurator."""

    source: str
    parts: dict[int, Parts]


def known() -> str:
    """Return the GPUs that aiconfigurator has tables for, with commas."""
    return ", ".join(name for name, gpu in GPUS.items() if gpu.aiconfigurator)


def ask(wanted: Wanted, knots: Knots) -> Found:
    """Read the tables. Raises ConfigError when aiconfigurator is not installed or cannot answer."""
    with tempfile.TemporaryDirectory() as folder:
        known = wanted.model in QUANTISED
        if not known:
            (Path(folder) / "config.json").write_text(json.dumps(wanted.shape.hugging_face()))
        asked = {
            "model": wanted.model if known else folder,
            "system": wanted.gpu.aiconfigurator,
            "backend": wanted.backend,
            "version": wanted.version,
            "tp": wanted.tp,
            **asdict(knots),
        }
        answer = run(wanted.python, "kernels_reader", asked)
    if "error" in answer:
        raise ConfigError(f"aiconfigurator: {wanted.model} on {wanted.gpu.aiconfigurator}: {answer['error']}")
    source = f"{answer['tool']}, {wanted.gpu.aiconfigurator}, {wanted.backend} {answer['version']} kernel tables"
    return Found(source, {int(tp): Parts(**parts) for tp, parts in answer["parts"].items()})


def run(python: str, reader: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader of tables answers. Raises ConfigError when it does not, or aiconfigurator is missing.

    :param reader: the module beside `PROGRAM` that reads them.
    """
    try:
        done = subprocess.run(
            [python, str(PROGRAM), reader], input=json.dumps(asked), capture_output=True, text=True, check=False
        )
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except OSError as error:
        raise ConfigError(f"--python {python}: {error.strerror}; run {INSTALL}") from None
    except ValueError:
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise ConfigError(f"--python {python}: aiconfigurator failed: {last}") from None
    if "missing" in answer:
        raise ConfigError(f"--python {python}: it has no {answer['missing']}; run {INSTALL}")
    return answer


def provenance(found: Found, base: Gpu, target: Gpu) -> tuple[str, list[str]]:
    """Return the source and the notes of a profile for `target` from the tables of `base`."""
    notes = ["raw_ms is aiconfigurator's static_ctx (batch 1) and static_gen; times are raw_ms times scale."]
    if base is target:
        return found.source, notes
    moved_by = (
        f"At every knot, dense part and attention are as far from the roofline of {target.name} as those of "
        f"{base.name} are from its own, with {target.gemm_share:.0%} and {base.gemm_share:.0%} of peak compute."
    )
    return f"{found.source}, moved to {target.name}", [*notes, moved_by]


def on_another(found: Found, wanted: Wanted, target: Gpu, knots: Knots) -> dict[int, Parts]:
    """Return the parts on `target`: the tables of `wanted.gpu`, times the ratio of the two rooflines at every knot."""

    def lines(gpu: Gpu, tp: int) -> Parts:
        return roofline_parts(Roofline(wanted.shape, gpu, tp), knots)

    return {tp: moved(parts, lines(wanted.gpu, tp), lines(target, tp)) for tp, parts in found.parts.items()}


def factors(reference: Profile, wanted: Wanted) -> dict[str, Any]:
    """Return the mean ratios of the reference profile to aiconfigurator, and the points that they are taken at."""
    prefill, decode = [], []
    for tp, table in reference.prefill.items():
        tokens = tuple(int(t) for t in table.tokens if t >= SHORTEST_SCALED)
        measured = _raw(wanted, tp, Knots(tokens, (), ()))["prefill"]["raw_ms"]
        known = [ms for t, ms in zip(table.tokens, table.raw_ms, strict=True) if t >= SHORTEST_SCALED]
        for t, ms, raw in zip(tokens, known, measured, strict=True):
            prefill.append({"tp": tp, "tokens": t, "reference_ms": ms, "raw_ms": raw})
    for tp, steps in reference.decode.items():
        knots = Knots((), tuple(map(int, steps.context_tokens)), tuple(map(int, steps.batch)))
        rows = zip(knots.batches, steps.raw_ms, _raw(wanted, tp, knots)["decode"]["raw_ms"], strict=True)
        for batch, row, found in rows:
            for context, ms, raw in zip(knots.contexts, row, found, strict=True):
                cell = {"tp": tp, "batch": batch, "context_tokens": context}
                decode.append(cell | {"reference_ms": ms, "raw_ms": raw})
    if not (prefill and decode):
        raise ConfigError(f"--reference: it needs prompts of {SHORTEST_SCALED} tokens or more, and decode steps")
    points: dict[str, list[dict[str, float]]] = {"prefill": prefill, "decode": decode}
    mean = {name: statistics.fmean(p["reference_ms"] / p["raw_ms"] for p in found) for name, found in points.items()}
    source = f"mean of reference_ms / raw_ms over the points; reference: {reference.provenance.source}"
    return mean | {"source": source, "points": points}


def _raw(wanted: Wanted, tp: int, knots: Knots) -> dict[str, Any]:
    return ask(replace(wanted, tp=(tp,)), knots).parts[tp].tables(knots)
