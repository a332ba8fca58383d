"""Legs of engines that move the KV cache while both workers have the request: what each is sent, and what fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pdplugins.gateway.engine import Work
from pdplugins.gateway.errors import WorkerFailedError
from pdplugins.hosts.dynamo.router.bootstrapped import Bootstrapped
from pdplugins.hosts.dynamo.router.calls import PreprocessedCall
from pdplugins.hosts.dynamo.router.engines import MOCKER, SGLANG
from pdplugins.hosts.dynamo.router.relay import Answers
from pdplugins.hosts.dynamo.router.workers import DynamoWorker
from pdplugins.hosts.sglang.roles import LOCAL_HOST, Classifier, EngineRole
from pdplugins.limits import GatewayConfig
from pdplugins.types import Role
from tests.hosts.dynamo.router.scripted import LAST, TOKEN, Leg, Transport

QUICK = GatewayConfig(first_token_s=0.05, silence_s=0.05)
CARD = {
    "kv_cache_block_size": 1,
    "runtime_config": {
        "total_kv_blocks": 1000,
        "disaggregated_endpoint": {"bootstrap_host": "10.0.0.1", "bootstrap_port": 9000},
    },
}


class Stand:
    """Two workers that do both phases, and a request for a few tokens."""

    def __init__(self, first: Transport, second: Transport, tokens: int = 3) -> None:
        self.first, self.second = (
            DynamoWorker(name, Role.PREFILL, number, dict.fromkeys(Role, transport))
            for number, (name, transport) in enumerate({"a": first, "b": second}.items())
        )
        for worker in (self.first, self.second):
            worker.introduce(CARD, 1, SGLANG.capabilities(Role.PREFILL, both=True))
            worker.alive = True
        self.context = Leg()
        body = {"token_ids": list(range(50)), "stop_conditions": {"max_tokens": tokens}}
        self.call = PreprocessedCall(body, self.context, splits=True)
        self.work = Work(self.call, self.call.body, 50, 50, 0.0)
        self.legs = Bootstrapped(QUICK)
        self.answers = Answers()
        self.relay = self.legs.relay(self.call, self.answers, lambda _: None)

    async def local(self) -> int:
        async with self.legs.local(self.first, self.work) as answer:
            await self.relay.run(answer)
            return answer.tokens

    async def pair(self) -> int:
        async with self.legs.pair(self.first, self.second, self.work) as answer:
            await self.relay.run(answer)
            tokens = answer.tokens
        await self.legs.close()
        return tokens

    def idle(self) -> bool:
        loads = [worker.view.load for worker in (self.first, self.second)]
        return not any(load.queued_requests or load.running_requests or load.running_tokens for load in loads)


class Said:
    """A request as SGLang has it, of what its worker was sent."""

    def __init__(self, body: dict[str, Any]) -> None:
        info = body["bootstrap_info"]
        self.bootstrap_host: str = info["bootstrap_host"]
        self.bootstrap_port: int = info["bootstrap_port"]
        self.bootstrap_room: int = info["bootstrap_room"]


def test_one_worker_alone_is_told_that_nobody_else_is_needed() -> None:
    transport = Transport(TOKEN, TOKEN, LAST)
    stand = Stand(transport, Transport())
    assert asyncio.run(stand.local()) == 2
    (body,) = transport.sent
    assert body["bootstrap_info"]["bootstrap_host"] == LOCAL_HOST
    assert Classifier.of((), 9000).role_of(Said(body)) is EngineRole.LOCAL
    assert body["token_ids"] == list(range(50))
    assert stand.idle()


def test_both_legs_of_a_pair_name_the_worker_that_prefills_and_one_room() -> None:
    """So that each worker reads its own role for the request from it."""
    first, second = Transport(TOKEN, LAST), Transport(TOKEN, LAST)
    stand = Stand(first, second)
    assert asyncio.run(stand.pair()) == 1
    (prefilled,), (decoded,) = first.sent, second.sent
    assert prefilled["bootstrap_info"] == decoded["bootstrap_info"]
    assert Classifier.of(("10.0.0.1",), 9000).role_of(Said(prefilled)) is EngineRole.PREFILL
    assert Classifier.of(("10.0.0.2",), 9001).role_of(Said(decoded)) is EngineRole.DECODE
    assert prefilled["stop_conditions"]["max_tokens"] == 1
    assert decoded["stop_conditions"]["max_tokens"] == 3
    assert stand.idle()
    asyncio.run(stand.pair())
    assert first.sent[1]["bootstrap_info"]["bootstrap_room"] != prefilled["bootstrap_info"]["bootstrap_room"]


def test_a_prefix_is_computed_on_one_worker_for_the_cache_of_another_one() -> None:
    first, second = Transport(TOKEN, LAST), Transport(TOKEN, LAST)
    stand = Stand(first, second)

    async def push() -> None:
        await stand.legs.push(stand.first, stand.second, range(20), stand.work)
        await stand.legs.close()

    asyncio.run(push())
    for sent in (first.sent, second.sent):
        assert sent[0]["token_ids"] == list(range(20))
        assert sent[0]["stop_conditions"]["max_tokens"] == 1
    assert stand.idle()


@pytest.mark.parametrize(
    ("first", "second", "suspects"),
    [
        (Transport(RuntimeError("no memory")), Transport(...), ("a", "b")),
        (Transport(connects=Exception("Connection refused")), Transport(...), ("a",)),
        (Transport(...), Transport(RuntimeError("no memory")), ("b", "a")),
        (Transport(...), Transport({"token_ids": [], "finish_reason": "cancelled"}), ("a", "b")),
    ],
    ids=["prefill-fails", "prefill-gone", "decode-fails", "decode-gives-up"],
)
def test_a_pair_fails_with_either_worker_and_both_legs_are_stopped(
    first: Transport, second: Transport, suspects: tuple[str, ...]
) -> None:
    """One that gives a request up mostly does so because of the other one."""
    stand = Stand(first, second)
    with pytest.raises(WorkerFailedError) as failed:
        asyncio.run(stand.pair())
    assert failed.value.workers == suspects
    assert all(leg.stopped for leg in stand.context.legs)
    assert stand.idle()


def test_a_worker_without_an_address_cannot_prefill_for_others() -> None:
    stand = Stand(Transport(), Transport())
    stand.first.bootstrap = None
    with pytest.raises(WorkerFailedError, match="no bootstrap address"):
        asyncio.run(stand.pair())


def test_a_client_that_leaves_stops_both_legs() -> None:
    stand = Stand(Transport(...), Transport(...))

    async def leave() -> None:
        work = asyncio.create_task(stand.pair())
        await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(leave())
    assert [leg.stopped for leg in stand.context.legs] == [True, True]
    assert stand.idle()


def test_the_beginning_of_an_answer_has_no_end_and_the_rest_counts_it() -> None:
    """The frontend would otherwise end the answer where the first worker stops, and count its tokens to the prompt."""

    async def run() -> list[dict[str, Any]]:
        usage = {"prompt_tokens": 52, "completion_tokens": 1, "total_tokens": 53}
        begun = Transport({"token_ids": [1, 2], "finish_reason": "length", "completion_usage": usage})
        rest = Transport({"token_ids": [3], "finish_reason": "length", "completion_usage": usage})
        stand = Stand(begun, rest)
        heard = aiter(stand.answers)
        async with stand.legs.local(stand.first, stand.work) as answer:
            assert not await stand.relay.run(answer, head=True)
        first = await anext(heard)  # before the rest comes, which would be joined to it
        stand.relay.fold()
        async with stand.legs.local(stand.second, stand.work) as answer:
            assert await stand.relay.run(answer)
        stand.answers.end(None)
        return [first, *[chunk async for chunk in heard]]

    first, last = asyncio.run(run())
    assert first == {"token_ids": [1, 2]}
    assert last["finish_reason"] == "length"
    assert last["completion_usage"] == {"prompt_tokens": 50, "completion_tokens": 3, "total_tokens": 53}


@pytest.mark.parametrize(("reason", "most"), [("stop", 3), ("length", 2)], ids=["it-ends", "that-was-all"])
def test_an_answer_that_ends_with_its_beginning_is_whole(reason: str, most: int) -> None:
    async def run() -> bool:
        stand = Stand(Transport({"token_ids": [1, 2], "finish_reason": reason}), Transport(), most)
        async with stand.legs.local(stand.first, stand.work) as answer:
            return await stand.relay.run(answer, head=True)

    assert asyncio.run(run())


def test_engines_that_move_kv_cache_can_split_what_does_not_look_back() -> None:
    """Penalties look at the answer so far, which is a part of the prompt for the worker that goes on."""

    def call(*, splits: bool = True, **sampling: Any) -> PreprocessedCall:
        return PreprocessedCall({"token_ids": [1], "sampling_options": sampling}, Leg(), splits=splits)

    assert call().splits_in_decode
    assert not call(splits=False).splits_in_decode
    assert not call(presence_penalty=0.5).splits_in_decode
    assert not call(guided_decoding={"regex": "a"}).splits_in_decode
    assert (call(n=2).whole, call(n=2, splits=False).whole) == ("n", None)


def test_what_a_worker_can_do_depends_on_its_engine() -> None:
    for kind, splits in ((MOCKER, False), (SGLANG, True)):
        both, one = kind.capabilities(Role.DECODE, both=True), kind.capabilities(Role.DECODE, both=False)
        assert (both.alone, both.splits) == (True, splits)
        assert (one.phases, one.alone, one.splits) == ({Role.DECODE}, False, False)
    assert len(MOCKER.places(both=True)) == 4
    assert SGLANG.places(both=True) == SGLANG.places(both=False) == MOCKER.places(both=False)
