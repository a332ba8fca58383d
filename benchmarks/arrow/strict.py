#!/usr/bin/env python3
"""Not in the paper: the TPOT SLO made stricter, step by step, for Arrow and for the best co-located stock workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import common
import experiment
from common import Point, System

KEY = "azure-conversation"
TPOT_S = (0.15, 0.04, 0.02, 0.015, 0.012)
"""The first is the paper's."""
CHUNKS = (128, 256, 512, 2048)
LONGEST = 4000
"""Requests of the trace that are replayed, so that the script stays short."""


def rows_of(chosen: Any, tpots_s: Sequence[float] = TPOT_S) -> list[dict[str, Any]]:
    """Search the maximum rate of both at each SLO."""
    requests, source = common.read(common.WORKLOADS[KEY], chosen.traces)
    requests, rows = requests[:LONGEST], []
    for tpot_s in tpots_s:
        slo = replace(common.WORKLOADS[KEY].slo, tpot_s=tpot_s)

        def measure(system: System, rate: float, slo: common.Slo = slo) -> Point:
            return common.run(system, requests, rate, slo, chosen.perf)

        arrow, _ = common.max_rate(partial(measure, common.arrow("arrow", 4, 4)), 100.0, precision=1.04)
        stock, rate = common.best([common.colocated(str(c), 8, 1, c) for c in CHUNKS], measure, 100.0)
        rows.append(
            {
                "trace": common.title(common.WORKLOADS[KEY], source),
                "TPOT SLO, ms": 1e3 * tpot_s,
                "Arrow, req/s": round(arrow, 1),
                "co-located, req/s": round(rate, 1),
                "best chunk": stock.name,
                "Arrow / co-located": round(arrow / rate, 2) if rate else "only Arrow",
            }
        )
    return rows


def main() -> None:
    """Write the table."""
    experiment.publish(
        "arrow", "strict", rows_of(common.options(__doc__)), title="A stricter TPOT SLO",
        published="does not vary the SLOs.",
    )  # fmt: skip


def cell(traces: str) -> dict[str, list[dict[str, Any]]]:
    """Return a part of the table, computed again."""
    return {"arrow-strict": rows_of(common.shipped(traces), TPOT_S[:1])}


if __name__ == "__main__":
    main()
