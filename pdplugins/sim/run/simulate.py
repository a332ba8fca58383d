"""Simulates a config on a trace. The result has the same schema as a live run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pdplugins.config import Choice, Config, in_bundle, settings_of
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.request import Slo
from pdplugins.metrics import weighted_distribution
from pdplugins.results import Metrics, Requests, Result, Served, Spread, summary
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision_log import none_of_refused
from pdplugins.runtime.journal import StandardJournal, build_journal
from pdplugins.runtime.planner import initial_plan
from pdplugins.runtime.policies import Policies, build_policies
from pdplugins.sim.core.records import Gaps
from pdplugins.sim.core.sampler import Sampler
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.sim.run.running import build_simulation, result_of, run
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
    progress: Callable[[float], None] = lambda _: None,
    sampler: Sampler | None = None,
    decision_log: Path | None = None,
) -> tuple[Result, RunOutcome]:
    """Run `trace` on the workers and policies of `config`. Raises ConfigError.

    Ctrl-C ends the run. The result then covers the requests that had ended by then, and has ``interrupted`` set.

    :param seed: noted in the result. Policies that draw random numbers get it as their setting ``seed``.
    :param decision_log: file for the log of policy decisions, sampled as the config says.
    """
    config = seeded(config, seed)
    deployment = build_deployment(config)
    policies = build_policies(config, deployment)
    with none_of_refused(decision_log):
        journal = _journal(config, deployment, policies, decision_log)
        try:
            simulation = build_simulation(config, deployment, policies, sampler=sampler, journal=journal)
            ended = run(simulation, trace, progress)
        finally:
            if journal is not None:
                journal.close()
    requests, metrics = summarise(ended.outcome, deployment.slo)
    origin = {"trace": trace_name}
    return result_of(ended, requests, metrics, config=config, origin=origin, command=command, seed=seed), ended.outcome


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
