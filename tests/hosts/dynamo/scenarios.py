"""Dynamo as a host that runs the scenarios of `pdplugins.testing.hosts`, in the two ways that our planners drive it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from pdplugins.config import Config
from pdplugins.contracts.kinds import Kind
from pdplugins.hosts.dynamo.local.connector import LocalProcessConnector
from pdplugins.hosts.dynamo.local.fleet import Fleet
from pdplugins.hosts.dynamo.mocker import Engines, bind
from pdplugins.hosts.dynamo.offline.report import rows
from pdplugins.hosts.dynamo.offline.scaling import OfflineScaling
from pdplugins.processes.process import Process, stop_all
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.planner import SafePlanner
from pdplugins.testing.hosts import NotFilledError, Scenario, Seam, Served
from pdplugins.types import Deployment, Ending, Role, ScalePlan, TraceRequest
from pdplugins.workloads.jsonl import write_mooncake
from tests.hosts.dynamo.router import routed
from tests.hosts.dynamo.stock import ENTRY_YAML, PLANNER_YAML, Stock

REQUESTS = "planners place no requests; our router does"
BATCHES = "Dynamo's engines compose their batches; no scheduler of ours is asked"
POWER = "no power controller of ours runs beside Dynamo"
ROLES = "a worker keeps the role that it was started with; pools change by starts and stops"
PLANNERS_LACK = {
    Seam.WORKER_TP: REQUESTS,
    Seam.FREE_KV: REQUESTS,
    Seam.CAPABILITIES: REQUESTS,
    Seam.LOAD_BY_PHASE: REQUESTS,
    Seam.PLACED_LOADS: REQUESTS,
    Seam.SAME_TUPLE: REQUESTS,
    Seam.FINISHED: REQUESTS,
    Seam.FAILED: REQUESTS,
    Seam.CANCELLED: REQUESTS,
    Seam.ROUTER_FAULTS: REQUESTS,
    Seam.PLANS_AHEAD: REQUESTS,
    Seam.HOLDS: REQUESTS,
    Seam.REFUSES: REQUESTS,
    Seam.ROUTER_ROLES: REQUESTS,
    Seam.ZERO_OF_A_ROLE: REQUESTS,
    Seam.BATCHES: BATCHES,
    Seam.OWN_TPOTS: BATCHES,
    Seam.PLANNER_ROLES: ROLES,
    Seam.POWER_ROLES: POWER,
    Seam.POWER_CAPS: POWER,
}
"""What the ways do not fill by which our planners get into Dynamo."""
NOT_FILLED = {seam: why for seam, why in PLANNERS_LACK.items() if seam in routed.NOT_FILLED}
"""What no way fills: our router fills the other seams."""

TICK_S = 1.0
"""How often the planners of the scenarios decide."""
GPUS = dict.fromkeys(Role, 1)


def deployment_of(scenario: Scenario) -> Deployment:
    return replace(
        build_deployment(Config()),
        gpu_budget=scenario.gpu_budget,
        prefill_tp=1,
        decode_tp=1,
        startup_s=1.0,
        any_role=scenario.any_role,
    )


def planner_of(scenario: Scenario) -> SafePlanner:
    """The planner of a scenario; raises NotFilledError for what our doors into Dynamo have no place for."""
    if scenario.planner is None or scenario.router or scenario.flow or scenario.batch or scenario.power:
        raise NotFilledError("our doors into Dynamo are for planners")
    start = ScalePlan(scenario.prefill, scenario.decode, "workers at start")
    return SafePlanner(scenario.planner, deployment_of(scenario), initial=start)


# --- Dynamo's offline replay, with a planner in its loop --------------------------------------------------------------


def replay(scenario: Scenario, folder: Path) -> Served:
    safe = planner_of(scenario)
    trace = [TraceRequest(job.arrival_s, job.prompt_tokens, job.output_tokens) for job in scenario.jobs]
    write_mooncake(trace, folder / "trace.jsonl")
    run = bind(safe.deployment, Engines(), folder)
    policy = OfflineScaling(safe)
    run(folder / "trace.jsonl", policy, scenario.prefill, scenario.decode, folder / "requests.jsonl")
    answered = sorted(rows(folder / "requests.jsonl"), key=lambda row: row["arrival_time_ms"])
    assert len(answered) == len(scenario.jobs)
    completed = [row["terminal_status"] == "completed" for row in answered]
    endings = tuple(Ending.FINISHED if done else Ending.FAILED for done in completed)
    return Served(endings, {Kind.PLANNER: safe.faults.total()})


# --- Dynamo's own planner, our plugin in it, and the worker processes that it orders ----------------------------------


class Machine:
    """Starts a process for each worker; it counts as registered with Dynamo's discovery as long as it runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._registered: dict[str, str] = {}

    def launch(self, role: Role, name: str, on_exit: Callable[[Process], None]) -> Process:
        self._registered[name] = name
        return Process.start(name, ["sleep", "600"], env={}, log=self._folder / f"{name}.log", on_exit=on_exit)

    def serving(self) -> dict[str, str]:
        return dict(self._registered)

    def remove(self, instance: str) -> None:
        self._registered.pop(instance, None)


def planner_config(safe: SafePlanner) -> dict[str, Any]:
    entry = yaml.safe_load(ENTRY_YAML) | {"execution_interval_seconds": TICK_S, "kwargs": {"planner": safe}}
    changes = {
        "load_adjustment_interval_seconds": TICK_S,
        "scheduling": {"scale_interval_seconds": TICK_S},
        "plugin_registration": {"in_process_plugins": [entry]},
    }
    return dict(yaml.safe_load(PLANNER_YAML)) | changes


async def order(scenario: Scenario, folder: Path) -> Served:
    """Let Dynamo's planner tick as long as requests come, and order what it wants from the fleet."""
    from dynamo.planner.config.defaults import SubComponentType, TargetReplica  # noqa: PLC0415 - may be missing

    safe = planner_of(scenario)
    machine = Machine(folder)
    fleet = Fleet(machine.launch, machine, gpus=GPUS, gpu_budget=scenario.gpu_budget)
    connector = LocalProcessConnector(fleet, "tiny", GPUS, None)
    stock = Stock(planner_config(safe))
    await stock.start()
    pools, now_s = (scenario.prefill, scenario.decode), 0.0

    def settled() -> bool:
        fleet.step()
        return fleet.settled

    try:
        while now_s <= scenario.jobs[-1].arrival_s:
            targets = [
                TargetReplica(sub_component_type=SubComponentType(role), desired_replicas=count)
                for role, count in zip(Role, pools, strict=True)
            ]
            await connector.set_component_replicas(targets)
            await stock.until(settled)
            *ready, _ = await connector.get_actual_worker_counts()
            stock.pools = ready[0], ready[1]
            came = [job for job in scenario.jobs if now_s <= job.arrival_s < now_s + TICK_S]
            isl, osl = (sum(lengths) / len(came) for lengths in zip(*map(lengths_of, came), strict=True))
            pools = await stock.tick(0.0, duration_s=TICK_S, num_req=len(came), isl=isl, osl=osl)
            now_s += TICK_S
    finally:
        await stock.stop()
        await stop_all(fleet.close(), grace_s=5.0)
    return Served((), {Kind.PLANNER: safe.faults.total()})


def lengths_of(job: Any) -> tuple[int, int]:
    return job.prompt_tokens, job.output_tokens


def run_order(scenario: Scenario, folder: Path) -> Served:
    return asyncio.run(order(scenario, folder))
