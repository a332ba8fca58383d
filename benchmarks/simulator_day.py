"""A day of 1,000 workers and 10,000,000 requests, streamed: how long it takes, and how much memory.

    python benchmarks/simulator_day.py --shares 0.01 0.04 [--result simulator-day]

Each share of the day is simulated in a process of its own, as `pdplugins simulate --stream --records` does. It has all
workers, and that share of every hour; rates rise and fall as by day and night. What a whole day takes is on the line
through the smallest and the largest share; ``--shares 1`` measures it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import manifest
from measure import command

from pdplugins.config import parse
from pdplugins.provenance import record
from pdplugins.sim import kernel
from pdplugins.sim.stream import run
from pdplugins.workloads import lazy

REQUESTS, DAY_S, HOURS = 10_000_000, 86_400.0, 24
PREFILL, DECODE, TP = 500, 500, 2
SWING = 0.5
"""Of the mean rate: how far the rate rises by day and falls by night."""
LENGTHS = {
    "isl_tokens": {"kind": "lognormal", "median": 950, "sigma": 0.75, "high": 14_000},
    "osl_tokens": {"kind": "lognormal", "median": 130, "sigma": 0.95, "high": 1000},
}
"""Those of `azure-like`: about the Azure 2023 conversations."""
CONFIG = {
    "router": "power-of-two",
    "deployment": {
        "gpu_budget": TP * (PREFILL + DECODE),
        "prefill": {"replicas": PREFILL, "tp": TP},
        "decode": {"replicas": DECODE, "tp": TP},
    },
}


def day(share: float) -> dict[str, Any]:
    """Return the workload of a share of the day, as a workload file has it: so much of each hour, at its own rates."""
    rates = [REQUESTS / DAY_S * (1 - SWING * math.cos(2 * math.pi * at / HOURS)) for at in range(HOURS + 1)]
    phases = []
    for begin, end in pairwise(rates):
        phases.append(_phase(share, begin, end))
        if share < 1:
            phases.append(_phase(1 - share, 0.0, 0.0))
    return {"seed": 0, **LENGTHS, "phases": phases}


def _phase(share: float, begin: float, end: float) -> dict[str, Any]:
    return {"duration_s": share * DAY_S / HOURS, "arrivals": {"kind": "ramp", "rate": begin, "to_rate": end}}


def one(share: float) -> dict[str, Any]:
    """Simulate a share of the day in this process."""
    with tempfile.TemporaryDirectory() as scratch:
        workload, records = Path(scratch, "day.yaml"), Path(scratch, "records.jsonl")
        workload.write_text(json.dumps(day(share)), encoding="utf-8")  # JSON is YAML
        began, cpu_s = time.perf_counter(), time.process_time()
        result = run.simulate(
            parse(CONFIG), lazy.requests(workload), trace_name="day", command="", seed=0, records=records
        )
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        written = records.stat().st_size
    return {
        "share": share,
        "requests": result.requests.total,
        "failed": result.requests.failed,
        "attainment": result.metrics.slo_attainment,
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "cpu_us_per_request": round(1e6 * cpu_s / result.requests.total, 1),
        "router_us_per_request": round(1e6 * result.speed.policy_s["router"] / result.requests.total, 2),
        "peak_memory_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 4),
        "records_gb": round(written / 2**30, 4),
    }


def whole_day(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what a day takes: as measured, or on the line through the smallest and the largest share."""
    small, large = min(rows, key=lambda row: row["share"]), max(rows, key=lambda row: row["share"])
    if large["share"] == 1 or small is large:
        return {key: large[key] for key in ("wall_s", "cpu_s", "peak_memory_gb")} | {"measured": large["share"] == 1}
    more = (REQUESTS - large["requests"]) / (large["requests"] - small["requests"])
    found = {key: large[key] + more * (large[key] - small[key]) for key in ("wall_s", "cpu_s", "peak_memory_gb")}
    return {key: round(value, 2) for key, value in found.items()} | {"measured": False}


def apart(share: float) -> dict[str, Any]:
    """Simulate a share in a process of its own, whose peak of memory is that of nothing else."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(share)], stdout=subprocess.PIPE, text=True, check=True
    )
    row: dict[str, Any] = json.loads(done.stdout)
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.01, 0.04], help="of the day, 0 to 1")
    parser.add_argument("--one", type=float, help="simulate this share in this process, and print its row")
    parser.add_argument("--result", help="write results/RESULT.json")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(one(options.one)))
        return
    rows = [apart(share) for share in options.shares]
    found = whole_day(rows)
    print("whole day:", found)
    if options.result is not None:
        facts = record("measured", seed=0, command=command())
        machine = {"machine": f"{os.cpu_count()} CPU cores, {platform.machine()}", "compiled": kernel.COMPILED}
        manifest.write(options.result, {**facts, **machine, "rows": rows, "day": found})


if __name__ == "__main__":
    main()
