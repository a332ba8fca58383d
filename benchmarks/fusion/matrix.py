#!/usr/bin/env python3
"""Fusion against the other routers and the best tuned stock configurations, from half to three times capacity.

One cell of the matrix is a profile, a workload and the SLOs. Each cell is a result of its own, so that the matrix may
be made cell by cell. Rates are shares of what fusion's programme says the hardware serves at most.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from experiment import Row, draw, publish, run, workload

from pdplugins.config import parse
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.runtime.assembly import build_deployment

LENGTHS = Path(__file__).parents[1] / "dynaserve" / "lengths.json"
SHARES = (0.5, 0.8, 1.0, 1.5, 3.0)
"""Rates, as shares of the capacity."""
TUNED_AT = 0.8
"""Rate at which what has a setting is tuned."""
SHOWN, TUNED = (0, 1), 9
"""Seeds: every figure is the mean of the first ones, and settings are tuned on the last."""
REQUESTS = 700
"""Requests of a run at the capacity; the duration is the same at all rates."""
CHUNKS = (256, 512, 1024, 2048)
TARGET = 0.9
"""Attainment of the highest rate."""
Config = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix: hardware, traffic and objectives."""

    profile: str
    tp: int
    workers: int
    lengths: str
    ttft_s: float
    tpot_s: float

    def config(self, prefill: int | None = None, **parts: Any) -> Config:
        """Return a config with `prefill` prefill workers; half of them when it is not given."""
        prefill = self.workers // 2 if prefill is None else prefill
        pools = {
            "prefill": {"replicas": prefill, "tp": self.tp},
            "decode": {"replicas": self.workers - prefill, "tp": self.tp},
        }
        deployment = {"profile": self.profile, "gpu_budget": self.tp * self.workers, **pools}
        return {"slo": {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s}, "deployment": deployment, **parts}

    def traffic(self, rate: float, seed: int) -> list[Any]:
        """Return Poisson arrivals."""
        pairs = json.loads(LENGTHS.read_text())[self.lengths]
        duration_s = round(REQUESTS / self.capacity(), 1)
        return workload(duration_s=duration_s, seed=seed, arrivals={"kind": "poisson", "rate": rate}, pairs=pairs)

    def capacity(self) -> float:
        """Return the requests a second that the programme says are served at most."""
        pairs = json.loads(LENGTHS.read_text())[self.lengths]
        isl, osl = (fmean(column) for column in zip(*pairs, strict=True))
        deployment = build_deployment(parse(self.config()))
        tokens = deployment.perf.kv_capacity_tokens(self.tp)
        does = Core(FusionSettings(), deployment).frontier(isl, osl, tokens)
        best = does.best(self.workers)
        return does.rate(best, self.workers - best)


CELLS = {
    "h100-conversation": Cell("h100/llama-3.1-70b-fp8", 2, 4, "azure-conversation", 2.0, 0.08),
    "a100-code": Cell("a100/qwen2.5-14b", 1, 8, "azure-code", 2.0, 0.1),
    "h800-strict": Cell("h800/llama-3.1-8b", 1, 8, "azure-conversation", 1.0, 0.015),
}


def colocated(cell: Cell, chunk: int) -> Config:
    """Return whole requests on the least loaded worker, prefilled in chunks."""
    return cell.config(router={"name": "least-loaded", "colocated": True}, simulation={"step_tokens": chunk})


def static(cell: Cell, prefill: int) -> Config:
    """Return fixed pools of prefill and decode workers."""
    return cell.config(prefill, router={"name": "least-loaded"})


def systems(cell: Cell) -> dict[str, Config]:
    """Return every system by name; the tuned ones with what serves most of the traffic for tuning."""
    trace = cell.traffic(TUNED_AT * cell.capacity(), TUNED)

    def best(configs: Mapping[str, Config]) -> tuple[str, Config]:
        return max(configs.items(), key=lambda item: measured(item[1], trace)["attainment"])

    chunks = {f"co-located, best chunk: {chunk}": colocated(cell, chunk) for chunk in CHUNKS}
    splits = {f"best static split: {n}P{cell.workers - n}D": static(cell, n) for n in range(1, cell.workers)}
    label = {"flip": "label"}
    return {
        "fusion": cell.config(bundle="fusion", simulation={**label, "overlap": True}),
        "arrow": cell.config(router="arrow", simulation={**label, "step_tokens": 2048}),
        "dynaserve": cell.config(router="dynaserve", batch_scheduler="dynaserve", simulation={"overlap": True}),
        "co-located, SLO-sized steps": cell.config(
            router={"name": "least-loaded", "colocated": True}, batch_scheduler="dynaserve"
        ),
        **dict([best(chunks), best(splits)]),
    }


def measured(config: Config, trace: Sequence[Any]) -> dict[str, float]:
    """Return what the clients got of one run."""
    result, outcome = run(config, trace)
    return {
        "attainment": result.metrics.slo_attainment or 0.0,
        "worst_ttft_s": max((record.ttft_s or 0.0 for record in outcome.records), default=0.0),
    }


def highest(points: Sequence[tuple[float, float]]) -> float:
    """Return the highest rate whose attainment is `TARGET`, on the line between the rates that were run."""
    reached = 0.0
    for (before, high), (after, low) in zip(((0.0, 1.0), *points), points, strict=False):
        if low < TARGET:
            return before + (after - before) * (high - TARGET) / (high - low)
        reached = after
    return reached


def main() -> None:
    """Run one cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cell", choices=CELLS)
    name = parser.parse_args().cell
    cell = CELLS[name]
    capacity, rows, lines = cell.capacity(), list[Row](), dict[str, tuple[list[float], list[float]]]()
    traces = {share: [cell.traffic(share * capacity, seed) for seed in SHOWN] for share in SHARES}
    for system, config in systems(cell).items():
        runs = {share: [measured(config, trace) for trace in traces[share]] for share in SHARES}
        points = [(share, fmean(one["attainment"] for one in runs[share])) for share in SHARES]
        lines[system] = [share * capacity for share, _ in points], [100 * value for _, value in points]
        goodput = [share * value for share, value in points]
        rows.append(
            {
                "system": system,
                **{f"at {share:g}": value for share, value in points},
                "rate at 90 %, req/s": highest(points) * capacity,
                "goodput at 3, of its peak": goodput[-1] / max(*goodput, 1e-9),
                "worst TTFT at 1.5, s": max(one["worst_ttft_s"] for one in runs[1.5]),
            }
        )
    draw("fusion", name, lines, x="requests/s", y="SLO attainment, %")
    publish(
        "fusion", name, rows, seed=SHOWN[0], title=f"{cell.profile}, {cell.lengths}: TTFT {cell.ttft_s:g} s, TPOT "
        f"{1e3 * cell.tpot_s:g} ms, {cell.workers} workers of TP {cell.tp}",
        published="none; the rivals are our other routers and stock configurations tuned on traffic of another seed.",
        notes=(
            f"share of requests inside both SLOs at shares of {capacity:.1f} requests/s, which is what the programme "
            f"says is served at most; Poisson arrivals for {REQUESTS / capacity:.0f} s, mean of seeds "
            f"{SHOWN[0]} and {SHOWN[1]}",
            f"chunk and split are the best of {len(CHUNKS)} and {cell.workers - 1} at {TUNED_AT:g} of that, on seed "
            f"{TUNED}; nothing of fusion, Arrow or DynaServe is tuned",
            "goodput is the rate of the arrivals that are served inside both SLOs",
            "the rate at 90 % lies on the line between the rates that were run",
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
