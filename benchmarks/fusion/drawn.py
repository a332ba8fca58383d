#!/usr/bin/env python3
"""Fusion on cells that nobody chose: hardware, lengths and objectives are drawn at random.

    python benchmarks/fusion/drawn.py [--cells 100-111] [--minutes 4]

Cells below 100 served to develop fusion. The published ones are from 100 on. Each is run with the usual largest decode
batch, and with a small one: then places to decode are what is short. It goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import manifest
import numpy as np
import search
from cells import SETTLE_S, Cell, Config, Hardware, Trace
from experiment import Row, publish
from search import MEMORY, Memory, OutOfTimeError, Trial
from systems import fusion, stock

from pdplugins.runtime.assembly import load_profile
from pdplugins.types import Role, TraceRequest

PUBLISHED = "100-111"
WHOLE = 102
"""The cell whose stock configurations are tuned once more where the results are shown equal."""
BATCHES = {"drawn": None, "drawn-small-batch": 16}
"""Largest decode batch of a worker, by result; None for that of the config's default."""
SHARES = (0.5, 0.8, 1.0, 1.5)
REQUESTS = 8000
"""Of a cell: settings are chosen on the first half, and the second half is shown."""
PROFILES = (
    "a100/llama-3.1-8b", "a100/qwen2.5-14b", "a100/qwen2.5-32b", "a100/qwen2.5-72b", "b200/deepseek-r1-nvfp4",
    "b200/llama-3.1-405b-fp8", "b200/qwen3-235b-a22b-nvfp4", "b200/qwen3-coder-480b-nvfp4", "gb200/deepseek-r1-nvfp4",
    "h100/deepseek-r1", "h100/gpt-oss-120b", "h100/llama-3.1-70b-fp8", "h100/llama-3.1-8b", "h100/qwen3-235b-a22b-fp8",
    "h100/qwen3-32b", "h20/llama-3.1-70b", "h20/mixtral-8x7b", "h20/qwen3-32b", "h200/deepseek-r1",
    "h200/gpt-oss-120b", "h200/llama-3.1-405b-fp8", "h200/qwen3-235b-a22b-fp8", "h800/llama-3.1-8b",
)  # fmt: skip
WORKERS = 2, 6
ISL, OSL = (100, 8000), (20, 1000)
"""Bounds of the mean lengths, drawn evenly in their logarithm."""
SIGMA = 0.2, 1.2
"""Bounds of the standard deviation of the logarithm of a length."""
TTFT_FACTOR, TPOT_FACTOR = (3, 30), (1.3, 8)
"""Bounds of the objectives: times the prefill of a mean prompt, and times the decode step of one request."""
HELD = 12
"""Requests of mean length that a worker's KV cache must hold at least; else the cell is drawn again."""
SETTLES = 2.5
"""What arrives in so many times as long as a mean request may stay is not counted."""


class Draw(NamedTuple):
    """What a cell is made of."""

    on: Hardware
    lengths: tuple[float, float]
    objectives: dict[str, float]
    requests: Trace


@cache
def drawn(number: int) -> Draw:
    """Return what the cell of this number is made of."""
    rng = np.random.default_rng(70_000 + number)

    def between(bounds: tuple[float, float]) -> float:
        return float(np.exp(rng.uniform(log(bounds[0]), log(bounds[1]))))

    while True:
        profile = PROFILES[rng.integers(len(PROFILES))]
        perf = load_profile(profile)
        sizes = sorted(set(perf.tp_sizes(Role.PREFILL)) & set(perf.tp_sizes(Role.DECODE)))
        tp, workers = int(sizes[rng.integers(len(sizes))]), int(rng.integers(WORKERS[0], WORKERS[1] + 1))
        means, sigmas = (between(ISL), between(OSL)), rng.uniform(*SIGMA, 2)
        isl, osl = (
            np.clip(mean * rng.lognormal(-sigma * sigma / 2, sigma, REQUESTS), *bounds).astype(int)
            for mean, sigma, bounds in zip(means, sigmas, ((8, 32_768), (2, 8192)), strict=True)
        )
        lengths = float(isl.mean()), float(osl.mean())
        ttft_s = between(TTFT_FACTOR) * perf.prefill_s(lengths[0], tp)
        tpot_s = between(TPOT_FACTOR) * perf.decode_step_s(1, lengths[0] + lengths[1] / 2, tp)
        kv_tokens = perf.kv_capacity_tokens(tp)
        if kv_tokens > HELD * sum(lengths) and kv_tokens > 1.2 * int((isl + osl).max()):
            requests = [TraceRequest(0.0, int(i), int(o)) for i, o in zip(isl, osl, strict=True)]
            objectives = {"ttft_s": float(f"{ttft_s:.2g}"), "tpot_s": float(f"{tpot_s:.2g}")}
            return Draw(Hardware(profile, tp, workers), lengths, objectives, requests)


@dataclass(frozen=True)
class Drawn(Cell):
    """A cell drawn at random."""

    number: int = 0
    max_batch: int | None = None

    def config(self, prefill: int | None = None, **parts: Any) -> Config:
        """Return a config with `prefill` prefill workers; half of them when it is not given."""
        config = super().config(prefill, **parts)
        if self.max_batch is not None:
            config["deployment"]["max_batch"] = self.max_batch
        return config

    @property
    def on(self) -> Hardware:
        """Return the hardware."""
        return drawn(self.number).on

    def half(self, *, tuning: bool) -> Trace:
        """Return the requests that are tuned on, or those that are shown."""
        middle = REQUESTS // 2
        return drawn(self.number).requests[:middle] if tuning else drawn(self.number).requests[middle:]

    def lengths(self) -> tuple[float, float]:
        """Return the mean prompt and output of a request, in tokens."""
        return drawn(self.number).lengths

    def objectives(self) -> dict[str, float]:
        """Return the SLOs of this cell, to two digits."""
        return drawn(self.number).objectives

    def settles_s(self) -> float:
        """Return from when on what arrives is counted."""
        return max(SETTLES * self.stays_s(), SETTLE_S)


def cell_of(number: int, max_batch: int | None = None) -> Drawn:
    """Return the cell of this number."""
    return Drawn(f"drawn {number}", "", "", Path(), number, max_batch)


def examined(cell: Drawn, memory: Memory) -> tuple[Row, float]:
    """Return the row of one cell: fusion, and the best of the tuned stock configurations at each rate.

    The second is the capacity with all digits.
    """
    tuned = {name: search.tuned(cell, name, tried, memory) for name, tried in stock(cell).items()}
    capacity, (isl, osl), slo = search.capacity(cell, tuned, 0, memory), cell.lengths(), cell.objectives()
    row: Row = {
        "cell": cell.number, "workers": f"{cell.on.workers} of TP {cell.on.tp}, {cell.on.profile}",
        "prompt/output": f"{isl:.0f}/{osl:.0f}", "TTFT, s": slo["ttft_s"], "TPOT, ms": 1e3 * slo["tpot_s"],
        "capacity, requests/s": float(f"{capacity:.4g}"),
    }  # fmt: skip
    if not capacity:
        return row, capacity
    duration_s = cell.lasts_s(capacity)

    def at(config: Config, share: float, *policies: str) -> float:
        return Trial(cell, config, duration_s, memory, policies).at(share * capacity, 0).attainment

    for share in SHARES:
        best = max(at(one.config, share, *search.policies(name)) for name, one in tuned.items())
        ours = at(fusion(cell), share, "fusion")
        row |= {f"fusion at {share:g}": ours, f"lead at {share:g}": 100 * (ours - best)}
    return row, capacity


def cell() -> dict[str, list[Row]]:
    """Return what fusion does in every row, and one row whole, computed again: benchmarks/equality.py."""
    found = {}
    for name, max_batch in BATCHES.items():
        data = manifest.read(f"fusion-{name}")
        pairs = zip(data["rows"], data["capacities"], strict=True)
        found[f"fusion-{name}"] = [again(row, capacity, max_batch) for row, capacity in pairs]
    return found


def again(row: Row, capacity: float, max_batch: int | None) -> Row:
    """Return the texts of a published row and what fusion does at its exact capacity; all of the row `WHOLE`."""
    one = cell_of(row["cell"], max_batch)
    if row["cell"] == WHOLE:
        return examined(one, Memory())[0]
    trial = Trial(one, fusion(one), one.lasts_s(capacity), Memory(), ("fusion",))
    at = {f"fusion at {share:g}": trial.at(share * capacity, 0).attainment for share in SHARES}
    return {key: value for key, value in row.items() if isinstance(value, str)} | at


def show(name: str, found: Sequence[tuple[Row, float]]) -> None:
    """Write a result."""
    served = [row for row, capacity in found if capacity]
    leads = {share: [row[f"lead at {share:g}"] for row in served] for share in SHARES}
    summary = {
        "cells": len(served),
        "mean lead": {f"{share:g}": fmean(of) for share, of in leads.items()},
        "least lead": {f"{share:g}": min(of) for share, of in leads.items()},
        "behind by more than a point": {f"{share:g}": sum(lead < -1 for lead in of) for share, of in leads.items()},
    }
    publish(
        "fusion", name, served, title=title(name), seed=0,
        published="none; nobody chose these cells.",
        notes=(
            f"Drawn: one of {len(PROFILES)} profiles and its parallelism, {WORKERS[0]} to {WORKERS[1]} workers, mean "
            f"prompts of {ISL[0]} to {ISL[1]} tokens and outputs of {OSL[0]} to {OSL[1]}, lognormal with a sigma of "
            f"{SIGMA[0]} to {SIGMA[1]}, a TTFT of {TTFT_FACTOR[0]} to {TTFT_FACTOR[1]} times the prefill of a mean "
            f"prompt, and a TPOT of {TPOT_FACTOR[0]} to {TPOT_FACTOR[1]} times the decode step of one request. "
            "Arrivals are Poisson.",
            "Stock is tuned as in the matrix, on requests that are not shown; at each rate the best of it counts. "
            "Capacity is the highest rate that it serves to 90 %. Nothing of fusion is tuned on these cells.",
            f"What arrives in the first {SETTLES:g} times as long as a mean request may stay is not counted.",
        ),
        more={"summary": summary, "capacities": [capacity for _, capacity in found if capacity]},
    )  # fmt: skip


def title(name: str) -> str:
    """Return the title of a result."""
    batch = f", at most {BATCHES[name]} decodes a worker" if BATCHES[name] is not None else ""
    return f"Cells drawn at random{batch}, against the best tuned stock configuration"


def numbers(text: str) -> list[int]:
    """Return the numbers of cells: ``100-111``, or one."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> int:
    """Run what is not there yet; return 75 (try again) where the time was over first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=numbers, default=numbers(PUBLISHED), help="numbers; others are only printed")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then; go on when called again")
    options = parser.parse_args()
    memory = Memory(MEMORY, time.monotonic() + 60 * options.minutes)
    try:
        for name, max_batch in BATCHES.items():
            found = []
            for number in options.cells:
                found.append(examined(cell_of(number, max_batch), memory))
                print(name, found[-1][0], flush=True)
            if options.cells == numbers(PUBLISHED):
                show(name, found)
    except OutOfTimeError:
        print("stopped: the time is over; call it again to go on")
        return 75
    return 0


if __name__ == "__main__":
    sys.exit(main())
