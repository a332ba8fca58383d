"""Simulates a config on requests that come one by one. The result has the schema of any other run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import cast

from pdplugins.config import Config, resolved
from pdplugins.provenance import commit, versions
from pdplugins.results import Result, Speed
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.planner import build_safe_planner
from pdplugins.runtime.policies import build_policies
from pdplugins.sim import kernel
from pdplugins.sim.report import recordfile
from pdplugins.sim.run import simulate as whole
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
    kernel.check()
    config = whole.seeded(config, seed)
    deployment = build_deployment(config)
    policies = build_policies(config, deployment)
    planner = None if policies.planner() is None else build_safe_planner(config, policies=policies)
    simulation = whole._simulation(config, deployment, policies, planner, None, None)
    with recordfile.writer(records) as write:
        totals = Totals(simulation.outcome(), deployment.slo, write)

        def beat(now_s: float) -> None:
            totals.take()
            progress(now_s)

        began = time.perf_counter()
        trace = cast("Sequence[TraceRequest]", requests)  # it is only iterated over
        outcome, interrupted = whole._run(simulation, trace, beat)
        counted, metrics = totals.summary(outcome)
        wall_s = time.perf_counter() - began
    return Result(
        kind="simulated",
        requests=counted,
        metrics=metrics,
        speed=Speed(
            requests_per_s=counted.total / wall_s,
            wall_s=wall_s,
            policy_s=outcome.policies.seconds,
            duration_s=outcome.duration_s,
        ),
        config={"run": {"trace": trace_name, "compiled": kernel.COMPILED, "streamed": True}, **resolved(config)},
        seed=seed,
        commit=commit(),
        command=command,
        versions=versions(),
        scaling=outcome.scaling,
        counts=whole._counts(outcome),
        interrupted=interrupted,
    )
