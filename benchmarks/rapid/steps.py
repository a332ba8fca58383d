"""What a step of the power daemon's loop takes, with eight simulated GPUs and with 72.

usage: PYTHONPATH=.:benchmarks python benchmarks/rapid/steps.py [--result NAME]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import manifest
from measure import command
from prometheus_client import CollectorRegistry

from pdplugins.config import parse
from pdplugins.hosts.power import assembly
from pdplugins.hosts.power.daemon import build_safe
from pdplugins.hosts.power.loop import PowerLoop
from pdplugins.hosts.power.metrics import NodeMetrics
from pdplugins.hosts.power.roles import FixedRoles
from pdplugins.power.saved import SavedCaps
from pdplugins.provenance import record
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.journal import StandardJournal

PAUSE_S, LASTS_S = 0.02, 20.0


def measured(gpus: int, folder: Path) -> dict[str, Any]:
    """Return the times of steps in milliseconds, those in which the policy decides by themselves."""
    pools = {role: {"replicas": gpus // 2, "tp": 1} for role in ("prefill", "decode")}
    deployment = {"profile": "mi300x/llama-3.1-8b", "gpu_budget": gpus, **pools}
    backend = {"name": "simulated", "gpus": gpus, "max_w": 750.0}
    power = {"name": "rapid", "budget_w": 600 * gpus}
    config = parse({"deployment": deployment, "power": power, "node": {"backend": backend}})
    equipment = assembly.equip(config.node)
    node = assembly.build_node(config, equipment, SavedCaps(folder))
    seats = assembly.seats(config, equipment.devices)
    controller = build_safe(config, build_deployment(config), StandardJournal())
    loop = PowerLoop(node, seats, FixedRoles(seats), None, controller, NodeMetrics(CollectorRegistry()), stale_s=5.0)
    took: dict[bool, list[float]] = {False: [], True: []}
    while not node.before_w:  # the first decision comes after a write to the disk
        loop.step(time.monotonic())
    end_s = time.monotonic() + LASTS_S
    while time.monotonic() < end_s:
        calls, began = loop.controller.calls, time.perf_counter()
        loop.step(time.monotonic())
        took[loop.controller.calls > calls].append(1e3 * (time.perf_counter() - began))
        time.sleep(PAUSE_S)
    return {"gpus": gpus, **_row("step", took[False]), **_row("decision", took[True])}


def _row(name: str, times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    return {
        f"{name}_median_ms": statistics.median(ordered),
        f"{name}_p95_ms": ordered[int(0.95 * len(ordered))],
        f"{name}_max_ms": ordered[-1],
    }


def main() -> None:
    """Measure both nodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = [measured(gpus, Path(name) / str(gpus)) for gpus in (8, 72)]
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")
    if options.result:
        manifest.write(options.result, {**record("measured", seed=None, command=command()), "rows": rows})


if __name__ == "__main__":
    main()
