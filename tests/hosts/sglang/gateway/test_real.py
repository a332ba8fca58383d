"""The gateway over real SGLang servers on a CPU: every primitive gives the tokens of a unified server.

`make test-sglang` installs SGLang and runs this; without it every test is skipped.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
from typing import Any

import pytest

from benchmarks.rig.servers import Server
from pdplugins.types import Placement
from tests.gateway.fake import settled
from tests.gateway.rig import config
from tests.hosts.sglang import setups
from tests.hosts.sglang.gateway.stands import COUNT, Stand, ask, stand
from tests.hosts.sglang.paths import FILTER, GREEDY, Answer, edges_of, prompt_of, seeded
from tests.hosts.sglang.setups import CHUNK, Bench

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
everywhere = setups.on(*setups.ROOMY)

ROUTERS: dict[str, dict[str, Any]] = {
    "ampd": {},
    "arrow": {},
    "dopd": {"local_tokens": 60},
    "dynaserve": {"pairs": "any", "split": "balanced", "underused": 0, "least_tokens": 1, "margin_tokens": 0},
    "least-loaded": {},
}


def place(it: Stand, rid: str, tokens: int, dice: random.Random) -> None:
    """Place a request of so many tokens in one of all ways."""
    first, second = dice.sample(it.ids, 2)
    way = dice.randrange(9)
    if way == 0:
        it.told.later[rid] = dice.choice(it.ids)
        it.told.placements[rid] = Placement(first, None, tokens)
    elif way == 1:
        it.told.placements[rid] = Placement(first, first, tokens)
    else:
        split = dice.choice([*edges_of(tokens, COUNT, CHUNK), tokens + COUNT, dice.randrange(tokens + COUNT)])
        it.told.placements[rid] = Placement(first, second, split)


@everywhere
def test_two_hundred_requests_of_every_kind_are_equal_to_a_unified_server(bench: Bench) -> None:
    """Splits at every kind of boundary, both directions, streaming and not, greedy and with seeds, 32 in flight."""

    async def run() -> None:
        dice = random.Random(7)
        async with stand(bench) as it:
            gate = asyncio.Semaphore(32)

            async def one(number: int) -> str | None:
                ids, rid = prompt_of(dice, dice.choice([2, 17, 100, 255, 256, 257, 600])), f"r{number}"
                sampling = dice.choice([GREEDY, seeded(dice) | FILTER])
                body = ask(ids, sampling=sampling, return_logprob=number % 5 == 0)
                place(it, rid, len(ids), dice)
                async with gate:
                    want, got = await asyncio.gather(
                        it.unified("/generate", body),
                        it.ask("/generate", body | {"rid": rid, "stream": number % 2 == 0}),
                    )
                same = Answer.of(got).equals(Answer.of(want)) and got["text"] == want["text"]
                return None if same else f"{it.told.placements[rid]} of {len(ids)}: {got} is not {want}"

            wrong = [line for line in await asyncio.gather(*(one(number) for number in range(200))) if line]
            assert wrong == []
            assert not it.gateway.metrics.faults["worker_failed"]
            done = it.gateway.metrics.primitives
            assert all(done.count(name) > 2 for name in ("pair", "push", "local", "head", "warm"))
            async with asyncio.timeout(120):
                while not await it.idle():
                    await asyncio.sleep(0.25)

    asyncio.run(run())


@everywhere
@pytest.mark.parametrize("stream", [False, True])
def test_openai_completions_and_logprobs_are_equal(bench: Bench, stream: bool) -> None:
    async def run() -> None:
        dice = random.Random(3)
        async with stand(bench) as it:
            a, b = it.ids
            for number, (first, second, split) in enumerate([(a, b, 90), (b, b, 90), (a, b, 40), (b, a, 95)]):
                ids = prompt_of(dice, 90)
                body = {"model": "tiny", "prompt": ids, "max_tokens": COUNT, "temperature": 0, "ignore_eos": True}
                rid = f"c{number}"
                it.told.placements[rid] = Placement(first, second, split)
                want = (await it.unified("/v1/completions", body))["choices"][0]["text"]
                async with it.client.post(
                    it.gateway.url + "/v1/completions", json=body | {"rid": rid, "stream": stream}
                ) as r:
                    data = await r.read()
                    assert r.status == 200, data
                assert text_of(data, stream=stream) == want
            want = await it.unified("/generate", ask(ids, return_logprob=True))
            it.told.placements["l"] = Placement(a, b, 90)
            got = await it.ask("/generate", ask(ids, return_logprob=True, rid="l"))
            pairs = zip(
                got["meta_info"]["output_token_logprobs"], want["meta_info"]["output_token_logprobs"], strict=True
            )
            assert all(g[1] == w[1] and g[0] == pytest.approx(w[0], abs=1e-3) for g, w in pairs)

    asyncio.run(run())


@everywhere
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_ends_where_it_is_split_ends_there(bench: Bench, stream: bool) -> None:
    """The token that ends it is the last one that the first server is asked for."""

    async def run() -> None:
        async with stand(bench) as it:
            ids = prompt_of(random.Random(11), 60)
            free = (await it.unified("/generate", ask(ids, sampling=GREEDY)))["output_ids"]
            last = next(place for place in range(2, len(free)) if free[place] not in free[:place])
            body = ask(ids, sampling={**GREEDY, "ignore_eos": False, "stop_token_ids": [free[last]]})
            it.told.placements["e"] = Placement(*it.ids[:2], len(ids) + last + 1)
            want, got = (
                await it.unified("/generate", body),
                await it.ask("/generate", body | {"rid": "e", "stream": stream}),
            )
            assert got["output_ids"] == want["output_ids"] == free[: last + 1]
            assert got["text"] == want["text"]
            assert got["meta_info"]["finish_reason"]["type"] == want["meta_info"]["finish_reason"]["type"] == "stop"
            assert it.gateway.metrics.primitives.count("head") == 1

    asyncio.run(run())


def text_of(data: bytes, *, stream: bool) -> str:
    if not stream:
        return str(json.loads(data)["choices"][0]["text"])
    events = [event for event in data.split(b"\n\n") if event.startswith(b"data: {")]
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


@everywhere
@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_serves_sessions_with_the_tokens_of_a_unified_server(bench: Bench, router: str) -> None:
    """Two rounds each: the second one has the first one's answer in its prompt."""

    async def run() -> None:
        dice = random.Random(router)
        async with stand(bench, config({"name": router, **ROUTERS[router]})) as it:

            async def session(number: int) -> None:
                ids = prompt_of(dice, 40 + 60 * (number % 4))
                for _ in range(2):
                    want = await it.unified("/generate", ask(ids))
                    got = await it.ask("/generate", ask(ids, session_id=f"{router}{number}", stream=number % 2 == 0))
                    assert got["output_ids"] == want["output_ids"]
                    ids = ids + got["output_ids"] + prompt_of(dice, 30)

            await asyncio.gather(*(session(number) for number in range(8)))
            faults = it.gateway.metrics.faults
            assert faults["router_error"] == faults["worker_failed"] == 0

    asyncio.run(run())


FLIPS = {
    "flips_to_prefill": (1, 16384, 900, 1),
    "flips_to_decode": (2, 600, 250, 40),
}
"""Arrow's signal, and what makes it rise: servers that prefill at first (of three), tokens that one may decode, tokens
of the prompts and of the answers. One server is expected to meet the TTFT with two prompts of 900 tokens, no more."""
CLIENTS = 8
"""Each sends its next request when it has the answer to the last one."""


@setups.on(setups.ROOMY[1])
def test_arrow_moves_servers_between_prefill_and_decode(bench: Bench, third: Server, may_die: None) -> None:
    """The third server ends with it."""

    async def flip(name: str, prefill: int, most: int, tokens: int, count: int) -> None:
        dice = random.Random(name)
        deployment = {
            "profile": "h100/llama-3.1-70b-fp8",
            "prefill": {"tp": 2, "replicas": prefill},
            "decode": {"tp": 2},
        }
        arrow = {"name": "arrow", "max_running_tokens": most}
        cfg = config(arrow, deployment=deployment, slo={"ttft_s": 0.6, "tpot_s": 10})
        async with stand(bench, cfg, third) as it:
            router = it.gateway.routing.router
            answers: list[tuple[dict[str, Any], dict[str, Any]]] = []

            async def keep_on() -> None:
                while not router.signals[name]:
                    body = ask(prompt_of(dice, tokens), count)
                    answers.append((body, await it.ask("/generate", body)))

            # All the load goes through the gateway: what its servers wait for elsewhere would let their queues drain,
            # and Arrow moves a server only when the load has lasted.
            async with asyncio.timeout(300):
                await asyncio.gather(*(keep_on() for _ in range(CLIENTS)))
            for body, got in answers[-CLIENTS:]:
                assert got["output_ids"] == (await it.unified("/generate", body))["output_ids"]
            faults = it.gateway.metrics.faults
            assert faults["router_error"] == faults["worker_failed"] == 0

    for name, load in FLIPS.items():
        asyncio.run(flip(name, *load))


@everywhere
def test_a_prefill_worker_reads_the_history_back(bench: Bench) -> None:
    async def run() -> None:
        dice = random.Random(5)
        async with stand(bench) as it:
            a, b = it.ids
            ids = prompt_of(dice, 200)
            for number in range(2):
                it.told.placements[f"h{number}"] = Placement(a, b, len(ids))
                want = await it.unified("/generate", ask(ids, 20))
                got = await it.ask("/generate", ask(ids, 20, rid=f"h{number}", session_id="history"))
                assert got["output_ids"] == want["output_ids"]
                ids = ids + got["output_ids"] + prompt_of(dice, 50)
            assert it.gateway.metrics.primitives.count("history") == 1

    asyncio.run(run())


@everywhere
def test_clients_that_leave_leave_nothing_behind(bench: Bench) -> None:
    async def run() -> None:
        dice = random.Random(11)
        async with stand(bench) as it:
            a, b = it.ids

            async def leave(number: int) -> None:
                ids = prompt_of(dice, 300)
                rid = f"gone{number}"
                it.told.placements[rid] = Placement(
                    *dice.choice([(a, b, 300), (b, a, 300), (a, a, 300), (a, b, 100), (a, b, 320)])
                )
                try:
                    async with asyncio.timeout(dice.uniform(0.01, 0.5)):
                        await it.ask("/generate", ask(ids, 400, rid=rid, stream=number % 2 == 0))
                except TimeoutError:
                    pass

            await asyncio.gather(*(leave(number) for number in range(30)))
            async with asyncio.timeout(120):
                while not await it.idle():
                    await asyncio.sleep(0.25)
            ids = prompt_of(dice, 100)
            it.told.placements["after"] = Placement(a, b, 100)
            got, want = await it.ask("/generate", ask(ids, rid="after")), await it.unified("/generate", ask(ids))
            assert got["output_ids"] == want["output_ids"]

    asyncio.run(run())


@everywhere
@pytest.mark.usefixtures("may_die")
def test_a_worker_that_is_killed_in_mid_stream_is_continued_on_the_other_one(bench: Bench) -> None:
    async def run() -> None:
        dice = random.Random(13)
        async with stand(bench) as it:
            a, b = it.ids
            ids = prompt_of(dice, 300)
            want = (await it.unified("/generate", ask(ids, 300)))["output_ids"]
            it.told.placements["k"] = Placement(b, b, 300)
            request = asyncio.create_task(it.ask("/generate", ask(ids, 300, rid="k", stream=True)))
            load = it.gateway.backends.by_id[b].view.load
            assert await settled(lambda: load.running_tokens > 310, 120)
            bench.b.signal(signal.SIGKILL)
            it.told.placements["k"] = Placement(a, a, 300)
            assert (await request)["output_ids"] == want
            assert it.gateway.metrics.faults["resumed"] == 1

    asyncio.run(run())


@setups.on(*setups.STOCK)
@pytest.mark.parametrize("router", ["least-loaded", "arrow", "dynaserve"])
def test_stock_servers_serve_every_router_by_pairs(bench: Bench, router: str) -> None:
    async def run() -> None:
        dice = random.Random(router)
        async with stand(bench, config(router, dual=False)) as it:

            async def one(number: int) -> None:
                ids = prompt_of(dice, dice.choice([5, 100, 400]))
                want = await it.unified("/generate", ask(ids))
                got = await it.ask("/generate", ask(ids, stream=number % 2 == 0))
                assert got["output_ids"] == want["output_ids"]

            await asyncio.gather(*(one(number) for number in range(12)))
            assert not it.gateway.metrics.faults["worker_failed"]

    asyncio.run(run())
