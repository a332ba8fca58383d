"""A run of a simulation, whether its requests are held in memory or come one by one, and the result that it gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pdplugins.config import Config, resolved
from pdplugins.contracts.deployment import Deployment
from pdplugins.interrupt import ctrl_c
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.provenance import commit, versions
from pdplugins.results import Metrics, Requests, Result, Speed
from pdplugins.runtime.decision import Journal
from pdplugins.runtime.planner import build_safe_planner
from pdplugins.runtime.policies import Policies
from pdplugins.sim import kernel
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.sampler import Sampler
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.run.setup import sim_settings
from pdplugins.workloads.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Run:
    """A simulation that has ended."""

    outcome: RunOutcome
    wall_s: float
    """Seconds that it took on this machine."""
    interrupted: bool
    """Whether Ctrl-C ended it, or a KeyboardInterrupt of `progress`."""


def build_simulation(
    config: Config,
    deployment: Deployment,
    policies: Policies,
    *,
    sampler: Sampler | None = None,
    journal: Journal | None = None,
) -> Simulation:
    """Return the simulation that `config` describes. Raises ConfigError."""
    kernel.check()
    planner = None if policies.planner() is None else build_safe_planner(config, policies=policies, journal=journal)
    return Simulation(
        deployment,
        sim_settings(config, deployment, planned=planner is not None),
        policies.router() or LeastLoaded(RouterSettings.model_validate({}), deployment),
        flow=policies.flow(),
        planner=planner,
        power=policies.power(),
        batch_scheduler=policies.batch_scheduler(),
        sampler=sampler,
        journal=journal,
    )


def run(simulation: Simulation, requests: Iterable[TraceRequest], progress: Callable[[float], None]) -> Run:
    """Run `requests`, in order of arrival, to their end or until Ctrl-C.

    :param progress: called with the virtual time in seconds now and then.
    """
    began_s = time.perf_counter()
    with ctrl_c() as pressed:

        def beat(now_s: float) -> None:
            progress(now_s)
            if pressed():
                raise KeyboardInterrupt

        try:
            outcome, interrupted = simulation.run(map(arrival, requests), beat), False
        except KeyboardInterrupt:
            outcome, interrupted = simulation.outcome(), True
    return Run(outcome, time.perf_counter() - began_s, interrupted)


def arrival(request: TraceRequest) -> Arrival:
    """Return a request of a trace, or a session, as the simulator takes it."""
    return Arrival(
        request.arrival_s,
        request.isl_tokens,
        request.osl_tokens,
        request.blocks,
        request.session,
        rounds=request.rounds,
        terms=request.terms,
    )


def result_of(
    ended: Run,
    requests: Requests,
    metrics: Metrics,
    *,
    config: Config,
    origin: Mapping[str, object],
    command: str,
    seed: int,
) -> Result:
    """Return the result of a run, in the schema of any other one.

    :param origin: what else the result says of the run: the name of its trace.
    """
    outcome = ended.outcome
    return Result(
        kind="simulated",
        requests=requests,
        metrics=metrics,
        speed=Speed(
            requests_per_s=requests.total / ended.wall_s,
            wall_s=ended.wall_s,
            policy_s=outcome.policies.seconds,
            duration_s=outcome.duration_s,
        ),
        config={"run": {**origin, "compiled": kernel.COMPILED}, **resolved(config)},
        seed=seed,
        commit=commit(),
        command=command,
        versions=versions(),
        scaling=outcome.scaling,
        counts=_counts(outcome),
        interrupted=ended.interrupted,
    )


def _counts(outcome: RunOutcome) -> dict[str, int]:
    faults = {f"faults.{kind}": count for kind, count in sorted(outcome.policies.faults.items())}
    missed = {"deaths_missed": outcome.deaths_missed} if outcome.deaths_missed else {}
    return {"preemptions": outcome.preemptions, "retries": outcome.retries, **missed, **faults}
