#!/usr/bin/env python3
"""Figure 7: SLO attainment over request rate on four traces, and the highest rate with 90 % attainment.

The paper's baselines, and the strongest stock configurations that we know: co-located workers of one GPU each with a
tuned chunk size, and the best static split of prefill and decode workers, both chosen with the answer at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import common
from common import Point, System, Workload

PAPER = {
    "azure-code": ("5.62", "7.78"),
    "azure-conversation": ("3.76", "4.06"),
    "burstgpt-like": ("3.60", "5.04"),
    "mooncake-conversation": ("3.73", "4.14"),
}
"""How many times the rate of vLLM and of vLLM-disaggregated Arrow sustains, as the paper says (Section 7.2)."""
START = {"azure-code": 40.0, "azure-conversation": 80.0, "burstgpt-like": 40.0, "mooncake-conversation": 6.0}
ARROW, VLLM, DISAGGREGATED = "arrow", "vLLM, TP 8", "vLLM-disaggregated, 1P1D of TP 4"
CHUNKS = (512, 1024, 2048, 4096, 8192)
BESIDE = (0.6, 1.4)
"""Rates of the plotted curves beside those of the search, as shares of the maximum."""
Measure = Callable[[System, float], Point]


def systems(measure: Measure, start: float) -> list[System]:
    """Return every system that is compared; the tuned ones are tuned on this very trace."""
    splits = [common.static(f"best static split: {8 - d}P{d}D", 8 - d, d) for d in (2, 3, 1, 4, 5, 6, 7)]
    chunked = [common.colocated(f"co-located, TP 1, best chunk: {chunk}", 8, 1, chunk) for chunk in CHUNKS]
    return [
        common.arrow(ARROW, 4, 4),
        common.colocated(VLLM, 1, 8),
        common.static(DISAGGREGATED, 1, 1, tp=4),
        common.static("static 4P4D", 4, 4),
        common.best(splits, measure, start)[0],
        common.best(chunked, measure, start)[0],
    ]


def compare(key: str, workload: Workload, chosen: Any) -> tuple[list[dict[str, Any]], dict[str, list[Point]]]:
    """Return a row for every system on one trace, and the curves of all of them."""
    requests, source = common.read(workload, chosen.traces)
    measure = partial(_measure, requests, workload, chosen)
    compared = systems(measure, START[key])
    rates, curves = dict[str, float](), dict[str, list[Point]]()
    for system in compared:
        rate, points = common.max_rate(partial(measure, system), START[key])
        points += [measure(system, rate * share) for share in BESIDE]
        rates[system.name], curves[system.name] = rate, sorted(points, key=lambda point: point.rate)
    rows = [
        {
            "trace": common.title(workload, source),
            "system": name,
            "max rate, req/s": round(rate, 2),
            "arrow / it": round(rates[ARROW] / rate, 2),
            "the paper": dict(zip((VLLM, DISAGGREGATED), PAPER[key], strict=True)).get(name, ""),
        }
        for name, rate in rates.items()
    ]
    return rows, curves


def _measure(requests: Sequence[Any], workload: Workload, chosen: Any, system: System, rate: float) -> Point:
    return common.run(system, requests, rate, workload.slo, chosen.perf)


def main() -> None:
    """Run all four traces."""
    common.figure(
        "figure7", common.WORKLOADS, compare, common.options(__doc__),
        title="Figure 7: the highest rate with 90 % of requests inside both SLOs",
        published="Arrow sustains 3.60 to 5.62 times the rate of vLLM (one worker of TP 8) and 4.06 to 7.78 times that "
        "of vLLM's disaggregation (one prefill and one decode worker of TP 4).",
    )  # fmt: skip


def cell(traces: str) -> dict[str, list[dict[str, Any]]]:
    """Return a part of the table, computed again."""
    key, workload, chosen = "azure-code", common.WORKLOADS["azure-code"], common.shipped(traces)
    requests, source = common.read(workload, chosen.traces)
    found = []
    for system in (common.arrow(ARROW, 4, 4), common.static("static 4P4D", 4, 4)):
        rate, _ = common.max_rate(partial(_measure, requests, workload, chosen, system), START[key])
        found.append(
            {"trace": common.title(workload, source), "system": system.name, "max rate, req/s": round(rate, 2)}
        )
    return {"arrow-figure7": found}


if __name__ == "__main__":
    main()
