#!/usr/bin/env python3
"""Fusion against the five plugins and the best tuned stock configurations, from half to three times capacity.

    python benchmarks/fusion/matrix.py --traces DIR [--only h100 middle] [--seeds 1] [--minutes 4]
    python benchmarks/fusion/matrix.py --traces DIR --fusion-alone

It goes on where it was stopped, also after `--minutes`. The tables are written when all cells are done. After a change
of fusion, `--fusion-alone` runs nothing else: all others stay as they are in the last result, while their code is the
same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import manifest
import pictures
import search
import tables
from cells import (
    FILES,
    GAP_SCALE,
    HARDWARE,
    MOST_ROUNDS,
    PER_WORKER,
    RESIDENCES,
    SETTLE_S,
    SHOWN,
    TPOT_FACTORS,
    TTFT_FACTOR,
    TUNED,
    Cell,
)
from experiment import publish
from search import HOPELESS, SHARES, Memory, OutOfTimeError, Run, Seen, Trial
from systems import STOCK, fusion, systems
from tables import FUSION, Found

from pdplugins.errors import PdpluginsError

RESULT = "fusion-systems"
FEWER = {"h200": ("middle", "loose")}
"""Hardware that is not run with every objective: a mixture of experts takes as long as two others."""


def cells(folder: Path, only: Sequence[str] = ()) -> list[Cell]:
    """Return the cells whose name has all words of `only`, or all."""
    every = [
        Cell(hardware, workload, slo, folder)
        for slo in ("middle", "strict", "loose")
        for workload in FILES
        for hardware in HARDWARE
        if slo in FEWER.get(hardware, TPOT_FACTORS)
    ]
    assert set(TPOT_FACTORS) == {cell.slo for cell in every}
    return [cell for cell in every if set(only) <= set(cell.name.split())]


def examined(cell: Cell, seeds: Sequence[int], memory: Memory) -> Found:
    """Run everything on one cell."""
    chosen = {name: search.tuned(cell, name, tried, memory) for name, tried in systems(cell).items()}
    stock = {name: chosen[name] for name in STOCK}
    capacities = [search.capacity(cell, stock, seed, memory) for seed in seeds]
    shown: dict[str, list[Seen]] = {name: [] for name in chosen}
    bounds: list[list[float]] = []
    for seed, capacity in zip(seeds, capacities, strict=True):
        if not capacity:
            continue
        duration_s = cell.lasts_s(capacity)
        for name, one in chosen.items():
            trial = Trial(cell, one.config, duration_s, memory, search.policies(name))
            shown[name].append(search.seen(trial, capacity, seed))
        if seed == seeds[0]:
            bounds.append(search.bounds(cell, capacity, seed, memory))
    return Found(cell, capacities, {name: one.setting for name, one in chosen.items()}, shown, bounds)


def last_of(cell: Cell) -> tables.Row:
    """Return what the last result says of a cell."""
    return next(row for row in manifest.read(RESULT)["cells"] if row["cell"] == cell.name)


def with_fusion(cell: Cell, memory: Memory) -> Found:
    """Run fusion on one cell. The others are as in the last result: the mean of their seeds at each rate."""
    last = last_of(cell)
    shown: dict[str, list[Seen]] = {FUSION: []}
    for name, figures in last["systems"].items():
        columns = [figures[key] for key in tables.FIGURES]
        points = [dict(zip(tables.FIGURES, point, strict=True)) for point in zip(*columns, strict=True)]
        runs = tuple(Run(whole=float("nan"), **point) for point in points)
        shown[name] = [] if name == FUSION else [Seen(runs, highest) for highest in figures["highest"]]
    for seed, capacity in zip(SHOWN, last["capacities"], strict=True):
        trial = Trial(cell, fusion(cell), cell.lasts_s(capacity), memory, search.policies(FUSION))
        shown[FUSION].append(search.seen(trial, capacity, seed))
    settings = {name: figures["setting"] for name, figures in last["systems"].items()}
    return Found(cell, last["capacities"], settings, shown, last["bounds"])


def told(found: Found) -> Iterator[str]:
    """Yield what a terminal shows of one cell."""
    yield f"{found.cell.name}: {found.cell.objectives()}, capacity {found.capacity:.4g} requests/s"
    for name, runs in found.shown.items():
        points = " ".join(f"{found.attainment(name, share):.3f}" for share in SHARES) if runs else "no capacity"
        yield f"  {name:28s} {found.settings[name]:22s} {points}  up to {found.highest(name):.2f}"


PUBLISHED = "none; the rivals are our other plugins and stock configurations, each with the best of its settings."
HARDWARE_TOLD = "; ".join(f"{name}: {it.profile}, {it.workers} workers of TP {it.tp}" for name, it in HARDWARE.items())
SLOS_TOLD = ", ".join(f"{name} {factor:g}" for name, factor in TPOT_FACTORS.items())
NOTES = (
    f"{HARDWARE_TOLD}. Traffic: requests of recorded traces (Azure 2023 conversation and code, Mooncake conversation, "
    "tau-bench agents, and nine Azure conversations to one Mooncake document of at most 12,288 tokens) with Poisson "
    f"arrivals; agents keep {GAP_SCALE:g} of their gaps and {MOST_ROUNDS} rounds.",
    f"TTFT is {TTFT_FACTOR:g} times the prefill of a mean prompt; TPOT a multiple of the decode step of one request of "
    f"mean context: {SLOS_TOLD}; the strict one is not run on h200.",
    f"Settings are the best on the first half of each trace (seed {TUNED}); what is shown is from the "
    "second half, the mean of the seeds. Capacity is the highest rate that the best stock configuration serves to "
    f"90 %, found for each seed; a run lasts as long at all rates: for {PER_WORKER} requests a "
    f"worker at capacity, and for at least {RESIDENCES:g} times as long as a mean request may stay within its "
    f"objectives, or {SETTLE_S:g} s. What arrives in the first of these times is not counted.",
    f"A system below {HOPELESS:.0%} of attainment is not run at higher rates: its last run stands there too, which "
    "favours it. Fusion is always run. Nothing of fusion is tuned.",
    "The highest rate is found by halving between the rates that are run, and on the line between the last two.",
)


def publish_all(found: Sequence[Found], seeds: int) -> None:
    """Write the results with their tables and pictures."""
    pictures.gains("rates", found)
    pictures.curves("systems", found)
    publish(
        "fusion", "rates", tables.rates(found), title="Fusion in every cell", published=PUBLISHED, seed=SHOWN[0],
        notes=(
            f"Seeds: {', '.join(map(str, SHOWN[:seeds]))}.",
            *NOTES,
            "A lead is fusion's attainment less that of the best of all other systems at that rate, in points; the "
            "least one is over all rates. Goodput: arrivals served inside both SLOs. Regret: share of what any policy "
            "could attain at most that fusion misses at 0.8, first seed; sessions have no such bound.",
        ),
        more={"summary": tables.summary(found)},
    )  # fmt: skip
    publish(
        "fusion", "price", tables.price(found), title="The price: who waits, and what the GPUs draw", seed=SHOWN[0],
        published=PUBLISHED,
        notes=(
            "By tokens: share of all prompt and output tokens that belong to requests inside both SLOs.",
            "Watts are of all GPUs, by the power models of the profiles, which nobody measured; the mixture of "
            "experts has none.",
        ),
    )  # fmt: skip
    publish(
        "fusion", "systems", tables.overview(found), title="Every system, over all cells", published=PUBLISHED,
        seed=SHOWN[0], notes=("One small picture for each cell; rates are shares of its capacity.",),
        more={"cells": tables.details(found)},
    )  # fmt: skip


def cell(folder: str) -> dict[str, list[tables.Row]]:
    """Return a part of one row, computed again at the published capacity: benchmarks/equality.py."""
    one, memory = Cell("h100", "conversation", "middle", Path(folder).resolve()), Memory()
    last, tried = last_of(one), systems(one)
    at_capacity = {}
    for name, figures in last["systems"].items():
        config, policies = tried[name][figures["setting"]], search.policies(name)
        at_capacity[name] = fmean(
            Trial(one, config, one.lasts_s(capacity), memory, policies).at(capacity, seed).attainment
            for seed, capacity in zip(SHOWN, last["capacities"], strict=True)
        )
    own = at_capacity.pop(FUSION)
    lead = 100 * (own - max(at_capacity.values()))
    return {"fusion-rates": [{"cell": one.name, "fusion at 1": own, "lead at 1": lead}]}


def main() -> int:
    """Run what is not there yet; return 75 (try again) where the time was over first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder that holds the traces")
    parser.add_argument("--only", nargs="+", default=[], help="words of the names of the cells; nothing is published")
    parser.add_argument(
        "--seeds", type=int, default=len(SHOWN), help="the first so many; nothing is published with less"
    )
    parser.add_argument("--fusion-alone", action="store_true", help="take the others from the last result")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then; go on when called again")
    options = parser.parse_args()
    memory = Memory(search.MEMORY, time.monotonic() + 60 * options.minutes)
    found = []
    try:
        if options.fusion_alone:
            manifest.check_only(RESULT, FUSION)
            options.seeds = len(SHOWN)
        for cell in cells(options.traces.resolve(), options.only):
            alone = options.fusion_alone
            found.append(with_fusion(cell, memory) if alone else examined(cell, SHOWN[: options.seeds], memory))
            print("\n".join(told(found[-1])), flush=True)
    except OutOfTimeError:
        print("stopped: the time is over; call it again to go on")
        return 75
    except PdpluginsError as error:
        print(f"matrix.py: {error}", file=sys.stderr)
        return 2
    if not options.only and options.seeds == len(SHOWN):
        publish_all(found, options.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
