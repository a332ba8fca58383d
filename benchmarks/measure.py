"""What every experiment computes with: a simulation, a generated workload, the search for a capacity."""

from __future__ import annotations

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


def command() -> str:
    """Return how this script was called, relative to the repository."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return command_line("python", [str(name), *sys.argv[1:]])


def run(
    config: Mapping[str, Any], trace: Sequence[TraceRequest], *, seed: int = 0, name: str = "experiment"
) -> tuple[Result, RunOutcome]:
    """Simulate `trace` on `config`, given as the plain data of a config file."""
    return simulate(parse(dict(config), name), trace, trace_name=name, command=command(), seed=seed)


def workload(**keys: Any) -> list[TraceRequest]:
    """Return a generated workload; `keys` are those of a workload file (docs/workloads.md)."""
    return list(synthetic(SyntheticSettings.model_validate(keys)))


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
