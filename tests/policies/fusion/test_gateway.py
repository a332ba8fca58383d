"""On a gateway: flow and router of one bundle over servers, and every request gets its own tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pdplugins.config import Config, parse
from pdplugins.policies.fusion.flow import FusionFlow
from pdplugins.policies.fusion.router import FusionRouter
from tests.gateway.fake import answer_of, settled
from tests.gateway.rig import PATIENT, ask, stand


def config(*, dual: bool, **settings: Any) -> Config:
    deployment = {"profile": "h100/llama-3.1-70b-fp8", "prefill": {"tp": 2}, "decode": {"tp": 2}}
    return parse({"deployment": deployment, "bundle": {"name": "fusion", **settings}, "sglang": {"dual_role": dual}})


@pytest.mark.moderate
def test_the_programme_is_solved_beside_the_requests() -> None:
    """Long prompts and short answers: a worker comes to prefill only, and no request had to ask for it."""

    async def run() -> None:
        async with stand(*("dual",) * 4, cfg=config(dual=True, prior_tokens=1, interval_s=0.1)) as it:
            router = it.gateway.policies.router
            assert isinstance(router, FusionRouter)
            await it.stream("/generate", ask([*range(3000)], 1))
            async with asyncio.timeout(30.0):
                while router.signals["capacity_rate"] == 0.0:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


@pytest.mark.moderate
@pytest.mark.parametrize("dual", [True, False])
def test_a_mixed_load_gets_the_right_tokens(dual: bool) -> None:
    async def run() -> None:
        modes = ("dual",) * 4 if dual else ("prefill", "prefill", "decode", "decode")
        async with stand(*modes, cfg=config(dual=dual), settings=PATIENT, token_s=0.0005) as it:
            assert isinstance(it.gateway.policies.router, FusionRouter)
            assert isinstance(it.gateway.policies.flow, FusionFlow)

            async def one(number: int) -> None:
                prompt = [number, *range(10 + 40 * (number % 5))]
                got = (await it.stream("/generate", ask(prompt, 6, session_id=f"s{number % 4}")))[-1]
                assert got["output_ids"] == answer_of(prompt, 6)

            await asyncio.gather(*(one(number) for number in range(24)))
            assert {name: count for name, count in it.faults.items() if count} == {}
            assert await settled(it.idle)

    asyncio.run(run())
