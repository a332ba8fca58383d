"""A reset connection is the end of one attempt. A worker that nobody finds is waited for, a little while."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.gateway.fake import FakeWorker, Rooms, answer_of, settled
from tests.gateway.rig import PROMPT, Fixed, Stand, ask, over, patient, stand

pytestmark = pytest.mark.moderate


async def one(it: Stand, **more: Any) -> int:
    status, answer = await it.post("/generate", ask(**more))
    assert status != 200 or answer["output_ids"] == answer_of(PROMPT, 9)
    return status


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_reset_connection_costs_no_other_request_anything(workers: int, stream: bool) -> None:
    async def run() -> None:
        async with stand(*["dual"] * workers, token_s=0.2, settings=patient(rest_s=60)) as it:
            router = it.route(Fixed())
            router.first = router.second = 0
            waiting = [asyncio.create_task(one(it)) for _ in range(50)]
            assert await settled(lambda: len(it.workers[0].running) == 50)
            it.workers[0].faults.reset, it.workers[0].faults.times = True, 1
            if stream:
                assert (await it.stream("/generate", ask()))[-1]["output_ids"] == answer_of(PROMPT, 9)
            else:
                assert await one(it) == 200
            assert await asyncio.gather(*waiting) == [200] * 50
            assert it.faults["worker_failed"] == 1
            assert all(backend.alive for backend in it.gateway.backends.all)

    asyncio.run(run())


def test_a_reset_in_the_middle_of_a_stream_is_no_lost_worker() -> None:
    async def run() -> None:
        async with stand("dual", "dual", settings=patient(poll_s=60)) as it:
            it.route(Fixed())
            it.workers[1].faults.die_after_tokens, it.workers[1].faults.times = 3, 1
            assert (await it.stream("/generate", ask()))[-1]["output_ids"] == answer_of(PROMPT, 9)
            assert all(backend.alive for backend in it.gateway.backends.all)

    asyncio.run(run())


class Frozen(FakeWorker):
    """Says nothing any more once it is asked for token ids."""

    asked = False

    async def _tokenize(self, request: web.Request) -> web.Response:
        self.asked = True
        await asyncio.Event().wait()
        raise AssertionError

    async def _loads(self, request: web.Request) -> web.Response:
        if self.asked:
            await asyncio.Event().wait()
        return await super()._loads(request)


def test_who_waits_for_token_ids_of_a_lost_worker_moves_on() -> None:
    async def run() -> None:
        rooms = Rooms()
        workers = [await Frozen("dual", rooms, 9000).start(), await FakeWorker("dual", rooms, 9001).start()]
        async with over(workers, settings=patient(poll_timeout_s=0.3)) as it:
            it.route(Fixed()).split = 5
            status, _ = await asyncio.wait_for(it.post("/generate", ask("hello " * 20)), 20)
            assert status == 200
            assert workers[0].asked
            assert it.faults["worker_failed"] == 1

    asyncio.run(run())


def test_requests_wait_for_a_worker_that_comes_back() -> None:
    async def run() -> None:
        async with stand("dual", settings=patient(worker_wait_s=30)) as it:
            await it.workers[0].stop()
            early = [asyncio.create_task(one(it)) for _ in range(3)]  # perhaps before anyone knows that it is gone
            assert await settled(lambda: not it.gateway.backends.ready)
            late = [asyncio.create_task(one(it)) for _ in range(3)]
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in (*early, *late))
            await it.workers[0].start()
            assert await asyncio.gather(*early, *late) == [200] * 6

    asyncio.run(run())


def test_the_wait_for_a_worker_is_bounded_in_time_and_number() -> None:
    async def run() -> None:
        async with stand("dual", settings=patient(worker_wait_s=1, max_waiting=2)) as it:
            await it.workers[0].stop()
            assert await settled(lambda: not it.gateway.backends.ready)
            two = [asyncio.create_task(one(it)) for _ in range(2)]
            assert await settled(lambda: it.gateway.admission._waiting == 2)
            async with it.client.post(it.gateway.url + "/generate", json=ask()) as third:
                assert (third.status, third.headers["Retry-After"]) == (503, "1")
                assert "too many requests wait" in await third.text()
            assert not any(task.done() for task in two)
            assert await asyncio.gather(*two) == [503] * 2

    asyncio.run(run())


def test_too_few_descriptors_are_load_and_no_lost_worker() -> None:
    """The process may open nothing more: a client whose connection is open gets 503, and the worker stays."""

    async def run() -> None:
        async with stand("dual", settings=patient(poll_s=0.02)) as it:
            async with it.client.get(it.gateway.url + "/health") as answer:
                assert answer.status == 200
            (backend,) = it.gateway.backends.all
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
            taken = [Path("/dev/null").open("rb") for _ in range(highest)]  # noqa: SIM115 - so that no number is free
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(file.fileno() for file in taken) + 1, before[1]))
            try:
                async with it.client.post(it.gateway.url + "/generate", json=ask()) as answer:
                    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert backend.alive
                assert it.faults["out_of_descriptors"] >= 1
                assert it.faults["worker_failed"] == 0
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
                for file in taken:
                    file.close()
            assert await one(it) == 200

    asyncio.run(run())
