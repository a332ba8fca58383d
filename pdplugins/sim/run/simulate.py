"""Simulates a config on a trace. The result has the same schema as a live run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pdplugins.config import Choice, Config, in_bundle, resolved, settings_of
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import Planner
from pdplugins.contracts.request import Slo
from pdplugins.interrupt import ctrl_c
from pdplugins.metrics import weighted_distribution
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.provenance import commit, versions
from pdplugins.results import Metrics, Requests, Result, Served, Speed, Spread, summary
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision import Journal
from pdplugins.runtime.journal import StandardJournal, build_journal
from pdplugins.runtime.planner import build_safe_planner, initial_plan
from pdplugins.runtime.policies import Policies, build_policies
from pdplugins.sim import kernel
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.records import Gaps
from pdplugins.sim.core.sampler import Sampler
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.run.setup import sim_settings
from pdplugins.workloads.trace import TraceRequest

STOCK_ROUTER = Choice(name="least-loaded")
"""The router of a config that names neither a router nor a bundle."""


def simulate(
    config: Config,
    trace: Sequence[TraceRequest],
    *,
    trace_name: str,
    command: str,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    sampler: Sampler | None = None,
    decision_log: Path | None = None,
) -> tuple[Result, RunOutcome]:
    """Run `trace` on the workers and policies of `config`. Raises ConfigError.

    Ctrl-C ends the run. The result then covers the requests that had ended by then, and has ``interrupted`` set.

    :param seed: noted in the result. Policies that draw random numbers get it as their setting ``seed``.
    :param decision_log: file for the log of policy decisions, sampled as the config says.
    """
    kernel.check()
    config = seeded(config, seed)
    deployment = build_deployment(config)
    policies = build_policies(config, deployment)
    journal = _journal(config, deployment, policies, decision_log)
    planner = None if policies.planner() is None else build_safe_planner(config, policies=policies, journal=journal)
    simulation = _simulation(config, deployment, policies, planner, sampler, journal)
    began = time.perf_counter()
    try:
        outcome, interrupted = _run(simulation, trace, progress)
    finally:
        if journal is not None:
            journal.close()
    wall_s = time.perf_counter() - began
    requests, metrics = summarise(outcome, deployment.slo)
    result = Result(
        kind="simulated",
        requests=requests,
        metrics=metrics,
        speed=Speed(
            requests_per_s=requests.total / wall_s,
            wall_s=wall_s,
            policy_s=outcome.policies.seconds,
            duration_s=outcome.duration_s,
        ),
        config={"run": {"trace": trace_name, "compiled": kernel.COMPILED}, **resolved(config)},
        seed=seed,
        commit=commit(),
        command=command,
        versions=versions(),
        scaling=outcome.scaling,
        counts=_counts(outcome),
        interrupted=interrupted,
    )
    return result, outcome


def _run(
    simulation: Simulation, trace: Sequence[TraceRequest], progress: Callable[[float], None] | None
) -> tuple[RunOutcome, bool]:
    """Return the outcome, and whether the run was interrupted by Ctrl-C or by a KeyboardInterrupt of `progress`."""
    with ctrl_c() as pressed:

        def beat(now_s: float) -> None:
            if progress is not None:
                progress(now_s)
            if pressed():
                raise KeyboardInterrupt

        try:
            return simulation.run(map(arrival, trace), beat), False
        except KeyboardInterrupt:
            return simulation.outcome(), True


def seeded(config: Config, seed: int) -> Config:
    """Return `config` with a router, and with `seed` for every random policy whose settings do not name one.

    If several keys pick parts of one bundle, only keys with settings get the seed, because all settings of a bundle
    must be equal.
    """
    chosen = config.chosen
    if config.router is None and config.bundle is None:
        chosen[Kind.ROUTER] = STOCK_ROUTER
    bundled = {key: choice.name for key, choice in chosen.items() if in_bundle(key, choice)}
    given = {name for key, name in bundled.items() if chosen[key].settings}
    for key, choice in chosen.items():
        if bundled.get(key) in given and not choice.settings:
            continue
        if "seed" in type(settings_of(key, choice)).model_fields and "seed" not in choice.settings:
            chosen[key] = Choice(name=choice.name, **choice.settings, seed=seed)
    return config.model_copy(update=chosen)


def _journal(
    config: Config, deployment: Deployment, policies: Policies, decision_log: Path | None
) -> StandardJournal | None:
    """Return the journal of a run; None without a decision log, so that policy calls stay fast."""
    if decision_log is None:
        return None
    initial = None if policies.planner() is None else initial_plan(config)
    return build_journal(config, deployment, initial=initial, decision_log=decision_log, capped=False)


def _simulation(
    config: Config,
    deployment: Deployment,
    policies: Policies,
    planner: Planner | None,
    sampler: Sampler | None,
    journal: Journal | None,
) -> Simulation:
    return Simulation(
        deployment,
        sim_settings(config, deployment),
        policies.router() or LeastLoaded(RouterSettings.model_validate({}), deployment),
        flow=policies.flow(),
        planner=planner,
        power=policies.power(),
        batch_scheduler=policies.batch_scheduler(),
        sampler=sampler,
        journal=journal,
    )


def _counts(outcome: RunOutcome) -> dict[str, int]:
    faults = {f"faults.{kind}": count for kind, count in sorted(outcome.policies.faults.items())}
    missed = {"deaths_missed": outcome.deaths_missed} if outcome.deaths_missed else {}
    return {"preemptions": outcome.preemptions, "retries": outcome.retries, **missed, **faults}


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


def summarise(outcome: RunOutcome, slo: Slo) -> tuple[Requests, Metrics]:
    """Compute every metric of a simulated run, as `pdplugins.results.summarise` does of a live one."""
    answered = [record for record in outcome.records if record.error is None]
    served = Served(
        total=len(outcome.records),
        ttft_s=[record.ttft_s for record in answered],
        tpot_s=[record.tpot_s for record in answered],
        osl_tokens=[record.osl_tokens for record in answered],
    )
    return summary(
        served,
        slo,
        duration_s=outcome.duration_s,
        gpu_hours=outcome.gpu_hours,
        tbt_s=gap_spread(outcome.gaps),
        energy_j=outcome.energy_j,
    )


def gap_spread(gaps: Gaps) -> Spread:
    """Return the distribution of all gaps. All gaps of one run of steps count as their mean."""
    means_s = np.asarray(gaps.means) / gaps.ticks_per_s
    return Spread.from_distribution(weighted_distribution(means_s, gaps.counts))
