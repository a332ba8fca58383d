"""The legs of one request: what workers are sent, what becomes of odd answers, and what is stopped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pdplugins.gateway.engine import Work
from pdplugins.gateway.errors import RefusedError, WorkerFailedError
from pdplugins.hosts.dynamo.router.calls import PreprocessedCall
from pdplugins.hosts.dynamo.router.handed_over import HandedOver
from pdplugins.hosts.dynamo.router.relay import Answers, Relay
from pdplugins.hosts.dynamo.router.workers import DynamoWorker
from pdplugins.limits import GatewayConfig
from pdplugins.types import Role
from tests.hosts.dynamo.router.scripted import LAST, PREFILLED, TOKEN, Leg, Transport

QUICK = GatewayConfig(first_token_s=0.05, silence_s=0.05)


class Stand:
    """One worker of each role, and a request."""

    def __init__(self, prefill: Transport, decode: Transport) -> None:
        self.prefill = DynamoWorker("p", Role.PREFILL, 1, {Role.PREFILL: prefill})
        self.decode = DynamoWorker("d", Role.DECODE, 2, {Role.DECODE: decode})
        self.prefill.alive = self.decode.alive = True
        self.context = Leg()
        body = {"token_ids": [1] * 50, "stop_conditions": {"max_tokens": 2}}
        call = PreprocessedCall(body, self.context)
        self.work = Work(call, call.body, 50, 50, 0.0)
        self.executor = HandedOver(QUICK)
        self.answers = Answers()
        self.relay = Relay(self.answers, lambda _: None)

    @property
    def legs(self) -> list[Leg]:
        return self.context.legs

    async def pair(self) -> int:
        async with self.executor.pair(self.prefill, self.decode, self.work) as answer:
            await self.relay.run(answer)
            return answer.tokens

    def idle(self) -> bool:
        loads = [worker.view.load for worker in (self.prefill, self.decode)]
        return not any(load.queued_requests or load.running_requests or load.running_tokens for load in loads)


def test_a_pair_prefills_one_token_hands_over_and_passes_the_answer_on() -> None:
    prefill, decode = Transport(PREFILLED, LAST), Transport(TOKEN, TOKEN, LAST)
    stand = Stand(prefill, decode)
    assert asyncio.run(stand.pair()) == 2
    (asked,), (handed,) = prefill.sent, decode.sent
    assert asked["stop_conditions"]["max_tokens"] == 1
    assert "prefill_result" not in asked
    assert handed["prefill_result"]["disaggregated_params"] == "there"
    assert handed["stop_conditions"] == {"max_tokens": 2}
    assert stand.relay.delivered_tokens == 2
    assert [leg.stopped for leg in stand.legs] == [False, False]
    assert stand.idle()


def test_what_has_been_prefilled_is_not_prefilled_again() -> None:
    prefill = Transport(PREFILLED, LAST)
    stand = Stand(prefill, Transport(TOKEN, LAST))

    async def late() -> None:
        await stand.executor.warm(stand.prefill, stand.work)
        assert await stand.pair() == 1

    asyncio.run(late())
    assert len(prefill.sent) == 1


@pytest.mark.parametrize(
    ("chunks", "why", "tokens"),
    [
        ((), "ended its answer before the first token", 0),
        (("what?",), "a chunk without token ids: what?", 0),
        (({"tokens": 1},), "a chunk without token ids", 0),
        (({"token_ids": None},), "a chunk without token ids", 0),
        (({"token_ids": [], "finish_reason": {"error": "no memory"}},), "no memory", 0),
        ((RuntimeError("no memory"),), "RuntimeError: no memory", 0),
        ((...,), "no token for 0.05 s", 0),
        ((TOKEN,), "its answer broke off", 1),
        ((TOKEN, ...), "no token for 0.05 s", 1),
        ((TOKEN, {"token_ids": [], "finish_reason": {"error": "no memory"}}), "no memory", 1),
        ((TOKEN, RuntimeError("no memory")), "no memory", 1),
    ],
)
def test_an_odd_answer_is_a_failure_of_its_worker_and_its_leg_is_stopped(chunks: Any, why: str, tokens: int) -> None:
    """The tokens before it count: another worker goes on from there."""
    stand = Stand(Transport(PREFILLED, LAST), Transport(*chunks))
    with pytest.raises(WorkerFailedError, match=why) as failed:
        asyncio.run(stand.pair())
    assert failed.value.workers == ("d",)
    assert stand.legs[-1].stopped
    assert stand.relay.speaking is bool(tokens)
    assert stand.relay.delivered_tokens == tokens
    assert stand.idle()


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        ((LAST, ...), "no token for 0.05 s"),
        ((...,), "no token for 0.05 s"),
        ((PREFILLED, ...), "no token for 0.05 s"),
        (({"token_ids": [], "finish_reason": {"error": "no memory"}},), "no memory"),
    ],
)
def test_a_prefill_that_fails_is_a_failure_of_its_worker(chunks: Any, why: str) -> None:
    decode = Transport(TOKEN, LAST)
    stand = Stand(Transport(*chunks), decode)
    with pytest.raises(WorkerFailedError, match=why) as failed:
        asyncio.run(stand.pair())
    assert failed.value.workers == ("p",)
    assert stand.legs[-1].stopped
    assert not decode.sent
    assert stand.idle()


def test_a_prefill_that_hands_nothing_over_is_a_failure() -> None:
    stand = Stand(Transport(LAST), Transport(TOKEN, LAST))
    with pytest.raises(WorkerFailedError, match="did not say where the KV cache is"):
        asyncio.run(stand.pair())
    assert stand.idle()


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (Exception("CannotConnect: instance_id=2 not found"), True),
        (Exception("Connection refused (os error 111)"), True),
        (Exception("Disconnected: stream ended"), False),
        (ValueError("odd"), False),
    ],
)
def test_a_worker_that_cannot_be_reached_is_gone(error: Exception, gone: bool) -> None:
    stand = Stand(Transport(PREFILLED, LAST), Transport(connects=error))
    with pytest.raises(WorkerFailedError) as failed:
        asyncio.run(stand.pair())
    assert failed.value.gone is gone
    assert stand.idle()


@pytest.mark.parametrize(
    "refusal",
    [
        {"token_ids": [], "finish_reason": {"error": "request rejected: too long"}},
        Exception("InvalidArgument: too long"),
    ],
)
def test_what_any_worker_would_refuse_is_no_failure(refusal: Any) -> None:
    stand = Stand(Transport(refusal), Transport(TOKEN, LAST))
    with pytest.raises(RefusedError, match="400"):
        asyncio.run(stand.pair())
    assert stand.idle()


def test_what_goes_wrong_after_the_last_chunk_does_not_matter() -> None:
    stand = Stand(Transport(PREFILLED, LAST), Transport(TOKEN, LAST, RuntimeError("late")))
    assert asyncio.run(stand.pair()) == 1


def test_a_request_that_is_cancelled_stops_its_legs() -> None:
    for prefill, decode in ((Transport(...), Transport()), (Transport(PREFILLED, LAST), Transport(TOKEN, ...))):
        stand = Stand(prefill, decode)

        async def leave(stand: Stand = stand) -> None:
            work = asyncio.create_task(stand.pair())
            await asyncio.sleep(0.01)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

        asyncio.run(leave())
        assert stand.legs[-1].stopped
        assert stand.idle()


def test_the_frontend_gets_the_chunks_in_order_and_then_what_ended_it() -> None:
    async def run() -> list[int]:
        answers = Answers()
        taken: list[int] = []

        async def take() -> None:
            async for chunk in answers:
                taken.extend(chunk["token_ids"])

        taking = asyncio.create_task(take())
        for number in range(3):
            answers.send({"token_ids": [number]})
            if number == 1:
                await asyncio.sleep(0)
        answers.end(RuntimeError("that was all"))
        with pytest.raises(RuntimeError, match="that was all"):
            await taking
        return taken

    assert asyncio.run(run()) == [0, 1, 2]
