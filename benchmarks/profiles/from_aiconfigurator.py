#!/usr/bin/env python3
"""Write a performance profile (profiles/README.md) from aiconfigurator's kernel tables, scaled to a published one.

Run by hand, in a virtual environment of its own, because aiconfigurator 0.7.0 pins numpy 1.26:

    python3.11 -m venv aic && aic/bin/pip install aiconfigurator==0.7.0
    aic/bin/python benchmarks/profiles/from_aiconfigurator.py \
        --reference profiles/h100/llama-70b-fp8-dopd-table-1.json --out profiles/h100/llama-3.1-70b-fp8.json

The tables that are written are aiconfigurator's own (``raw_ms``); the two factors beside them (``scale``) are the mean
ratios of the reference profile to them, and pdplugins multiplies when it reads the file. The factors are found at the
tensor-parallel sizes of the reference (prefill TP 1, decode TP 2 in the paper) and used for every size.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

logging.disable(logging.WARNING)

import numpy as np  # noqa: E402
from aiconfigurator.sdk import config, inference_session, models, perf_database  # noqa: E402
from aiconfigurator.sdk.backends.factory import get_backend  # noqa: E402

SYSTEM, BACKEND, MODEL = "h100_sxm", "sglang", "nvidia/Llama-3.1-70B-Instruct-FP8"
TP_SIZES = (1, 2, 4)
LONGEST_CONTEXT = 131072
TOKENS = [int(x) for x in np.unique(np.geomspace(64, 32768, 40).astype(int))] + [65536, LONGEST_CONTEXT]
CONTEXTS = [int(x) for x in np.unique(np.geomspace(64, 32768, 24).astype(int))] + [65536, LONGEST_CONTEXT]
BATCHES = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 200, 248, 320, 400, 512]
SHORTEST_SCALED = 700
"""Prompts below this are launch-bound, where aiconfigurator's table is uneven; they do not enter the prefill factor."""

Prefill = Callable[[float], float]
Decode = Callable[[float, float], float]


def session(tp: int) -> tuple[Prefill, Decode]:
    """Return aiconfigurator's prefill and decode step times (milliseconds) at one tensor-parallel size."""
    database = perf_database.get_database(system=SYSTEM, backend=BACKEND, version=database_version())
    model = models.get_model(MODEL, config.ModelConfig(tp_size=tp), BACKEND)
    static = inference_session.InferenceSession(model, database, get_backend(BACKEND))

    def run(batch: float, tokens: float, mode: str, column: str) -> float:
        runtime = config.RuntimeConfig(batch_size=int(batch), beam_width=1, isl=int(tokens), osl=2)
        return float(static.run_static(runtime, mode=mode).get_summary_df()[column].iloc[0])

    return (
        lambda tokens: run(1, tokens, "static_ctx", "context_latency"),
        lambda batch, context: run(batch, context, "static_gen", "tpot"),
    )


def database_version() -> str:
    """Return the version of the newest kernel table for this GPU and engine."""
    return str(perf_database.get_latest_database_version(SYSTEM, BACKEND))


def factors(reference: dict[str, Any], timings: dict[int, tuple[Prefill, Decode]]) -> dict[str, Any]:
    """Return the mean ratios of the reference profile to aiconfigurator, and the points they were taken at."""
    points: dict[str, list[dict[str, float]]] = {"prefill": [], "decode": []}
    for tp, table in reference["prefill"].items():
        for tokens, ms in zip(table["tokens"], table["raw_ms"], strict=True):
            if tokens >= SHORTEST_SCALED:
                raw = timings[int(tp)][0](tokens)
                points["prefill"].append({"tp": int(tp), "tokens": tokens, "reference_ms": ms, "raw_ms": round(raw, 3)})
    for tp, table in reference["decode"].items():
        for (batch, context), ms in _cells(table):
            raw = timings[int(tp)][1](batch, context)
            cell = {"tp": int(tp), "batch": batch, "context_tokens": context}
            points["decode"].append(cell | {"reference_ms": ms, "raw_ms": round(raw, 3)})
    mean = {name: statistics.fmean(p["reference_ms"] / p["raw_ms"] for p in found) for name, found in points.items()}
    return {
        "prefill": mean["prefill"],
        "decode": mean["decode"],
        "source": f"mean of reference_ms / raw_ms over the points; reference: {reference['provenance']['source']}",
        "points": points,
    }


def _cells(table: dict[str, Any]) -> Iterator[tuple[tuple[float, float], float]]:
    for batch, row in zip(table["batch"], table["raw_ms"], strict=True):
        for context, ms in zip(table["context_tokens"], row, strict=True):
            yield (batch, context), ms


def profile(reference: dict[str, Any], command: str) -> dict[str, Any]:
    """Return the whole profile as plain data."""
    timings = {tp: session(tp) for tp in TP_SIZES}
    prefill, decode = {}, {}
    for tp, (prefill_ms, decode_ms) in timings.items():
        prefill[str(tp)] = {"tokens": TOKENS, "raw_ms": [round(prefill_ms(tokens), 3) for tokens in TOKENS]}
        rows = [[round(decode_ms(batch, context), 3) for context in CONTEXTS] for batch in BATCHES]
        decode[str(tp)] = {"batch": BATCHES, "context_tokens": CONTEXTS, "raw_ms": rows}
    tool = f"aiconfigurator {version('aiconfigurator')}"
    return {
        "schema": 1,
        "gpu": reference["gpu"],
        "model": MODEL,
        "kind": "modelled",
        "provenance": {
            "source": f"{tool}, {SYSTEM}, {BACKEND} {database_version()} kernel tables",
            "command": command,
            "notes": [
                "raw_ms is aiconfigurator's static_ctx (batch 1) and static_gen; times are raw_ms times scale.",
                "aiconfigurator has FP8 KV cache; kv_bytes_per_token is BF16, which gives the paper's concurrency.",
                "The factors were found at prefill TP 1 and decode TP 2; at other sizes they are an assumption.",
            ],
        },
        "memory": reference["memory"],
        "bandwidth": reference["bandwidth"],
        "transfer": reference["transfer"],
        "scale": factors(reference, timings),
        "prefill": prefill,
        "decode": decode,
    }


def write(data: dict[str, Any], path: Path) -> None:
    """Write JSON with one row of numbers per line, so that a diff shows what moved."""
    path.write_text(_layout(data) + "\n", encoding="utf-8")


def _layout(value: Any, indent: str = "") -> str:
    inner = indent + " "
    nested = isinstance(value, list) and value and isinstance(value[0], (list, dict))
    if isinstance(value, dict) and any(isinstance(item, (dict, list, str)) for item in value.values()):
        rows = [f"{inner}{json.dumps(key)}: {_layout(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if nested or (isinstance(value, list) and value and isinstance(value[0], str)):
        return "[\n" + ",\n".join(inner + _layout(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value)


def main() -> None:
    """Read the reference, write the profile, print how far the scaled tables are from the reference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="profile whose times aiconfigurator is scaled to")
    parser.add_argument("--out", type=Path, required=True, help="profile to write")
    options = parser.parse_args()
    command = f"benchmarks/profiles/from_aiconfigurator.py --reference {options.reference} --out {options.out}"
    data = profile(json.loads(options.reference.read_text(encoding="utf-8")), command)
    write(data, options.out)
    for phase, points in data["scale"]["points"].items():
        off = [abs(p["raw_ms"] * data["scale"][phase] / p["reference_ms"] - 1) for p in points]
        factor = data["scale"][phase]
        print(f"{phase}: scale {factor:.4f}, mean error {statistics.fmean(off):.1%}, largest {max(off):.1%}")


if __name__ == "__main__":
    main()
