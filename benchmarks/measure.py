"""What every experiment computes with: a simulation, a generated workload, the search for a capacity."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pdplugins.config import parse
from pdplugins.provenance import command_line
from pdplugins.results import Result
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import TraceRequest
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic

ROOT = Path(__file__).resolve().parents[1]
Row = dict[str, Any]


def command() -> str:
    """Return how this script was called, relative to the repository."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return command_line("python", [str(name), *sys.argv[1:]])


class Workload(list[TraceRequest]):
    """A generated workload that knows the keys it was made from."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        super().__init__(synthetic(SyntheticSettings.model_validate(keys)))
        self.keys = keys


def workload(**keys: Any) -> list[TraceRequest]:
    """Return a generated workload; `keys` are those of a workload file (docs/workloads.md)."""
    return Workload(keys)


def run(
    config: Mapping[str, Any], trace: Sequence[TraceRequest], *, seed: int = 0, name: str = "experiment"
) -> tuple[Result, RunOutcome]:
    """Simulate `trace` on `config`, given as the plain data of a config file."""
    result, outcome = simulate(parse(dict(config), name), trace, trace_name=name, command=command(), seed=seed)
    if isinstance(trace, Workload):
        _SAMPLES.note(config, trace, seed, result)
    return result, outcome


# --- runs that a result keeps, to be run again ------------------------------------------------------------------------


class Samples:
    """Keeps the smallest run of each combination of policies, with all that it takes to run it again."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, Row]] = {}

    def note(self, config: Mapping[str, Any], trace: Workload, seed: int, result: Result) -> None:
        """Keep a run if it is smaller than the one that is kept of its policies."""
        try:
            policies = json.dumps([config.get(kind) for kind in POLICIES], sort_keys=True)
            json.dumps([config, trace.keys])
        except TypeError:
            return  # no file can hold it
        if Path(str(config.get("deployment", {}).get("profile", ""))).is_absolute():
            return  # a profile that the script has made: nobody else has it
        if policies not in self._kept or len(trace) < self._kept[policies][0]:
            row = {"config": dict(config), "workload": dict(trace.keys), "seed": seed, "metrics": metrics_of(result)}
            self._kept[policies] = len(trace), row

    def taken(self) -> list[Row]:
        """Return what is kept, and begin anew: the next runs are of another result."""
        kept = [row for _, row in self._kept.values()]
        self._kept.clear()
        return kept[:MOST]


POLICIES = ("planner", "router", "batch_scheduler", "power", "flow", "bundle")
MOST = 8
"""Most runs that a result keeps."""
_SAMPLES = Samples()
samples = _SAMPLES.taken


def metrics_of(result: Result) -> dict[str, float | None]:
    """Return the figures by which two runs are compared."""
    found = result.metrics
    return {
        "slo_attainment": found.slo_attainment, "gpu_hours": found.gpu_hours,
        "goodput_requests_per_s": found.goodput_requests_per_s, "ttft_mean_s": found.ttft_s.mean,
        "ttft_p99_s": found.ttft_s.p99, "tpot_mean_s": found.tpot_s.mean, "tbt_p99_s": found.tbt_s.p99,
    }  # fmt: skip


def again(sample: Row) -> Row:
    """Run a kept run again; return it with the figures of now."""
    result, _ = run(sample["config"], workload(**sample["workload"]), seed=sample["seed"])
    return {**sample, "metrics": metrics_of(result)}


# --- what scripts compute with ----------------------------------------------------------------------------------------


def attainment(config: Mapping[str, Any], trace: Sequence[TraceRequest], seed: int = 0) -> float:
    """Return the share of requests inside both SLOs."""
    return run(config, trace, seed=seed)[0].metrics.slo_attainment or 0.0


def capacity(score: Callable[[float], float], low: float, high: float, target: float = 0.9, steps: int = 9) -> float:
    """Return the highest rate whose `score` is at least `target`, by bisection; `low` when even that misses it.

    :param high: where the search begins; it grows while it is still served.
    """
    while score(high) >= target:
        low, high = high, 2 * high
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) >= target else (low, middle)
    return low
