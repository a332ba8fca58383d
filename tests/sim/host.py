"""The simulator, as a host that runs the scenarios of `pdplugins.testing.hosts`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pdplugins.contracts.kinds import Kind
from pdplugins.runtime.planner import SafePlanner
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.power import PowerCurve
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.testing import RecordingRouter, deployment
from pdplugins.testing.hosts import Job, Scenario, Served
from pdplugins.types import Ending, ScalePlan, Terms
from tests.sim.models import BentModel

DOOMED_TOKENS = 10**6
"""A prompt of so many tokens fits into no worker, and its request fails."""


def arrival(job: Job) -> Arrival:
    tokens = DOOMED_TOKENS if job.fails else job.prompt_tokens
    terms = None if job.tpot_s is None else Terms(tpot_s=job.tpot_s)
    return Arrival(job.arrival_s, tokens, job.output_tokens, cancel_after_s=job.leaves_after_s, terms=terms)


def ending(error: str | None) -> Ending:
    if error is None:
        return Ending.FINISHED
    if error.startswith("refused"):
        return Ending.REFUSED
    return Ending.CANCELLED if error == "cancelled" else Ending.FAILED


CURVE = PowerCurve(cap_w=(300.0, 700.0), prefill_slow=(1.5, 1.0), decode_slow=(1.2, 1.0))


def run_scenario(scenario: Scenario) -> Served:
    chosen = deployment(BentModel(), any_role=scenario.any_role, startup_s=1.0, gpu_budget=scenario.gpu_budget)
    flip: Any = "label" if scenario.any_role else "drain"
    planner = scenario.planner
    if planner is not None:
        planner = SafePlanner(planner, chosen, initial=ScalePlan(scenario.prefill, scenario.decode, "at start"))
    simulation = Simulation(
        chosen,
        SimSettings(scenario.prefill, scenario.decode, flip=flip, power=CURVE),
        scenario.router or RecordingRouter(),
        flow=scenario.flow,
        planner=planner,
        power=scenario.power,
        batch_scheduler=scenario.batch,
    )
    outcome = simulation.run([arrival(job) for job in sorted(scenario.jobs, key=lambda job: job.arrival_s)])
    errors = {int(record.id): record.error for record in outcome.records}
    faults = Counter({Kind(kind): count for kind, count in outcome.policies.faults.items()})
    return Served(tuple(ending(errors[index]) for index in range(len(scenario.jobs))), faults)
