"""Too little room, too little time, too many of one kind: on real engines every request ends, and nothing leaks."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.rig.servers import Server
from tests.hosts.sglang import setups
from tests.hosts.sglang.paths import Answer, Client, prompt_of, run
from tests.hosts.sglang.setups import Bench, Setup

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

POOL = 3000
"""Tokens of KV cache, where there is too little."""
WAITED_S = 8
RAN_S = 15
"""Servers that stand still let these pass; what a busy machine runs in other tests takes less."""
DEADLOCK_S = 3
TIGHT = [
    Setup(
        version,
        "tight",
        env={
            "SGLANG_REQ_WAITING_TIMEOUT": str(WAITED_S),
            "SGLANG_REQ_RUNNING_TIMEOUT": str(RAN_S),
            "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(10 * DEADLOCK_S),
        },
        tokens=POOL,
    )
    for version in setups.VERSIONS
]
tight = setups.on(*TIGHT)
LITTLE_CACHE = [setup for setup in setups.SETUPS if setup.tokens == POOL]

Ask = Callable[[Client, list[int], int], Awaitable[Answer]]


def roles(a: Server, b: Server) -> dict[str, Ask]:
    """How to ask for one request in each role of `a`."""
    return {
        "local": lambda client, prompt, tokens: client.local(a, prompt, tokens),
        "prefill": lambda client, prompt, tokens: client.pair(a, b, prompt, tokens),
        "decode": lambda client, prompt, tokens: client.pair(b, a, prompt, tokens),
    }


async def nothing_is_left(client: Client, bench: Bench) -> None:
    for server in bench.pair:
        await client.becomes_idle(server)
        async with client.session.post(server.url + "/flush_cache") as answer:
            assert answer.status == 200, await answer.text()


@setups.on(*setups.ROOMY)
@pytest.mark.parametrize("kind", ["local", "prefill", "decode"])
def test_a_flood_of_one_kind_starves_no_other(bench: Bench, kind: str) -> None:
    """The flood goes on until the others have ended: with starvation they never would. There are not slots for all."""
    ask, workers = roles(*bench.pair), 36
    length, tokens = (10, 100) if kind == "decode" else (400, 1)

    async def test(client: Client) -> None:
        rng, over = random.Random(kind), asyncio.Event()
        flowing = asyncio.Semaphore(0)

        async def flood() -> None:
            while not over.is_set():
                await ask[kind](client, prompt_of(rng, length), tokens)
                flowing.release()

        async def other(name: str) -> None:
            prompt = prompt_of(rng, 600)
            wanted = await client.local(bench.unified, prompt, 12)
            assert (await ask[name](client, prompt, 12)).equals(wanted)

        flooding = [asyncio.create_task(flood()) for _ in range(workers)]
        await flowing.acquire()
        async with asyncio.timeout(300):
            await asyncio.gather(*[other(name) for name in ask.keys() - {kind} for _ in range(3)])
        assert not any(task.done() for task in flooding)
        over.set()
        await asyncio.gather(*flooding)
        await nothing_is_left(client, bench)

    run(test)


@setups.on(*LITTLE_CACHE)
def test_outputs_that_outgrow_the_cache_are_retracted_and_right(bench: Bench) -> None:
    """0.5.16 alone leaks what it finds in its radix cache when a retracted request comes back, and ends itself."""

    def retracted() -> bool:
        return "KV cache pool is full. Retract requests." in bench.b.log.read_text(errors="replace")

    async def test(client: Client) -> None:
        rng, length = random.Random(14), 20
        # On a busy machine hardly a prompt joins a step with decodes. Three of these answers outgrow the cache, and
        # SGLang takes in as many, for it reserves seven tenths of an answer at first.
        output = POOL // 3
        for flood in range(5):  # who decodes beside whom is chance: not every flood is one too many
            prompts = [prompt_of(rng, length) for _ in range(12 + 6 * flood)]
            wanted = await asyncio.gather(*[client.local(bench.unified, prompt, output) for prompt in prompts])
            asks = itertools.cycle(roles(bench.b, bench.a).values())
            got = await asyncio.gather(
                *[ask(client, prompt, output) for ask, prompt in zip(asks, prompts, strict=False)]
            )
            assert all(answer.equals(right) for answer, right in zip(got, wanted, strict=True))
            if retracted():
                break
        await nothing_is_left(client, bench)

    run(test)
    assert retracted()


@tight
@pytest.mark.parametrize("role", ["local", "prefill", "decode"])
def test_a_prompt_may_need_all_the_room_there_is_and_no_more(bench: Bench, role: str) -> None:
    async def test(client: Client) -> None:
        ask, rng = roles(*bench.pair)[role], random.Random(15)
        prompt = prompt_of(rng, POOL - 100)
        wanted = await client.local(bench.unified, prompt, 5)
        assert (await ask(client, prompt, 5)).equals(wanted)
        with pytest.raises(RuntimeError, match="exceeds the maximum allowed length"):
            await ask(client, prompt_of(rng, POOL + 1), 5)
        await nothing_is_left(client, bench)

    run(test)


@tight
def test_a_deadlock_of_reservations_is_ended(bench: Bench) -> None:
    """Each server holds more than half of its cache for a prompt that then does not fit on the other one."""

    async def test(client: Client) -> None:
        rng = random.Random(16)

        async def one(first: Server, second: Server) -> Answer | RuntimeError:
            prompt = prompt_of(rng, POOL * 2 // 3)
            try:
                return await client.pair(first, second, prompt, 3)
            except RuntimeError as error:
                return error

        async with asyncio.timeout(300):
            ended = await asyncio.gather(*[one(*order) for order in (bench.pair, bench.pair[::-1]) for _ in range(2)])
        whys = ("given up", "Aborted by", "waiting timeout")
        errors = [str(one) for one in ended if isinstance(one, RuntimeError)]
        assert all(any(why in error for why in whys) for error in errors), errors
        await nothing_is_left(client, bench)

    run(test)


async def time_passes(client: Client, bench: Bench, running: tuple[Server, ...], seconds: float) -> None:
    """Once these servers run something, let both stand still, so that no engine is too fast for its time-outs."""
    for server in running:
        while (await client.load(server))["num_running_reqs"] < 1:
            await asyncio.sleep(0.05)
    for server in bench.pair:
        os.killpg(server.process.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        for server in bench.pair:
            os.killpg(server.process.pid, signal.SIGCONT)


@tight
def test_who_runs_for_too_long_is_ended_whatever_its_role(bench: Bench) -> None:
    """0.5.16 looks for them only when it composes a step of local requests."""

    async def test(client: Client) -> None:
        rng, tokens = random.Random(17), POOL - 100
        ended = asyncio.gather(
            client.local(bench.a, prompt_of(rng, 10), tokens),
            client.pair(bench.a, bench.b, prompt_of(rng, 10), tokens),
            return_exceptions=True,
        )
        await time_passes(client, bench, bench.pair, RAN_S + 1)
        assert all("Request running timeout reached" in str(error) for error in await ended), ended
        await nothing_is_left(client, bench)

    run(test)


@tight
def test_who_waits_for_too_long_is_ended(bench: Bench) -> None:
    """A local prompt that finds no room beside one that keeps decoding."""

    async def test(client: Client) -> None:
        rng = random.Random(18)
        keeps = asyncio.create_task(client.local(bench.a, prompt_of(rng, 1000), POOL - 1100))
        await time_passes(client, bench, (bench.a,), 0)
        waits = asyncio.create_task(client.local(bench.a, prompt_of(rng, POOL - 500), 5))
        while (await client.load(bench.a))["num_waiting_reqs"] < 1:
            await asyncio.sleep(0.05)
        await time_passes(client, bench, (bench.a,), WAITED_S + 1)
        with pytest.raises(RuntimeError, match="Request waiting timeout reached"):
            await waits
        await asyncio.gather(keeps, return_exceptions=True)
        await nothing_is_left(client, bench)

    run(test)
