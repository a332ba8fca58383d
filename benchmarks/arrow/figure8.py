#!/usr/bin/env python3
"""Figure 8: what adaptive scheduling adds to minimal load and to round robin, on four prefill and four decode workers.

Then, which the paper does not show, SLO Aware with one of its parts left out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import common
from common import Point, Workload

PAPER = {"azure-code": "1.67", "azure-conversation": "1.1"}
"""How many times the rate of Minimal Load is served by SLO Aware (Section 7.3)."""
START = {"azure-code": 40.0, "azure-conversation": 80.0}
AWARE, MINIMAL, ROBIN = "SLO Aware", "Minimal Load", "Round Robin"
COMPARED = (
    common.arrow(AWARE, 4, 4),
    common.arrow(MINIMAL, 4, 4, elastic=False),
    common.round_robin(ROBIN, 4, 4),
)
WITHOUT = (
    common.arrow("SLO Aware, TTFT threshold at the SLO", 4, 4, ttft_share=1.0),
    common.arrow("SLO Aware, monitor moves nothing", 4, 4, busy_load=9.0, slow_s=1e9),
    common.arrow("SLO Aware, decode gives nothing away", 4, 4, low_load=0.0),
)
GRID = [0.1 * step for step in range(1, 13)]
"""Rates of the curves, as shares of SLO Aware's maximum."""


def compare(key: str, workload: Workload, chosen: Any) -> tuple[list[dict[str, Any]], dict[str, list[Point]]]:
    """Return a row for every strategy on one trace, and the curves of those in the paper."""
    requests, source = common.read(workload, chosen.traces)
    measures = {
        s.name: partial(common.run, s, requests, slo=workload.slo, perf=chosen.perf) for s in COMPARED + WITHOUT
    }
    rates = {name: common.max_rate(measure, START[key])[0] for name, measure in measures.items()}
    curves = {s.name: [measures[s.name](share * rates[AWARE]) for share in GRID] for s in COMPARED}
    above = [a.attainment - b.attainment for a, b in zip(curves[MINIMAL], curves[ROBIN], strict=True)]
    rows = [
        {
            "trace": common.title(workload, source),
            "strategy": name,
            "max rate, req/s": round(rate, 2),
            "over Minimal Load": round(rate / rates[MINIMAL], 2),
            "the paper": PAPER[key] if name == AWARE else "",
            "over Round Robin, points": f"{100 * min(above):+.1f} to {100 * max(above):+.1f}"
            if name == MINIMAL
            else "",
        }
        for name, rate in rates.items()
    ]
    return rows, curves


def main() -> None:
    """Run both traces."""
    common.figure(
        "figure8", START, compare, common.options(__doc__),
        title="Figure 8: three scheduling strategies from 4P4D",
        published="SLO Aware serves 1.67 times the rate of Minimal Load on the code trace and 1.1 times on the "
        "conversation trace; Minimal Load is up to 4.3 and 2.4 points of attainment above Round Robin.",
    )  # fmt: skip


def cell(traces: str) -> dict[str, list[dict[str, Any]]]:
    """Return a part of the table, computed again."""
    key, workload, chosen = "azure-code", common.WORKLOADS["azure-code"], common.shipped(traces)
    requests, source = common.read(workload, chosen.traces)
    measure = partial(common.run, COMPARED[1], requests, slo=workload.slo, perf=chosen.perf)
    rate, _ = common.max_rate(measure, START[key])
    row = {"trace": common.title(workload, source), "strategy": MINIMAL, "max rate, req/s": round(rate, 2)}
    return {"arrow-figure8": [row]}


if __name__ == "__main__":
    main()
