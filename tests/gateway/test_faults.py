"""What goes wrong: routers that raise, workers that refuse, die or hang, clients that leave."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import aiohttp
import pytest

from pdplugins.gateway.engines.sglang.calls import parse
from pdplugins.gateway.replies import Reply
from tests.gateway.fake import answer_of, settled, text_of
from tests.gateway.rig import JSON, PROMPT, Fixed, Stand, ask, config, fast, stand

pytestmark = pytest.mark.moderate


class Broken:
    """Everything that a router should not do."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def on_arrival(self, *_: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    on_prefill_done = on_arrival

    def on_ended(self, *_: Any) -> None:
        raise RuntimeError("cannot learn")


@pytest.mark.parametrize("answer", [ValueError("no idea"), None, "first", Fixed()])
def test_a_router_that_fails_is_replaced_by_the_least_loaded_workers(answer: Any) -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Broken(answer))
            for _ in range(3):
                assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)
            assert sum(it.faults[name] for name in it.faults if name.startswith("router_")) == 6

    asyncio.run(run())


async def _answers(it: Stand, stream: bool, **more: Any) -> list[int]:
    if stream:
        return (await it.stream("/generate", ask(**more)))[-1]["output_ids"]
    status, answer = await it.post("/generate", ask(**more))
    assert status == 200, answer
    return answer["output_ids"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize("fault", ["status", "event", "dead", "hang"])
def test_a_worker_that_fails_before_the_first_token_is_replaced(fault: str, guilty: int, stream: bool) -> None:
    async def run() -> None:
        async with stand("dual", "dual", "dual", settings=fast(first_token_s=0.3), token_s=0.02) as it:
            it.route(Fixed())
            faults = it.workers[guilty].faults
            if fault == "status":
                faults.status = 500
            elif fault == "event":
                faults.error_event = True
                faults.status = None if stream else 502
            elif fault == "dead":
                await it.workers[guilty].stop()
            else:
                faults.hang = True
            assert await _answers(it, stream) == answer_of(PROMPT, 9)
            assert it.faults["worker_failed"] >= 1
            faults.hang = False
            assert await settled(it.idle)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("guilty", "fault"), [(0, "silent"), (0, "says so"), (1, "says so"), (0, "resets"), (1, "resets"), (1, "endless")]
)
def test_when_a_pair_fails_the_one_that_still_answers_goes_on_alone(guilty: int, fault: str) -> None:
    """The other one when one says nothing or nonsense; the one that says an error, which is mostly that of its peer."""

    async def run() -> None:
        first_token_s = 1 if fault == "silent" else 60
        settings = fast(first_token_s=first_token_s, silence_s=60, rest_s=60, max_answer_mib=1)
        async with stand("dual", "dual", settings=settings) as it:
            it.route(Fixed())
            faults = it.workers[guilty].faults
            if fault == "silent":
                faults.hang = True
                it.workers[1 - guilty].faults.times = 0
            elif fault == "resets":
                faults.reset, faults.times = True, 1
            elif fault == "endless":
                it.workers[guilty].endless = b"x" * 2**16
            else:
                faults.status, faults.times = 500, 1
            assert await _answers(it, True) == answer_of(PROMPT, 9)
            assert it.faults["worker_failed"] == 1
            alone = it.workers[guilty if fault == "says so" else 1 - guilty]
            assert alone.served["local"] == 1
            assert [view.id for view in it.gateway.backends.now_ready()] == [alone.id]  # the suspect rests, no other
            faults.hang = False
            assert await settled(it.idle)

    asyncio.run(run())


def test_an_engine_that_stands_still_behind_a_server_that_answers_is_lost() -> None:
    """A whole answer goes elsewhere; nothing new goes there until it moves again."""

    async def run() -> None:
        async with stand("dual", "dual", token_s=0.5, settings=fast(silence_s=2, timeout_s=60)) as it:
            router = it.route(Fixed())
            router.first = router.second = 1
            stamps, it.workers[1].stamps = it.workers[1].stamps, itertools.repeat(7.0)
            assert await _answers(it, False, count=9) == answer_of(PROMPT, 9)
            assert it.workers[0].served["local"] == 1
            assert not it.gateway.backends.by_id[it.workers[1].id].alive
            it.workers[1].stamps = stamps
            assert await settled(lambda: len(it.gateway.backends.ready) == 2)
            assert await settled(it.idle)

    asyncio.run(run())


def test_a_prefill_has_the_deadline_of_a_first_token_also_when_nothing_streams() -> None:
    async def run() -> None:
        settings = fast(first_token_s=0.3, silence_s=60, poll_timeout_s=60)  # nothing else ends the wait
        async with stand("dual", "dual", settings=settings) as it:
            router = it.route(Fixed())
            router.second, router.later = None, 1
            it.workers[0].faults.hang, it.workers[0].faults.times = True, 1
            assert await _answers(it, False) == answer_of(PROMPT, 9)
            it.workers[0].faults.hang = False
            assert await settled(it.idle)

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["local", "pair"])
def test_a_worker_that_is_lost_is_not_waited_for(kind: str) -> None:
    """A whole answer has no deadline of its own: nothing shows whether it is under way, but for the load report."""

    async def run() -> None:
        async with stand(
            "dual", "dual", settings=fast(timeout_s=60, first_token_s=60, silence_s=60, poll_timeout_s=1)
        ) as it:
            router = it.route(Fixed())
            router.first, router.second, router.split = PLACED[kind]
            it.workers[1].faults.hang = True
            assert await _answers(it, False) == answer_of(PROMPT, 9)
            assert it.faults["worker_failed"] == 1
            it.workers[1].faults.hang = False
            assert await settled(it.idle)

    asyncio.run(run())


@pytest.mark.parametrize("guilty", [0, 1])
def test_an_error_event_of_openais_endpoints_is_no_answer(guilty: int) -> None:
    async def run() -> None:
        async with stand("dual", "dual", "dual", token_s=0.02) as it:  # the error comes before the first token
            it.route(Fixed())
            it.workers[guilty].faults.error_event, it.workers[guilty].faults.times = True, 1
            events = await it.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 9, "temperature": 0})
            assert "".join(event["choices"][0]["text"] for event in events) == text_of(answer_of(PROMPT, 9))
            assert it.faults["worker_failed"] == 1

    asyncio.run(run())


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("split", [None, 63, 20])
def test_a_worker_that_dies_in_the_middle_of_a_stream_is_continued_elsewhere(
    split: int | None, incremental: bool
) -> None:
    """The client gets the same tokens, each once; and again when the second worker dies too. What was drawn stays."""

    async def run() -> None:
        async with stand("dual", "dual", "dual", incremental=incremental) as it:
            it.route(Fixed()).split = split
            for worker in it.workers[1:]:
                worker.faults.die_after_tokens, worker.faults.times = 2, 1
            body = ask()
            if split == 63:
                body["sampling_params"] |= {"temperature": 0.7, "sampling_seed": 3}
            events = await it.stream("/generate", body)
            ids = [event["output_ids"] for event in events]
            assert ([token for part in ids for token in part] if incremental else ids[-1]) == answer_of(PROMPT, 9)
            if not incremental:
                lengths = [len(part) for part in ids]
                assert lengths == sorted(lengths)
            assert events[-1]["meta_info"]["completion_tokens"] == 9
            assert it.faults["resumed"] >= 1
            assert await settled(it.idle)

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_a_stream_that_nobody_can_continue_ends_with_a_clear_error(path: str) -> None:
    """With penalties, which count the tokens so far; or without token ids."""

    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed())
            it.workers[1].faults.die_after_tokens = 2
            body = ask() if path == "/generate" else {"prompt": PROMPT, "max_tokens": 9, "temperature": 0}
            if path == "/generate":
                body["sampling_params"]["frequency_penalty"] = 0.7
            events = await it.stream(path, body)
            assert events[-1]["error"]["code"] == 502
            assert "in the middle of the answer" in events[-1]["error"]["message"]
            assert await settled(it.idle)

    asyncio.run(run())


def test_a_second_part_that_has_not_begun_starts_anew_even_when_it_is_sampled() -> None:
    async def run() -> None:
        async with stand("dual", "dual", "dual") as it:
            it.route(Fixed()).split = len(PROMPT) + 4
            it.workers[1].faults.status, it.workers[1].faults.times = 500, 1
            body = ask()
            body["sampling_params"]["temperature"] = 0.7
            events = await it.stream("/generate", body)
            assert events[-1]["output_ids"] == answer_of(PROMPT, 9)
            assert it.faults["worker_failed"] == 1
            assert not it.faults["resumed"]

    asyncio.run(run())


def test_a_clients_mistake_is_passed_on_and_not_tried_again() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed())
            it.workers[0].faults.status = it.workers[1].faults.status = 400
            status, answer = await it.post("/generate", ask())
            assert (status, answer["error"]["message"]) == (400, "asked for")
            assert len(it.workers[0].seen) == 1
            for body, why in ((b"{", "not JSON"), (b"[1]", "not a JSON object")):
                async with it.client.post(it.gateway.url + "/generate", data=body, headers=JSON) as response:
                    assert response.status == 400
                    assert why in await response.text()

    asyncio.run(run())


def test_no_worker_left_is_an_error_within_the_deadline() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            for worker in it.workers:
                worker.faults.status = 500
            status, answer = await it.post("/generate", ask())
            assert status == 502
            assert "gave up after 4 attempts" in answer["error"]["message"]
            for worker in it.workers:
                await worker.stop()
            assert (await it.post("/generate", ask()))[0] in (502, 503)
            assert await settled(lambda: not it.gateway.backends.ready)
            async with it.client.get(it.gateway.url + "/health") as response:
                assert response.status == 503
            assert (await it.post("/generate", ask()))[0] == 503

    asyncio.run(run())


def test_a_worker_comes_back() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            await it.workers[1].stop()
            assert await settled(lambda: len(it.gateway.backends.ready) == 1)
            assert await _answers(it, True) == answer_of(PROMPT, 9)
            await it.workers[1].start()
            assert await settled(lambda: len(it.gateway.backends.ready) == 2)
            assert await _answers(it, True) == answer_of(PROMPT, 9)

    asyncio.run(run())


def test_a_worker_that_does_not_say_its_load_is_not_asked_for_more() -> None:
    """A stopped process takes connections and says nothing."""

    async def run() -> None:
        async with stand("dual", "dual", settings=fast(poll_timeout_s=0.1)) as it:
            it.workers[0].faults.hang = True
            assert await settled(lambda: len(it.gateway.backends.ready) == 1)

    asyncio.run(run())


def test_the_deadline_ends_everything() -> None:
    async def run() -> None:
        async with stand("dual", "dual", settings=fast(timeout_s=0.3), token_s=0.2) as it:
            it.route(Fixed())
            assert (await it.post("/generate", ask()))[0] == 504
            events = await it.stream("/generate", ask())
            assert events[-1]["error"]["code"] == 504
            assert await settled(it.idle)

    asyncio.run(run())


PLACED = {"pair": (0, 1, None), "local": (1, 1, None), "push": (0, 1, 20), "head": (0, 1, 63), "open": (0, None, None)}


@pytest.mark.parametrize("kind", PLACED)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_every_leg(kind: str, stream: bool) -> None:
    async def run() -> None:
        async with stand("dual", "dual", token_s=0.1) as it:
            router = it.route(Fixed())
            router.later = 1
            router.first, router.second, router.split = PLACED[kind]
            for wait_s in (0.02, 0.15, 0.3):
                timeout = aiohttp.ClientTimeout(total=wait_s)
                with pytest.raises(asyncio.TimeoutError):
                    async with it.client.post(
                        it.gateway.url + "/generate", json=ask(stream=stream), timeout=timeout
                    ) as answer:
                        await answer.read()
                assert await settled(it.idle)
            assert any(worker.aborted for worker in it.workers)

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", PLACED)
def test_the_abort_of_one_leg_is_that_of_no_other(kind: str, stream: bool) -> None:
    """SGLang aborts all whose names begin with the one it is told: clients may well be called r1 and r10."""

    async def run() -> None:
        async with stand("dual", "dual", "dual") as it:
            router = it.route(Fixed())
            router.later = 1
            router.first, router.second, router.split = PLACED[kind]
            it.workers[1].faults.status, it.workers[1].faults.times = 500, 1
            for rid in ("r1", "r10"):
                body = ask(rid=rid, stream=stream)
                async with it.client.post(it.gateway.url + "/generate", json=body) as answer:
                    data = (await answer.read()).split(b"\n\n")[0].removeprefix(b"data: ")
                assert json.loads(data)["meta_info"]["id"] == rid
            names = [{body["rid"] for body in worker.seen} for worker in it.workers]
            every = set.union(*names)
            assert len(every) > 2
            assert not [(one, other) for one in every for other in every - {one} if other.startswith(one)]

    asyncio.run(run())


def test_hundred_requests_at_once_with_faults_leave_nothing_behind() -> None:
    async def run() -> None:
        async with stand("dual", "dual", "dual", token_s=0.001) as it:
            router = it.route(Fixed())
            it.workers[1].faults.status, it.workers[1].faults.times = 500, 10
            it.workers[2].faults.die_after_tokens, it.workers[2].faults.times = 4, 10

            async def one(number: int) -> bool:
                prompt = [number, *PROMPT]
                router.first, router.second, router.split = number % 3, (number + 1) % 3, 55 + number % 12
                stream = number % 2 == 0
                try:
                    async with asyncio.timeout(0.05 if number % 7 == 0 else 100):
                        return await _answers(it, stream, prompt=prompt) == answer_of(prompt, 9)
                except TimeoutError:
                    return number % 7 == 0

            assert all(await asyncio.gather(*(one(number) for number in range(100))))
            assert await settled(it.idle)

    asyncio.run(run())


def test_a_stopped_gateway_ends_its_requests() -> None:
    async def run() -> None:
        async with stand("dual", "dual", token_s=0.2, settings=fast(drain_s=0.1)) as it:
            request = asyncio.create_task(it.post("/generate", ask(count=100)))
            assert await settled(lambda: any(worker.running for worker in it.workers))
            await it.gateway.stop()
            await asyncio.gather(request, return_exceptions=True)
            assert await settled(it.idle)

    asyncio.run(run())


def test_books_are_right_also_when_a_request_is_cancelled_twice() -> None:
    """As aiohttp does when it shuts down: the second time, while the legs are being ended."""

    async def run() -> None:
        async with stand("dual", "dual", token_s=0.2) as it:
            it.route(Fixed())
            call = parse("/generate", json.dumps(ask(count=100)).encode(), "twice")
            for turns in range(6):
                serving = asyncio.create_task(it.gateway.serving.serve(call, Reply(None, it.gateway.admission)))
                assert await settled(lambda: any(worker.running for worker in it.workers))
                serving.cancel()
                for _ in range(turns):
                    await asyncio.sleep(0)
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                assert await settled(it.idle)

    asyncio.run(run())


def test_config_without_router_takes_the_least_loaded() -> None:
    async def run() -> None:
        async with stand("dual", "dual", cfg=config().model_copy(update={"router": None})) as it:
            assert await _answers(it, False) == answer_of(PROMPT, 9)

    asyncio.run(run())
