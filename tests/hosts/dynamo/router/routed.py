"""Our router in Dynamo's request path as a host that runs the scenarios of `pdplugins.testing.hosts`."""

from __future__ import annotations

import asyncio
from collections import Counter

from pdplugins.contracts.kinds import Kind
from pdplugins.testing.hosts import Job, NotFilledError, Scenario, Seam, Served
from pdplugins.types import Ending
from tests.hosts.dynamo.router.rig import Rig, settings

PLANNER = "the router has no planner: Dynamo's scales the workers"
BATCHES = "Dynamo's engines compose their batches; no scheduler of ours is asked"
POWER = "no power controller of ours runs beside Dynamo"
NOT_FILLED = {
    Seam.BATCHES: BATCHES,
    Seam.OWN_TPOTS: BATCHES,
    Seam.PLANNER_VIEW: PLANNER,
    Seam.PLANNER_POOLS: PLANNER,
    Seam.PLANNER_FAULTS: PLANNER,
    Seam.GPU_BUDGET: PLANNER,
    Seam.PLANNER_ROLES: PLANNER,
    Seam.POWER_ROLES: POWER,
    Seam.POWER_CAPS: POWER,
}

SPEED = 4.0
"""Requests arrive so many times as fast as the scenario says."""
TOO_LONG = 9000
"""Tokens of a prompt that no worker here has the KV cache for."""


async def ending_of(rig: Rig, job: Job) -> Ending:
    """Send the request of a job when it is due, and read its answer as its client does."""
    await asyncio.sleep(job.arrival_s / SPEED)
    leaves = job.leaves_after_s is not None
    tokens = TOO_LONG if job.fails else job.prompt_tokens
    try:
        async with asyncio.timeout(job.leaves_after_s):
            status, body = await rig.chat(tokens, job.output_tokens, stream=leaves)
    except TimeoutError:
        return Ending.CANCELLED
    if status == 503:
        return Ending.REFUSED
    return Ending.FINISHED if status == 200 and b'"error"' not in body else Ending.FAILED


async def serve(rig: Rig, scenario: Scenario) -> Served:
    if scenario.planner or scenario.power or scenario.batch:
        raise NotFilledError("the router asks routers and flow policies only")
    config = settings("arrow", any_role=scenario.any_role, retries=1)
    async with rig.routed(
        config, scenario.prefill, scenario.decode, router=scenario.router, flow=scenario.flow, own=True
    ) as component:
        endings = await asyncio.gather(*(ending_of(rig, job) for job in scenario.jobs))
    counted: Counter[str] = component.metrics.faults
    faults = {kind: sum(n for name, n in counted.items() if name.startswith(f"{kind}_")) for kind in Kind}
    return Served(tuple(endings), faults)
