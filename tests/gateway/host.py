"""The gateway over fake workers, as a host that runs the scenarios of `pdplugins.testing.hosts`."""

from __future__ import annotations

import asyncio
from typing import Any

from pdplugins.contracts.kinds import Kind
from pdplugins.testing.hosts import Job, NotFilledError, Scenario, Seam, Served
from pdplugins.types import Ending, Role
from tests.gateway.fake import CONTEXT_TOKENS, settled
from tests.gateway.rig import Stand, ask, stand

ENGINES = "the engines compose their batches; the plugin inside SGLang asks batch schedulers"
PLANNER = "the gateway has no planner: it routes to the servers that it is given"
POWER = "the gateway has no power controller: it does not see GPUs"
NOT_FILLED = {
    Seam.BATCHES: ENGINES,
    Seam.OWN_TPOTS: ENGINES,
    Seam.PLANNER_VIEW: PLANNER,
    Seam.PLANNER_POOLS: PLANNER,
    Seam.PLANNER_FAULTS: PLANNER,
    Seam.GPU_BUDGET: PLANNER,
    Seam.PLANNER_ROLES: PLANNER,
    Seam.POWER_ROLES: POWER,
    Seam.POWER_CAPS: POWER,
}

SPEED = 10.0
"""Requests arrive so many times as fast as the scenario says."""
TOKEN_S = 0.001


def body_of(job: Job, name: str) -> dict[str, Any]:
    """The request of a job; one that is to fail has a prompt that is longer than the model's context."""
    length = CONTEXT_TOKENS + 1 if job.fails else job.prompt_tokens
    return ask([ord(char) for char in name.ljust(length, "-")], job.output_tokens, rid=name, stream=True)


async def ending_of(it: Stand, job: Job, index: int) -> Ending:
    """Send the request of a job when it is due, and read its answer as its client does."""
    await asyncio.sleep(job.arrival_s / SPEED)
    body = body_of(job, f"job {index}")
    try:
        async with (
            asyncio.timeout(job.leaves_after_s),
            it.client.post(it.gateway.url + "/generate", json=body) as answer,
        ):
            data = await answer.read()
    except TimeoutError:
        return Ending.CANCELLED
    if answer.status == 503 and "Retry-After" in answer.headers:
        return Ending.REFUSED
    return Ending.FINISHED if answer.status == 200 and b'"error"' not in data else Ending.FAILED


async def serve(scenario: Scenario) -> Served:
    if scenario.planner or scenario.power or scenario.batch:
        raise NotFilledError("the gateway asks routers and flow policies only")
    roles = [Role.PREFILL] * scenario.prefill + [Role.DECODE] * scenario.decode
    modes = ["dual" for _ in roles] if scenario.any_role else roles
    async with stand(*modes, token_s=TOKEN_S, flow=scenario.flow, roles=roles) as it:
        if scenario.router is not None:
            it.route(scenario.router)
        endings = await asyncio.gather(*(ending_of(it, job, index) for index, job in enumerate(scenario.jobs)))
        assert await settled(it.idle)
        faults = {kind: sum(n for name, n in it.faults.items() if name.startswith(f"{kind}_")) for kind in Kind}
    return Served(tuple(endings), faults)


def run_scenario(scenario: Scenario) -> Served:
    return asyncio.run(serve(scenario))
