"""A full worker is full, not broken: retries are few, come after a pause, and the client hears when to come back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pdplugins.gateway.retry import RetryBudget, pause_s
from tests.gateway.fake import answer_of, settled
from tests.gateway.rig import PROMPT, Fixed, Stand, ask, patient, stand

pytestmark = pytest.mark.moderate


def fill(it: Stand, status: int = 503, **headers: str) -> None:
    for worker in it.workers:
        worker.faults.status, worker.faults.headers = status, headers


@pytest.mark.parametrize("status", [429, 503])
def test_retries_of_full_workers_are_a_tenth_of_the_requests(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdplugins.gateway.retry.RESERVE_PER_S", 0.0)

    async def run() -> None:
        async with stand("dual", "dual", settings=patient(retry_reserve=5, backoff_s=0.001)) as it:
            it.route(Fixed()).second = 0
            fill(it, status)
            statuses = await asyncio.gather(*(refusal(it) for _ in range(100)))
            assert statuses == [(503, "1")] * 100
            sent = sum(len(worker.seen) for worker in it.workers)
            assert 100 < sent <= 100 + 5 + 10
            assert it.faults["worker_full"] == sent
            assert it.faults["worker_failed"] == 0
            assert len(it.gateway.backends.now_ready()) == 2  # nobody rests
            fill(it, 0)
            assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)

    asyncio.run(run())


async def refusal(it: Stand, **more: Any) -> tuple[int, str | None]:
    async with it.client.post(it.gateway.url + "/generate", json=ask(**more)) as answer:
        return answer.status, answer.headers.get("Retry-After")


@pytest.mark.parametrize(("said", "told"), [("7", "7"), ("1000", "60"), ("Wed, 21 Oct 2015", "1"), ("-3", "1")])
def test_what_a_full_worker_says_of_later_is_passed_on(said: str, told: str) -> None:
    async def run() -> None:
        async with stand("dual", settings=patient(retries=0)) as it:
            fill(it, 503, **{"Retry-After": said})
            assert await refusal(it) == (503, told)

    asyncio.run(run())


def test_a_request_moves_from_a_full_worker_to_one_that_is_not() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed()).second = 0
            it.workers[0].faults.status = 503
            assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)
            assert [len(worker.seen) for worker in it.workers] == [1, 1]

    asyncio.run(run())


def test_a_request_whose_decode_worker_is_chosen_late_moves_from_a_full_one_too() -> None:
    async def run() -> None:
        async with stand("dual", "dual", "dual") as it:
            router = it.route(Fixed())
            router.second, router.later = None, 1
            it.workers[1].faults.status = 503
            assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)
            assert len(it.workers[1].seen) == 1

    asyncio.run(run())


def test_an_error_event_may_say_that_a_worker_is_full() -> None:
    async def run() -> None:
        async with stand("dual", settings=patient(retries=0)) as it:
            it.workers[0].faults.error_event = True
            it.workers[0].faults.event_code = 503
            assert await refusal(it, stream=True) == (503, "1")
            assert it.faults["worker_full"] == 1

    asyncio.run(run())


def test_every_request_of_a_broken_worker_moves_on_once_whatever_the_budget() -> None:
    async def run() -> None:
        async with stand("dual", "dual", token_s=0.1, settings=patient(retry_reserve=1, retry_share=0)) as it:
            router = it.route(Fixed())
            router.first = router.second = 0
            asked = [asyncio.create_task(it.post("/generate", ask(stream=False))) for _ in range(40)]
            assert await settled(lambda: len(it.workers[0].running) == 40)
            await it.workers[0].stop()
            assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 40

    asyncio.run(run())


def test_a_request_that_fails_everywhere_makes_one_worker_rest() -> None:
    async def run() -> None:
        async with stand("dual", "dual", "dual", settings=patient(rest_s=60)) as it:
            it.route(Fixed())
            fill(it, 500)
            assert (await it.post("/generate", ask()))[0] == 502
            assert len(it.gateway.backends.now_ready()) == 2

    asyncio.run(run())


def test_requests_beyond_the_limit_are_refused_before_anything_is_read() -> None:
    async def run() -> None:
        async with stand("dual", token_s=0.05, settings=patient(max_requests=2)) as it:
            two = [asyncio.create_task(it.post("/generate", ask())) for _ in range(2)]
            assert await settled(lambda: len(it.workers[0].running) == 2)
            assert await refusal(it) == (503, "1")
            assert [status for status, _ in await asyncio.gather(*two)] == [200] * 2
            assert await refusal(it) == (200, None)

    asyncio.run(run())


def test_the_budget_is_a_share_with_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("pdplugins.gateway.retry.monotonic", lambda: now)
    budget = RetryBudget(patient(retry_reserve=3, retry_share=0.1))
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
    for _ in range(11):
        budget.arrived()
    assert [budget.take(), budget.take()] == [True, False]
    now += 2.0
    assert [budget.take(), budget.take(), budget.take()] == [True, True, False]


def test_pauses_double_up_to_a_bound() -> None:
    settings = patient(backoff_s=0.1, max_backoff_s=0.3)
    for retry, most in ((0, 0.1), (1, 0.2), (2, 0.3), (5_000, 0.3)):
        pauses = [pause_s(settings, retry) for _ in range(200)]
        assert all(0 <= pause <= most for pause in pauses)
        assert max(pauses) - min(pauses) > most / 2
