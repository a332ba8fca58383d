#!/usr/bin/env python3
"""Each gain of fusion switched off alone, on a few cells of its matrix.

python benchmarks/fusion/ablation.py --traces DIR [--seeds 1] [--minutes 4]
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean, geometric_mean

from cells import SHOWN, Cell, Config
from experiment import publish
from few import Yard, highest, mean, study, yards
from search import Memory
from systems import LABEL, OVERLAP, fusion
from tables import Row

SIMULATION = {**LABEL, **OVERLAP}
POLICIES = ("fusion", "stock")
"""Packages whose code the runs depend on."""


def variants(cell: Cell) -> dict[str, Config]:
    """Return fusion, and fusion without each of its gains."""
    whole = {"bundle": "fusion", "simulation": SIMULATION}
    mixed = {"bundle": {"name": "fusion", "composition": False}, "simulation": SIMULATION}
    parts = {"router": "fusion", "batch_scheduler": "fusion", "simulation": SIMULATION}
    return {
        "fusion": fusion(cell),
        "composition off: half of the workers prefill only": fusion(cell, composition=False),
        "composition off: all workers do both": cell.config(0, **mixed),
        "late binding and the pool's order off": cell.config(**parts),
        "order in the engines off": cell.config(batch_scheduler="dynaserve", **whole),
        "placement off: least loaded, co-located": cell.config(
            router={"name": "least-loaded", "colocated": True}, **whole
        ),
        "nothing for the oldest": fusion(cell, oldest_share=0.0),
        "saved time off": fusion(cell, saved_share=0.0),
        "no worker for long prompts": fusion(cell, long_prompts=False),
        "no shorter steps": fusion(cell, short_steps=False),
    }


def cell(folder: str) -> dict[str, list[Row]]:
    """Return a part of one row, computed again at the published capacities: benchmarks/equality.py."""
    variant, of = "saved time off", yards(Path(folder).resolve(), len(SHOWN), Memory())
    at_1 = fmean(yard.at_capacity(variants(yard.cell)[variant], POLICIES) for yard in of)
    return {"fusion-ablation": [{"variant": variant, "at 1": at_1}]}


def show(yards: list[Yard], seeds: int) -> None:
    """Run all variants and write the result."""
    runs = {
        name: [yard.seen(variants(yard.cell)[name], POLICIES) for yard in yards] for name in variants(yards[0].cell)
    }
    rows = []
    for name, cells in runs.items():
        rates = [highest(seen) for seen in cells]
        over = [rate / max(highest(whole), 1e-3) for rate, whole in zip(rates, runs["fusion"], strict=True)]
        rows.append(
            {
                "variant": name,
                "highest rate over the capacity, geometric mean": geometric_mean([max(rate, 1e-3) for rate in rates]),
                "least over fusion's": min(over),
                "most over fusion's": max(over),
                **{f"at {share:g}": fmean(mean(seen, share) for seen in cells) for share in (0.8, 1.0, 1.5, 3.0)},
                "worst TTFT at 1.5 over its SLO": fmean(
                    mean(seen, 1.5, "ttft_worst_s") / yard.cell.objectives()["ttft_s"]
                    for seen, yard in zip(cells, yards, strict=True)
                ),
            }
        )
    publish(
        "fusion", "ablation", rows, title="Each gain switched off alone", seed=SHOWN[0],
        published="none.",
        notes=(
            f"Cells: {', '.join(yard.cell.name for yard in yards)}. Seeds: {', '.join(map(str, SHOWN[:seeds]))}. "
            "Capacity, traffic and rates are those of the matrix.",
            "Attainment is the mean of the cells. What one engine has queued is still bounded where only the order in "
            "the engines is off.",
        ),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(study(__doc__, show))
