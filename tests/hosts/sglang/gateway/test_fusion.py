"""All parts of fusion at once: router and flow in the gateway, its batch scheduler inside real SGLang servers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pdplugins.runtime.decision_reader import read
from pdplugins.runtime.explain import Choose, explain
from tests.gateway.rig import config
from tests.hosts.sglang import setups
from tests.hosts.sglang.gateway.stands import ask, stand
from tests.hosts.sglang.paths import FILTER, GREEDY, prompt_of, seeded
from tests.hosts.sglang.setups import CHUNK, Bench

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

REQUESTS, AT_ONCE = 200, 32
SLO = {"ttft_s": 2.0, "tpot_s": 0.05}
TERMS = {"tpot_s": [0.001, 1.0]}
GATEWAYS = ("session_id", "stream", "pdplugins")
"""Fields that the unified server is not sent."""


def requests() -> list[dict[str, Any]]:
    """Bodies of prompts below and above a chunk, greedy and sampled with a seed.

    Some are of sessions, some are streamed, and some ask for a TPOT below the deployment's.
    """
    dice = random.Random(0)
    found = []
    for number in range(REQUESTS):
        sampling = dice.choice([GREEDY, seeded(dice) | FILTER])
        more: dict[str, Any] = {"session_id": f"s{number % 40}"} if number % 5 == 0 else {}
        if number % 7 == 0:
            more["pdplugins"] = {"tpot_ms": 500 * SLO["tpot_s"]}
        ids = prompt_of(dice, dice.choice([8, 60, CHUNK - 1, CHUNK + 1, 3 * CHUNK]))
        found.append(ask(ids, dice.randrange(1, 16), sampling, stream=number % 3 == 0, **more))
    return found


@pytest.mark.parametrize("bench", setups.FUSED, ids=str, indirect=True)
def test_two_hundred_mixed_requests_have_the_tokens_of_a_unified_server(bench: Bench) -> None:
    """With 32 in flight. Two such servers are best co-located, which fusion finds by itself; its engines log why."""

    async def run() -> None:
        async with stand(bench, config("fusion", bundle={"name": "fusion"}, slo=SLO, terms=TERMS)) as it:
            left = iter(requests())

            async def client() -> None:
                for body in left:
                    plain = {name: value for name, value in body.items() if name not in GATEWAYS}
                    want, got = await asyncio.gather(it.unified("/generate", plain), it.ask("/generate", body))
                    assert got["output_ids"] == want["output_ids"], body

            await asyncio.gather(*(client() for _ in range(AT_ONCE)))
            faults = it.gateway.metrics.faults
            assert faults["router_error"] == faults["flow_error"] == faults["worker_failed"] == 0

    asyncio.run(run())
    for server in bench.pair:
        assert "policy_error" not in server.log.read_text(errors="replace")
    logged = [(log, entry) for log in bench.decision_logs() for process in read(log) for entry in process.entries]
    assert {entry.fault for _, entry in logged} == {None}
    log, request = next((log, name) for log, entry in logged for name in entry.answer["prefill_tokens"])
    assert f"prefill {request} " in "\n".join(explain(log, Choose(request=request)))
