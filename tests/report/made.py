"""Runs to make pages of."""

from __future__ import annotations

from pdplugins.config import parse
from pdplugins.report.ranking import Run
from pdplugins.sim.core.sampler import Sampler
from pdplugins.sim.report.misses import missed_of
from pdplugins.sim.report.series import series_of
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import TraceRequest


def run(name: str = "a run", requests: int = 3000, gap_s: float = 0.05, router: str = "round-robin") -> Run:
    """Return a simulated run with its lines."""
    trace = [TraceRequest(index * gap_s, 100 + index % 700, 1 + index % 50) for index in range(requests)]
    config = parse({"router": router, "deployment": {"prefill": {"replicas": 2}}})
    sampler = Sampler()
    result, outcome = simulate(config, trace, trace_name="made up", command="none", sampler=sampler)
    return Run(name, result, series_of(outcome, result, sampler.samples), missed_of(outcome, config))
