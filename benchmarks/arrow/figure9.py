#!/usr/bin/env python3
"""Figure 9: what SLO Aware and Minimal Load make of a fixed request rate on a growing number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import common
import experiment
from common import Workload

RATE = {"azure-code": 60.0, "azure-conversation": 100.0}
"""Requests a second that every number of GPUs gets: what eight of them serve with room to spare."""
GPUS = (2, 3, 4, 5, 6, 7, 8, 12)
"""The machine of the paper has eight."""
AWARE, MINIMAL = "SLO Aware", "Minimal Load"


def scale(
    key: str, workload: Workload, chosen: Any, numbers: Sequence[int] = GPUS
) -> tuple[list[dict[str, Any]], dict[str, dict[int, float]]]:
    """Return a row for each number of GPUs, and the attainment of both strategies."""
    requests, source = common.read(workload, chosen.traces)
    rows, curves = [], {AWARE: dict[int, float](), MINIMAL: dict[int, float]()}
    for gpus in numbers:
        row: dict[str, Any] = {"trace": common.title(workload, source), "req/s": RATE[key], "GPUs": gpus}
        for name, elastic in ((AWARE, True), (MINIMAL, False)):
            system = common.arrow(name, gpus - gpus // 2, gpus // 2, elastic=elastic)
            point = common.run(system, requests, RATE[key], workload.slo, chosen.perf)
            curves[name][gpus] = 100 * point.attainment
            row[f"{name}: attainment"] = f"{point.attainment:.1%}"
            row[f"{name}: P90 TTFT, s"] = point.ttft_p90_s
            row[f"{name}: P90 TPOT, ms"] = None if point.tpot_p90_s is None else 1e3 * point.tpot_p90_s
        rows.append(row)
    return rows, curves


def main() -> None:
    """Run both traces."""
    chosen = common.options(__doc__)
    rows = []
    for key, rate in RATE.items():
        more, curves = scale(key, common.WORKLOADS[key], chosen)
        rows += more
        lines = {name: (of.keys(), of.values()) for name, of in curves.items()}
        experiment.draw("arrow", f"figure9-{key}", lines, x="GPUs", y=f"SLO attainment at {rate:.0f} req/s, %")
    experiment.publish(
        "arrow", "figure9", rows, title="Figure 9: from 2 to 12 GPUs, half of them in each phase at start",
        published="with SLO Aware the attainment grows nearly linearly with the number of GPUs; Minimal Load meets the "
        "limit of either phase earlier.",
    )  # fmt: skip


def cell(traces: str) -> dict[str, list[dict[str, Any]]]:
    """Return a part of the table, computed again."""
    key = "azure-code"
    return {"arrow-figure9": scale(key, common.WORKLOADS[key], common.shipped(traces), (4,))[0]}


if __name__ == "__main__":
    main()
