"""Times the simulator beside Dynamo's compiled replay, in one process, case by case and turn by turn.

    python benchmarks/simulator_speed.py AzureLLMInferenceTrace_conv.csv --million --result simulator-speed

Both get the same requests, the same timing table, the same pools and KV cache, and round-robin routing; Dynamo writes
no report. Each figure is the best of the rounds; CPU time says more than wall time where the machine has other work.
``--million`` adds 1,000,000 requests on 256 instances (ours only).
The kernel that is installed is timed; with ``--plain`` its sources, which a machine without a C compiler runs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("DYN_LOG", "error")

import manifest
from measure import command

from pdplugins.config import parse
from pdplugins.hosts.dynamo.mocker import Engines, engine_args
from pdplugins.perf.npz import export_npz
from pdplugins.policies.stock.routers import LeastLoaded, RoundRobin, RouterSettings
from pdplugins.provenance import record
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim import kernel
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import RunOutcome, SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.types import Deployment, Role, TraceRequest
from pdplugins.workloads import jsonl, traces

CASES = {
    "azure conversation, 4P2D": (4, 2, 1, 1.0, 15.0),
    "outputs ten times longer, 4P2D": (4, 2, 10, 1.0, 100.0),
    "eight times the rate, 32P16D": (32, 16, 1, 8.0, 12.0),
}
"""Name to (prefill, decode, output factor, rate factor, wanted speed-up)."""


def shaped(trace: list[TraceRequest], longer: int, faster: float) -> list[TraceRequest]:
    return [TraceRequest(round(r.arrival_s / faster, 3), r.isl_tokens, r.osl_tokens * longer) for r in trace]


Took = tuple[float, float]
"""Seconds of wall time, and of CPU time."""


def clocks() -> Took:
    return time.perf_counter(), time.process_time()


def since(began: Took) -> Took:
    wall_s, cpu_s = clocks()
    return wall_s - began[0], cpu_s - began[1]


def ours(deployment: Deployment, requests: list[TraceRequest], prefill: int, decode: int) -> tuple[Took, RunOutcome]:
    settings = SimSettings(prefill=prefill, decode=decode, kv_tokens=Engines().kv_tokens)
    arrivals = [Arrival(r.arrival_s, r.isl_tokens, r.osl_tokens) for r in requests]
    simulation = Simulation(deployment, settings, RoundRobin(RouterSettings(), deployment))
    began = clocks()
    outcome = simulation.run(arrivals)
    return since(began), outcome


def dynamo(deployment: Deployment, scratch: Path) -> Callable[[Path, int, int], tuple[Took, dict[str, Any]]]:
    from dynamo._core import run_mocker_trace_replay  # noqa: PLC0415
    from dynamo.mocker import MockEngineArgs  # noqa: PLC0415

    npz = scratch / "timing.npz"
    export_npz(deployment.perf, npz, deployment.prefill_tp, deployment.decode_tp)

    def mocker(role: Role) -> Any:
        args = engine_args(role, Engines(), deployment, npz)
        args.pop("startup_time")
        return MockEngineArgs.from_json(json.dumps(args))

    def run(trace: Path, prefill: int, decode: int) -> tuple[Took, dict[str, Any]]:
        began = clocks()
        report = run_mocker_trace_replay(
            [str(trace)],
            prefill_engine_args=mocker(Role.PREFILL),
            decode_engine_args=mocker(Role.DECODE),
            num_prefill_workers=prefill,
            num_decode_workers=decode,
            router_mode="round_robin",
        )
        return since(began), report

    return run


def side_by_side(trace: list[TraceRequest], rounds: int, scratch: Path) -> Iterator[dict[str, Any]]:
    deployment = build_deployment(parse({}))
    replay = dynamo(deployment, scratch)
    for name, (prefill, decode, longer, faster, wanted) in CASES.items():
        requests = shaped(trace, longer, faster)
        file = scratch / "trace.jsonl"
        jsonl.write_mooncake(requests, file)
        took: dict[str, list[Took]] = {"ours": [], "dynamo": []}
        for _ in range(rounds):
            once, outcome = ours(deployment, requests, prefill, decode)
            took["ours"].append(once)
            once, report = replay(file, prefill, decode)
            took["dynamo"].append(once)
        assert report["num_requests"] == len(outcome.records) == len(requests)
        best = {who: len(requests) / min(wall_s for wall_s, _ in turns) for who, turns in took.items()}
        cpu_us = {who: 1e6 * min(cpu_s for _, cpu_s in turns) / len(requests) for who, turns in took.items()}
        row = {
            "case": name,
            "requests": len(requests),
            "ours_requests_per_s": round(best["ours"]),
            "dynamo_requests_per_s": round(best["dynamo"]),
            "speedup": round(best["ours"] / best["dynamo"], 2),
            "wanted": wanted,
            "cpu_us_per_request": {who: round(us, 2) for who, us in cpu_us.items()},
            "cpu_speedup": round(cpu_us["dynamo"] / cpu_us["ours"], 2),
            "router_us_per_request": round(1e6 * outcome.policies.seconds["router"] / len(requests), 2),
            "events_per_request": round(outcome.events / len(requests), 2),
            "preemptions": outcome.preemptions,
            "walls_s": {who: [round(wall_s, 3) for wall_s, _ in turns] for who, turns in took.items()},
        }
        print(f"{name}: ours {best['ours']:,.0f} requests/s, Dynamo {best['dynamo']:,.0f}: {row['speedup']} times")
        print(f"    CPU time a request: {row['cpu_us_per_request']} us: {row['cpu_speedup']} times", flush=True)
        yield row


def growth(trace: list[TraceRequest], rounds: int) -> Iterator[dict[str, Any]]:
    """Cost of a request with outputs ten times longer, over its cost: turn by turn, best of `rounds` (ours only)."""
    deployment = build_deployment(parse({}))
    for prefill, decode in ((4, 2), (4, 20)):
        took: dict[int, list[Took]] = {1: [], 10: []}
        for _ in range(rounds):
            for longer, turns in took.items():
                turns.append(ours(deployment, shaped(trace, longer, 1.0), prefill, decode)[0])
        best_us = {
            longer: [round(1e6 * min(column) / len(trace), 2) for column in zip(*turns, strict=True)]
            for longer, turns in took.items()
        }
        row = {
            "case": f"growth with outputs ten times longer, {prefill}P{decode}D",
            "wall_and_cpu_us_per_request": {"as they are": best_us[1], "ten times longer": best_us[10]},
            "growth_wall": round(best_us[10][0] / best_us[1][0], 3),
            "growth_cpu": round(best_us[10][1] / best_us[1][1], 3),
        }
        print(row, flush=True)
        yield row


def million(trace: list[TraceRequest], router: type[Any]) -> dict[str, Any]:
    """1,000,000 requests on 256 instances: the trace over and over, 40 times as fast."""
    deployment = build_deployment(parse({}))
    length_s = trace[-1].arrival_s + 1
    faster, count = 40.0, 1_000_000

    def arrivals() -> Iterator[Arrival]:
        for number in range(count):
            lap, place = divmod(number, len(trace))
            request = trace[place]
            yield Arrival((request.arrival_s + lap * length_s) / faster, request.isl_tokens, request.osl_tokens)

    settings = SimSettings(prefill=170, decode=86, kv_tokens=Engines().kv_tokens)
    simulation = Simulation(deployment, settings, router(RouterSettings(), deployment))
    began = time.perf_counter()
    outcome = simulation.run(arrivals())
    wall_s = time.perf_counter() - began
    row = {
        "case": f"1,000,000 requests, 170P86D, {router.__name__}",
        "ours_requests_per_s": round(count / wall_s),
        "wall_s": round(wall_s, 1),
        "peak_memory_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "router_us_per_request": round(1e6 * outcome.policies.seconds["router"] / count, 2),
        "answered": sum(record.error is None for record in outcome.records),
    }
    print(row)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--plain", action="store_true", help="time the kernel as plain Python")
    parser.add_argument("--result", help="write results/RESULT.json")
    options = parser.parse_args()
    if options.plain and kernel.COMPILED:
        paths = os.pathsep.join([str(manifest.ROOT / "tests/plain"), os.environ.get("PYTHONPATH", "")])
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONPATH": paths})  # noqa: S606
    logging.disable(logging.WARNING)
    trace = traces.read(options.trace)
    rows: list[dict[str, Any]] = []
    rows += growth(trace, 3 * options.rounds)
    with tempfile.TemporaryDirectory() as scratch:
        rows += side_by_side(trace, options.rounds, Path(scratch))
    if options.million:
        rows.append(million(trace, RoundRobin))
        rows.append(million(trace, LeastLoaded))
    facts = {
        **record("measured", seed=None, command=command(), took_part=("ai-dynamo",)),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "compiled": kernel.COMPILED,
    }
    if options.result is not None:
        manifest.write(options.result, {**facts, "rows": rows})


if __name__ == "__main__":
    main()
