"""From a config and a trace to a result: the same schema as a live run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from pdplugins.config import CHOICES, Choice, Config, resolved, settings_of
from pdplugins.contracts.batching import BatchScheduler
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.planner import Planner
from pdplugins.contracts.power import PowerController
from pdplugins.contracts.request import Slo
from pdplugins.contracts.router import Router
from pdplugins.interrupt import ctrl_c
from pdplugins.metrics import weighted_distribution
from pdplugins.provenance import commit, versions
from pdplugins.registry import default_registry
from pdplugins.results import Metrics, Requests, Result, Served, Speed, Spread, summary
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision import Journal
from pdplugins.runtime.journal import StandardJournal, build_journal
from pdplugins.runtime.planner import build_safe_planner, initial_plan
from pdplugins.sim import kernel
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.records import Gaps
from pdplugins.sim.core.sampler import Sampler
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.run.setup import sim_settings
from pdplugins.workloads.trace import TraceRequest

STOCK_ROUTER = Choice(name="least-loaded")
"""What routes where a config names no router."""


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

    Ctrl-C ends the run: the result is of the requests that had ended by then, and says ``interrupted``.

    :param seed: noted in the result; policies that draw lots take it as their setting ``seed``.
    :param decision_log: where to log what the policies decide; every line is kept that the config's sample takes.
    """
    kernel.check()
    config = seeded(config, seed)
    deployment = build_deployment(config)
    journal = _journal(config, deployment, decision_log)
    planner = None if config.planner is None else build_safe_planner(config, journal=journal)
    simulation = _simulation(config, deployment, planner, sampler, journal)
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
    """Return what was done, and whether it was interrupted: by Ctrl-C, or because `progress` raised it."""
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
    """Return `config` with a router, and with `seed` for every policy that draws lots and names no seed of its own."""
    chosen: dict[str, Choice] = {}
    for kind in CHOICES:
        choice: Choice | None = getattr(config, kind)
        if choice is None and kind == "router":
            choice = STOCK_ROUTER
        if choice is None:
            continue
        if "seed" in type(settings_of(kind, choice)).model_fields and "seed" not in choice.settings:
            choice = Choice(name=choice.name, **choice.settings, seed=seed)
        chosen[kind] = choice
    return config.model_copy(update=chosen)


def _journal(config: Config, deployment: Deployment, decision_log: Path | None) -> StandardJournal | None:
    """Return the journal of a run; None without a log, so that the policies' path is as short as it can be."""
    if decision_log is None:
        return None
    initial = initial_plan(config) if config.planner is not None else None
    return build_journal(config, deployment, initial=initial, decision_log=decision_log, capped=False)


def _simulation(
    config: Config,
    deployment: Deployment,
    planner: Planner | None,
    sampler: Sampler | None,
    journal: Journal | None = None,
) -> Simulation:
    registry = default_registry()

    def make(kind: str, choice: Choice) -> Any:
        return registry.get(kind, choice.name).factory(settings_of(kind, choice), deployment)

    scheduler = config.batch_scheduler
    return Simulation(
        deployment,
        sim_settings(config, deployment),
        cast(Router, make("router", config.router or STOCK_ROUTER)),
        planner=planner,
        power=None if config.power is None else cast(PowerController, make("power", config.power)),
        batch_scheduler=None if scheduler is None else lambda: cast(BatchScheduler, make("batch_scheduler", scheduler)),
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
    """Return the distribution of all gaps. Gaps of one run of steps count as their mean."""
    means_s = np.asarray(gaps.means) / gaps.ticks_per_s
    return Spread.from_distribution(weighted_distribution(means_s, gaps.counts))
