"""Every router on Dynamo's workers of SGLang: the answers are those of a plain server, token for token."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks.rig.servers import Server
from pdplugins.types import Placement, Request, WorkerView
from tests.hosts.dynamo.router.rig import settings, until
from tests.hosts.dynamo.sglang.workers import Ask, SglangRig

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1500)]

AT_ONCE = 8
TURNS = ("local", "pair", "push", "head", "warm")


class Swapping:
    """Serves each request in another way than the one before it, with the roles of the two workers swapped."""

    def __init__(self) -> None:
        self.asked = 0

    def on_arrival(self, request: Request, workers: Sequence[WorkerView], now_s: float) -> Placement:
        first, *others = sorted(worker.id for worker in workers)[:: 1 if self.asked % 2 else -1]
        turn = TURNS[self.asked // 2 % len(TURNS)]
        self.asked += 1
        prompt = request.prompt_tokens
        if turn == "local" or not others:
            return Placement(first, first, prompt)
        split = {"push": prompt // 2, "head": prompt + 2}.get(turn, prompt)
        return Placement(first, None if turn == "warm" else others[0], split)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: Sequence[WorkerView], now_s: float
    ) -> Placement:
        """Let the other worker decode, where there is one."""
        others = [worker.id for worker in workers if worker.id != placement.first]
        return Placement(placement.first, next(iter(others), placement.first), placement.split)


async def equal(rig: SglangRig, plain: Server, asks: Sequence[Ask]) -> None:
    """Send them to both, several at once, and compare."""
    some = asyncio.Semaphore(AT_ONCE)

    async def one(ask: Ask) -> None:
        async with some:
            wanted = await ask.plain(rig.client, plain.url)
            got, usage = await ask.send(rig.client, rig.url)
        assert got == wanted, ask
        if usage:
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(ask.prompt), ask.tokens)

    await asyncio.gather(*map(one, asks))


def test_every_placement_with_roles_swapped_on_every_request(sglang_rig: SglangRig, plain: Server) -> None:
    """Local, a pair, splits within prompt and answer, and a pair that is open until the prompt is computed."""

    async def run() -> Counter[str]:
        router = Swapping()
        rng = random.Random(15)
        config = settings("arrow", any_role=True, first_token_s=60.0)
        async with sglang_rig.routed(config, 1, 1, router=router, own=True) as component:
            await equal(sglang_rig, plain, [Ask.drawn(rng) for _ in range(80)])
            assert not component.metrics.faults, component.metrics.faults
            return Counter({turn: int(component.metrics.primitives.count(turn)) for turn in TURNS})

    counts = sglang_rig.run(run())
    assert counts["pair"] == counts["push"] == counts["warm"] == 16
    assert counts["local"] + counts["head"] == 32
    assert counts["head"] > 3, "the others are answers that end before the split: which ones, the order of arrival says"


@pytest.mark.parametrize("name", ["arrow", "ampd", "dynaserve", "dopd", "fusion"])
def test_every_router_gives_the_tokens_of_a_plain_server(name: str, sglang_rig: SglangRig, plain: Server) -> None:
    """With sessions of several rounds beside single requests, streams and whole answers."""

    async def run() -> None:
        rng = random.Random(name)
        config = settings(name, any_role=True, first_token_s=60.0)
        async with sglang_rig.routed(config, 1, 1) as component:
            single = [Ask.drawn(rng) for _ in range(40)]
            first = [Ask.drawn(rng, session=f"{name}-{number}") for number in range(5)]
            await equal(sglang_rig, plain, [*single[:20], *first])
            later = [Ask([*ask.prompt, *rng.choices(range(4, 400), k=30)], 8, session=ask.session) for ask in first]
            await equal(sglang_rig, plain, [*single[20:], *later])
            broken = {fault: n for fault, n in component.metrics.faults.items() if not fault.startswith("refused_")}
            assert not broken

    sglang_rig.run(run())


def test_a_worker_that_is_killed_under_load_loses_no_request(sglang_rig: SglangRig, plain: Server) -> None:
    """Requests start anew on the other worker, or go on there from the tokens that their clients have."""

    async def run() -> Counter[str]:
        rng = random.Random(9)
        # Its registration lasts for ten seconds more, in which it may be tried again.
        config = settings("arrow", any_role=True, first_token_s=60.0, retries=8, retry_reserve=100)
        asks = [Ask(rng.choices(range(4, 400), k=150), 300, stream=True) for _ in range(16)]
        async with sglang_rig.routed(config, 1, 1, router=Swapping(), own=True) as component:
            work = asyncio.create_task(equal(sglang_rig, plain, asks))
            await until(lambda: component.admission.requests >= AT_ONCE // 2, "requests are under way")
            sglang_rig.workers(1, 1, both=True)["dynamo-prefill-1"].signal(signal.SIGKILL)
            await work
            left = ["dynamo-decode-1"]
            await until(lambda: [view.id for view in component.workers.now_ready()] == left, "it is known to be gone")
            return Counter(component.metrics.faults)

    assert sglang_rig.run(run())["worker_failed"] > 0
