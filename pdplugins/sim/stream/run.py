"""Simulates a config on requests that come one by one. The result has the schema of any other run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from pdplugins.config import Config
from pdplugins.results import Result
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.policies import build_policies
from pdplugins.sim.report import recordfile
from pdplugins.sim.run.running import build_simulation, result_of, run
from pdplugins.sim.run.simulate import seeded
from pdplugins.sim.stream.totals import Totals
from pdplugins.workloads.trace import TraceRequest


def simulate(
    config: Config,
    requests: Iterable[TraceRequest],
    *,
    trace_name: str,
    command: str,
    seed: int = 0,
    progress: Callable[[float], None] = lambda _: None,
    records: Path | None = None,
) -> Result:
    """Run `requests`, in order of arrival, on the workers and policies of `config`. Raises ConfigError.

    Memory grows with the requests in flight, and by a machine word for each request. Counts and means are those of
    `pdplugins.sim.run.simulate.simulate`; quantiles are off by at most a hundredth of a per cent (`Sketch`).

    :param progress: called with the virtual time in seconds now and then.
    :param records: file for a line of each request, written as they end.
    """
    config = seeded(config, seed)
    deployment = build_deployment(config)
    simulation = build_simulation(config, deployment, build_policies(config, deployment))
    with recordfile.writer(records) as write:
        totals = Totals(simulation.outcome(), deployment.slo, write)

        def beat(now_s: float) -> None:
            totals.take()
            progress(now_s)

        ended = run(simulation, requests, beat)
        counted, metrics = totals.summary(ended.outcome)
    origin = {"trace": trace_name, "streamed": True}
    return result_of(ended, counted, metrics, config=config, origin=origin, command=command, seed=seed)
