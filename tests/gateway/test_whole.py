"""Requests that two servers cannot serve together go to one, or are refused at once; and what is not served at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.fake import settled
from tests.gateway.rig import PROMPT, Fixed, ask, config, stand

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
WHOLE = [
    ("/v1/chat/completions", CHAT | {"n": 2}, "n"),
    ("/v1/chat/completions", CHAT | {"n": "3"}, "n"),
    ("/v1/chat/completions", CHAT | {"return_hidden_states": True}, "return_hidden_states"),
    ("/v1/completions", {"prompt": PROMPT, "n": 2, "max_tokens": 5}, "n"),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 5}, "n"),
    ("/v1/completions", {"prompt": PROMPT, "echo": True, "logprobs": 1, "max_tokens": 5}, "echo"),
    ("/generate", ask() | {"sampling_params": {"n": 2, "max_new_tokens": 5}}, "n"),
    ("/generate", ask() | {"sampling_params": {"beam_width": 2, "max_new_tokens": 5}}, "beam_width"),
    ("/generate", ask(return_logprob=True, token_ids_logprob=[40]), "token_ids_logprob"),
    (
        "/generate",
        {"text": ["a", "b"], "sampling_params": {}, "return_logprob": True, "logprob_start_len": 0},
        "logprob_start_len",
    ),
]
SPLIT = [
    ("/v1/chat/completions", CHAT | {"n": 1}),
    ("/v1/chat/completions", CHAT | {"n": None, "logprobs": True}),
    ("/v1/completions", {"prompt": PROMPT, "echo": True, "max_tokens": 5}),
    ("/v1/completions", {"prompt": ["a", "b"], "logprobs": 1, "max_tokens": 5}),
    ("/generate", ask(return_logprob=True, logprob_start_len=0)),
]
PLACEMENTS = {"pair": (0, 1, None), "push": (0, 1, 23), "head": (0, 1, 62), "warm": (0, None, None)}


@pytest.mark.parametrize("kind", PLACEMENTS)
def test_what_two_servers_cannot_do_together_one_does(kind: str) -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            router = it.route(Fixed())
            router.first, router.second, router.split = PLACEMENTS[kind]
            for path, body, _ in WHOLE:
                for worker in it.workers:
                    worker.served.clear()
                status, answer = await it.post(path, body)
                assert status == 200, answer
                served = [dict(worker.served) for worker in it.workers]
                assert served in ([{"local": 1}, {}], [{}, {"local": 1}]), (path, body)
            assert it.faults["refused_whole"]
            assert await settled(it.idle)

    asyncio.run(run())


@pytest.mark.parametrize(("path", "body"), SPLIT)
def test_what_two_servers_can_do_together_they_do(path: str, body: dict[str, Any]) -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed())
            status, answer = await it.post(path, body)
            assert status == 200, answer
            assert [dict(worker.served) for worker in it.workers] == [{"prefill": 1}, {"decode": 1}]

    asyncio.run(run())


@pytest.mark.parametrize("flow", [{}, {"flow": "fcfs"}])
def test_where_no_server_serves_alone_it_is_refused_at_once(flow: dict[str, Any]) -> None:
    async def run() -> None:
        async with stand("prefill", "decode", cfg=config(dual=False, **flow)) as it:
            for path, body, field in WHOLE:
                status, answer = await it.post(path, body)
                assert (status, answer["error"]["param"]) == (400, field)
                assert answer["error"]["type"] == "invalid_request_error"
                assert field in answer["error"]["message"]
            for path, body in SPLIT:
                assert (await it.post(path, body))[0] == 200
            assert [len(worker.seen) for worker in it.workers] == [len(SPLIT)] * 2

    asyncio.run(run())


def test_a_server_that_serves_alone_takes_it_from_stock_ones() -> None:
    async def run() -> None:
        async with stand("prefill", "decode", "unified") as it:
            for path, body, _ in WHOLE:
                assert (await it.post(path, body))[0] == 200
            assert it.workers[2].served == {"local": len(WHOLE)}

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_that_is_refused_is_refused_as_a_completion(stream: bool) -> None:
    """Its head is asked of /generate, whose refusals look different; in a stream they are its first event."""

    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed()).split = len(PROMPT) + 2
            for worker in it.workers:
                worker.says["/generate"] = b'{"error": {"message": "of generate"}}'
                worker.says["/v1/completions"] = b'{"object": "error", "message": "of completions"}'
                if stream:
                    worker.says["/generate"] = (
                        b'data: {"error":{"message":"of generate","code":400}}\n\ndata: [DONE]\n\n'
                    )
                    worker.said_types["/generate"] = "text/event-stream"
                worker.said_status = {"/generate": 200 if stream else 400, "/v1/completions": 400}
            status, said = await it.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 9, "stream": stream})
            assert (status, said["message"]) == (400, "of completions")
            assert it.faults["gateway_error"] == it.faults["worker_failed"] == 0
            for worker in it.workers:
                worker.rooms.mismatches.clear()

    asyncio.run(run())


def test_a_refusal_to_prefill_is_not_the_answer_to_the_request() -> None:
    """SGLang refuses a stream in its first event, and what prefills for it is no stream."""

    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed()).second = None
            it.workers[0].faults.status, it.workers[0].faults.times = 400, 1
            assert len(await it.stream("/v1/chat/completions", CHAT)) == CHAT["max_tokens"]
            assert it.workers[0].served == {"local": 1}
            it.workers[0].faults.times = 2
            status, said = await it.post("/v1/chat/completions", CHAT)
            assert (status, said["error"]["message"]) == (400, "asked for")
            assert it.faults["worker_failed"] == 0
            assert await settled(it.idle)

    asyncio.run(run())


def test_a_model_is_found_by_its_name() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            for name, status in (("fake", 200), ("a/b%2Fc", 404), ("..%2f..%2fserver_info", 404), ("fake/", 404)):
                async with it.client.get(f"{it.gateway.url}/v1/models/{name}") as answer:
                    said = await answer.json()
                    assert answer.status == status, name
                    if status == 404:
                        assert said["error"]["code"] == "model_not_found"
                        assert (said["error"]["type"], said["error"]["param"]) == ("invalid_request_error", "model")
                    else:
                        assert said == {"id": "fake"}
            for odd in (b"{", b"[]", b'{"data": 3}', b'{"data": [3, null]}', b'{"data": {"id": "fake"}}'):
                it.workers[0].says["/v1/models"] = it.workers[1].says["/v1/models"] = odd
                async with it.client.get(f"{it.gateway.url}/v1/models/fake") as answer:
                    assert answer.status == (503 if odd == b"{" else 404)
            assert it.faults["gateway_error"] == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/embeddings", 404),
        ("POST", "/v1/responses", 404),
        ("GET", "/v1/files", 404),
        ("GET", "/", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models/fake", 405),
        ("DELETE", "/v1/models/fake", 405),
        ("PUT", "/health", 405),
        ("OPTIONS", "/generate", 405),
    ],
)
def test_what_is_not_served_is_refused_with_an_error_object(method: str, path: str, status: int) -> None:
    async def run() -> None:
        async with stand("dual") as it:
            headers = {"Content-Type": "application/json"}
            async with it.client.request(method, it.gateway.url + path, headers=headers) as answer:
                assert (answer.status, answer.content_type) == (status, "application/json")
                error = (await answer.json())["error"]
            assert error == {
                "message": f"{method} {path} is not served here",
                "type": "invalid_request_error",
                "param": None,
                "code": status,
            }

    asyncio.run(run())
