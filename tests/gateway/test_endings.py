"""A router hears of the end of each request that it was asked for, exactly once, whatever the end was."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.gateway.fake import answer_of, settled
from tests.gateway.rig import JSON, PROMPT, Fixed, ask, fast, stand
from tests.gateway.sockets import message, sockets

PLACED = {"pair": (0, 1, None), "local": (1, 1, None), "push": (0, 1, 20), "head": (0, 1, 63), "open": (0, None, None)}


def placing(router: Fixed, kind: str) -> Fixed:
    router.first, router.second, router.split = PLACED[kind]
    router.later = 1
    return router


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", PLACED)
def test_a_request_that_finishes(kind: str, stream: bool) -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            router = placing(it.route(Fixed()), kind)
            if stream:
                await it.stream("/generate", ask(rid="a"))
            else:
                await it.post("/generate", ask(rid="a"))
            assert router.endings == [("a", "finished", 9)]

    asyncio.run(run())


def test_a_request_that_is_continued_elsewhere_ends_once_with_all_its_tokens() -> None:
    async def run() -> None:
        async with stand("dual", "dual", "dual") as it:
            router: Fixed = it.route(Fixed())
            it.workers[1].faults.die_after_tokens, it.workers[1].faults.times = 2, 1
            await it.stream("/generate", ask(rid="a"))
            assert it.faults["resumed"] == 1
            assert len(router.requests) == 2
            assert router.endings == [("a", "finished", 9)]

    asyncio.run(run())


def test_a_request_whose_retries_are_spent() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            router: Fixed = it.route(Fixed())
            for worker in it.workers:
                worker.faults.status = 500
            assert (await it.post("/generate", ask(rid="a")))[0] == 502
            assert router.endings == [("a", "failed", 0)]

    asyncio.run(run())


def test_a_stream_that_breaks_off_tells_the_tokens_that_the_client_got() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            router: Fixed = it.route(Fixed())
            it.workers[1].faults.die_after_tokens = 2
            body = ask(rid="a")
            body["sampling_params"]["frequency_penalty"] = 0.7
            assert (await it.stream("/generate", body))[-1]["error"]["code"] == 502
            assert router.endings == [("a", "failed", 2)]

    asyncio.run(run())


def test_a_request_that_its_worker_refuses() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            router: Fixed = it.route(Fixed())
            it.workers[0].faults.status = it.workers[1].faults.status = 400
            assert (await it.post("/generate", ask(rid="a")))[0] == 400
            assert router.endings == [("a", "failed", 0)]

    asyncio.run(run())


def test_a_request_whose_time_is_over() -> None:
    async def run() -> None:
        async with stand("dual", "dual", token_s=0.2, settings=fast(timeout_s=0.3)) as it:
            router: Fixed = it.route(Fixed())
            assert (await it.post("/generate", ask(rid="a")))[0] == 504
            assert router.endings == [("a", "failed", 0)]

    asyncio.run(run())


@pytest.mark.moderate
@pytest.mark.parametrize("kind", PLACED)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_client_leaves(kind: str, stream: bool) -> None:
    async def run() -> None:
        async with stand("dual", "dual", token_s=0.1) as it:
            router = placing(it.route(Fixed()), kind)
            with pytest.raises(asyncio.TimeoutError):
                async with it.client.post(
                    it.gateway.url + "/generate",
                    json=ask(rid="a", stream=stream, count=50),
                    timeout=aiohttp.ClientTimeout(total=1.0),
                ) as answer:
                    await answer.read()
            assert await settled(lambda: bool(router.endings))
            ((rid, ending, tokens),) = router.endings
            assert (rid, ending) == ("a", "cancelled")
            assert 0 < tokens < 50 if stream else tokens == 0
            assert await settled(it.idle)
            assert len(router.endings) == 1

    asyncio.run(run())


def test_a_client_that_leaves_with_the_whole_answer_has_got_it() -> None:
    """The worker's stream ends a while after its last event, for which no client waits."""

    async def run() -> None:
        async with stand("unified") as it:
            it.workers[0].ends_after_s = 0.3
            router: Fixed = it.route(Fixed())
            async with sockets(it.gateway.url) as connect:
                reader, writer = await connect()
                writer.write(message(stream=True, session_id="s", rid="a"))
                await reader.readuntil(b"0\r\n\r\n")
                writer.close()
            assert await settled(lambda: bool(router.endings))
            assert router.endings == [("a", "finished", 9)]
            assert len(it.gateway.serving.sessions) == 1

    asyncio.run(run())


def test_requests_that_are_cancelled_when_the_gateway_stops() -> None:
    async def run() -> None:
        async with stand("dual", "dual", token_s=0.2, settings=fast(drain_s=0.1)) as it:
            router: Fixed = it.route(Fixed())
            request = asyncio.create_task(it.post("/generate", ask(rid="a", count=100)))
            assert await settled(lambda: bool(router.requests))
            await it.gateway.stop()
            await asyncio.gather(request, return_exceptions=True)
            assert router.endings == [("a", "cancelled", 0)]

    asyncio.run(run())


def test_a_request_that_no_router_saw_ends_for_no_router() -> None:
    async def run() -> None:
        async with stand("dual") as it:
            router: Fixed = it.route(Fixed())
            await it.workers[0].stop()
            assert await settled(lambda: not it.gateway.backends.ready)
            assert (await it.post("/generate", ask()))[0] == 503
            async with it.client.post(it.gateway.url + "/generate", data=b"{", headers=JSON) as answer:
                assert answer.status == 400
            assert not router.requests
            assert not router.endings

    asyncio.run(run())


def test_each_of_many_requests_ends_once_whatever_happens() -> None:
    async def run() -> None:
        async with stand("dual", "dual", "dual", token_s=0.001) as it:
            router: Fixed = it.route(Fixed())
            it.workers[1].faults.status, it.workers[1].faults.times = 500, 10
            it.workers[2].faults.die_after_tokens, it.workers[2].faults.times = 4, 10

            async def one(number: int) -> Any:
                router.first, router.second, router.split = number % 3, (number + 1) % 3, 55 + number % 12
                body = ask([number, *PROMPT], rid=f"r{number}", stream=number % 2 == 0)
                try:
                    async with asyncio.timeout(0.05 if number % 7 == 0 else 8):
                        async with it.client.post(it.gateway.url + "/generate", json=body) as answer:
                            return await answer.read()
                except TimeoutError:
                    return None

            await asyncio.gather(*(one(number) for number in range(60)))
            assert await settled(it.idle)
            asked = {request.id for request in router.requests}
            assert sorted(rid for rid, *_ in router.endings) == sorted(asked)
            finished = {rid: tokens for rid, ending, tokens in router.endings if ending == "finished"}
            assert set(finished.values()) == {len(answer_of(PROMPT, 9))}

    asyncio.run(run())
