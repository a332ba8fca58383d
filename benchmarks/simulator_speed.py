"""Times the simulator beside Dynamo's compiled replay, in one process, case by case and turn by turn.

    python benchmarks/simulator_speed.py AzureLLMInferenceTrace_conv.csv --million --result simulator-speed

Both get the same requests, the same timing table, the same pools and KV cache, and round-robin routing; Dynamo writes
no report. Each figure is the best of all turns; CPU time says more than wall time where the machine has other work.
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


GROWN = ((4, 2), (4, 20))
"""Prefill and decode instances of the growth with longer outputs."""
SHORT_TURNS = 3
"""Turns in a round of what takes some seconds. One turn of ours is a fifth of a second, which says little."""


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
    """Yield the rows of both. A round takes every case in turn, as the machine's speed changes by the minute."""
    deployment = build_deployment(parse({}))
    compared = {name: Compared(name, trace, deployment, scratch) for name in CASES}
    grown = [Growth(trace, deployment, prefill, decode) for prefill, decode in GROWN]
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        for growth in grown:
            growth.measure()
        for case in compared.values():
            case.measure()
    for part in (*grown, *compared.values()):
        print(row := part.row(), flush=True)
        yield row


class Compared:
    """One case, ours beside Dynamo's replay."""

    def __init__(self, name: str, trace: list[TraceRequest], deployment: Deployment, scratch: Path) -> None:
        self.name, self._deployment = name, deployment
        self._prefill, self._decode, longer, faster, self._wanted = CASES[name]
        self._turns = 1 if longer > 1 else SHORT_TURNS
        self._requests = shaped(trace, longer, faster)
        self._file = scratch / f"{name}.jsonl"
        jsonl.write_mooncake(self._requests, self._file)
        self._replay = dynamo(deployment, scratch)
        self._took: dict[str, list[Took]] = {"ours": [], "dynamo": []}

    def measure(self) -> None:
        """Time both, turn by turn."""
        for _ in range(self._turns):
            once, self._outcome = ours(self._deployment, self._requests, self._prefill, self._decode)
            self._took["ours"].append(once)
            once, report = self._replay(self._file, self._prefill, self._decode)
            self._took["dynamo"].append(once)
            assert report["num_requests"] == len(self._outcome.records) == len(self._requests)

    def row(self) -> dict[str, Any]:
        """Return the row of the result."""
        took, count, outcome = self._took, len(self._requests), self._outcome
        best = {who: count / min(wall_s for wall_s, _ in turns) for who, turns in took.items()}
        cpu_us = {who: 1e6 * min(cpu_s for _, cpu_s in turns) / count for who, turns in took.items()}
        return {
            "case": self.name,
            "requests": count,
            "ours_requests_per_s": round(best["ours"]),
            "dynamo_requests_per_s": round(best["dynamo"]),
            "speedup": round(best["ours"] / best["dynamo"], 2),
            "wanted": self._wanted,
            "cpu_us_per_request": {who: round(us, 2) for who, us in cpu_us.items()},
            "cpu_speedup": round(cpu_us["dynamo"] / cpu_us["ours"], 2),
            "router_us_per_request": round(1e6 * outcome.policies.seconds["router"] / count, 2),
            "events_per_request": round(outcome.events / count, 2),
            "preemptions": outcome.preemptions,
            "walls_s": {who: [round(wall_s, 3) for wall_s, _ in turns] for who, turns in took.items()},
        }


class Growth:
    """Cost of a request with outputs ten times longer, over its cost (ours only)."""

    def __init__(self, trace: list[TraceRequest], deployment: Deployment, prefill: int, decode: int) -> None:
        self._deployment, self._prefill, self._decode = deployment, prefill, decode
        self._requests = {longer: shaped(trace, longer, 1.0) for longer in (1, 10)}
        self._took: dict[int, list[Took]] = {1: [], 10: []}

    def measure(self) -> None:
        """Time both, turn by turn."""
        for _ in range(SHORT_TURNS):
            for longer, requests in self._requests.items():
                self._took[longer].append(ours(self._deployment, requests, self._prefill, self._decode)[0])

    def row(self) -> dict[str, Any]:
        """Return the row of the result."""
        best_us = {
            longer: [round(1e6 * min(column) / len(self._requests[1]), 2) for column in zip(*turns, strict=True)]
            for longer, turns in self._took.items()
        }
        return {
            "case": f"growth with outputs ten times longer, {self._prefill}P{self._decode}D",
            "wall_and_cpu_us_per_request": {"as they are": best_us[1], "ten times longer": best_us[10]},
            "growth_wall": round(best_us[10][0] / best_us[1][0], 3),
            "growth_cpu": round(best_us[10][1] / best_us[1][1], 3),
        }


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
