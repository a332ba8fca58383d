"""A worker may begin a stream with 200 and refuse the request in it. The client hears that, and all legs end."""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import Any

import pytest

from tests.gateway.fake import FakeWorker, answer_of, settled, text_of
from tests.gateway.rig import JSON, PROMPT, Fixed, Stand, ask, fast, stand

ERROR = b'{"error":{"message":"too long","type":"invalid_request_error","code":400}}'
LONG_S = 10.0
"""How long the other leg may wait for its first token: far longer than the test."""
BODIES: dict[str, dict[str, Any]] = {
    "/generate": ask(stream=True),
    "/v1/completions": {"model": "fake", "prompt": PROMPT, "max_tokens": 4, "stream": True},
    "/v1/chat/completions": {"model": "fake", "messages": [{"role": "user", "content": "a"}], "stream": True},
}


ABORT = b'{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"too long","status_code":400}}}'
"""How a stream of ``/generate`` refuses."""


def refuses(worker: FakeWorker, path: str, said: bytes = ERROR) -> None:
    worker.says[path] = b"data: " + said + b"\n\ndata: [DONE]\n\n"
    worker.said_types[path] = "text/event-stream"


async def asked(it: Stand, path: str) -> tuple[int, bytes]:
    async with it.client.post(it.gateway.url + path, json=BODIES[path], headers=JSON) as answer:
        return answer.status, await answer.read()


@pytest.mark.parametrize(("path", "said"), [*((path, ERROR) for path in BODIES), ("/generate", ABORT)])
def test_what_the_prefill_server_refuses_is_refused_at_once(path: str, said: bytes) -> None:
    async def run() -> None:
        began_s = monotonic()
        async with stand("prefill", "decode", settings=fast(first_token_s=LONG_S, silence_s=LONG_S)) as it:
            refuses(it.workers[0], path, said)
            status, told = await asked(it, path)
            assert (status, list(json.loads(told))) == (400, ["error"])
            assert json.loads(told)["error"].items() >= {"message": "too long", "code": 400}.items()
            assert len(it.workers[0].seen) == 1
            assert not it.faults
            assert all(backend.resting_until_s == 0 for backend in it.gateway.backends.all)
            assert await settled(it.idle)
        assert monotonic() - began_s < LONG_S

    asyncio.run(run())


@pytest.mark.parametrize("both", [False, True])
def test_where_a_push_is_refused_the_second_worker_is_asked_as_the_client_asked(both: bool) -> None:
    """A push is a request to /generate. Its refusal would be in that form, and may be of the push alone."""
    said = b'{"object":"error","message":"too long","type":"BadRequestError","code":400}'

    async def run() -> None:
        async with stand("dual", "dual") as it:
            it.route(Fixed()).split = 20
            refusing = it.workers[0].faults
            refusing.status, refusing.body, refusing.times = 400, b'{"error":{"message":"no such prefix"}}', 1
            if both:
                it.workers[1].says["/v1/completions"], it.workers[1].said_status["/v1/completions"] = said, 400
                it.workers[1].faults.times = 1
            status, told = await it.post("/v1/completions", {"model": "fake", "prompt": PROMPT, "max_tokens": 4})
            if both:
                assert (status, told) == (400, json.loads(said))
            else:
                assert (status, told["choices"][0]["text"]) == (200, text_of(answer_of(PROMPT, 4)))
            assert await settled(it.idle)

    asyncio.run(run())


def test_what_the_decode_server_refuses_ends_the_leg_that_prefills() -> None:
    async def run() -> None:
        async with stand("prefill", "decode", settings=fast(first_token_s=LONG_S, silence_s=LONG_S)) as it:
            router: Fixed = it.route(Fixed())
            refuses(it.workers[1], "/generate")
            status, said = await asked(it, "/generate")
            assert (status, ERROR in said) == (200, True)
            assert await settled(it.idle, LONG_S / 2)
            assert len(it.workers[0].aborted) == 1
            assert [ending for _, ending, _ in router.endings] == ["failed"]

    asyncio.run(run())
