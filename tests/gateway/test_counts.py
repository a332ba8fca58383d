"""What the gateway counts of an answer: what workers say, whatever stands in its text."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.gateway.prompts import MOST_CHARS, Lengths
from tests.gateway.fake import KV_TOKENS, settled
from tests.gateway.rig import Fixed, Stand, ask, patient, stand

DONE = b"data: [DONE]\n\n"
REFUSAL = b'data: {"error": {"message": "temperature must be positive", "code": 400}}\n\n'


def says(it: Stand, *events: dict[str, Any], path: str = "/generate") -> None:
    """Let the worker answer the next request with a stream of these events."""
    worker = it.workers[0]
    worker.says[path] = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + DONE
    worker.said_types[path] = "text/event-stream"
    worker.faults.times = 1


def said(text: str, tokens: int, *, ended: bool = False) -> dict[str, Any]:
    """An event of ``/generate``."""
    reason = {"type": "length", "length": tokens} if ended else None
    meta = {"id": "x", "finish_reason": reason, "prompt_tokens": 60, "completion_tokens": tokens}
    return {"text": text, "output_ids": list(range(tokens)), "meta_info": meta}


def test_a_refusal_that_comes_as_a_stream_is_no_answer() -> None:
    """SGLang begins a stream with 200 before it looks at the request."""

    async def run() -> None:
        async with stand("unified", settings=patient()) as it:
            router, worker = it.route(Fixed()), it.workers[0]
            worker.says["/generate"], worker.said_types["/generate"] = REFUSAL + DONE, "text/event-stream"
            worker.faults.times = 1
            async with it.client.post(it.gateway.url + "/generate", json=ask("x" * 9000, stream=True)) as answer:
                assert (answer.status, await answer.read()) == (200, REFUSAL + DONE)
            assert await settled(it.idle)
            assert [(ending, tokens) for _, ending, tokens in router.endings] == [("failed", 0)]
            assert not it.gateway.backends.all[0].view.cached_blocks._hashes
            sample = it.gateway.metrics.registry.get_sample_value
            assert sample("pdplugins_gateway_requests_total", {"outcome": "refused"}) == 1
            assert sample("pdplugins_gateway_requests_total", {"outcome": "ok"}) in (None, 0)

    asyncio.run(run())


@pytest.mark.parametrize("text", ["data: data: data: ", "\n\ndata: x\n\n"])
def test_what_looks_like_an_event_in_a_text_is_no_token(text: str) -> None:
    async def run() -> None:
        async with stand("unified", settings=patient()) as it:
            router = it.route(Fixed())
            plain = {"choices": [{"index": 0, "text": text, "finish_reason": None}]}
            says(it, plain, plain, plain, path="/v1/completions")
            await it.stream("/v1/completions", {"prompt": "x", "max_tokens": 3})
            assert await settled(lambda: router.finished)
            assert router.finished == [3]

    asyncio.run(run())


def test_all_answers_of_a_batch_count() -> None:
    async def run() -> None:
        async with stand("unified", settings=patient()) as it:
            router, worker = it.route(Fixed()), it.workers[0]
            answers = [said("a", 3, ended=True), said("b", 5, ended=True)]
            worker.says["/generate"], worker.faults.times = json.dumps(answers).encode(), 1
            before = it.gateway.serving.lengths.prompt_tokens(call("x" * 4000))
            await it.post("/generate", {"text": ["long " * 500, "b"], "sampling_params": {"max_new_tokens": 5}})
            assert await settled(lambda: router.finished)
            assert router.finished == [8]
            assert it.gateway.serving.lengths.prompt_tokens(call("x" * 4000)) == before

    asyncio.run(run())


def call(prompt: str | None, *, body: bytes = b"", batch: int | None = None) -> Any:
    return SimpleNamespace(prompt=prompt, body=body, batch=batch)


def test_a_body_with_an_image_says_little_of_text() -> None:
    lengths = Lengths()
    lengths.learn(call(None, body=b"x" * 1_000_000), 300)
    assert lengths.prompt_tokens(call("x" * 4000)) >= 4000 / (4 + 0.1 * MOST_CHARS)
    lengths.learn(call(None, body=b"x" * 1_000_000, batch=64), 1)
    assert lengths.prompt_tokens(call("x" * 4000)) >= 4000 / (4 + 0.1 * MOST_CHARS)


def test_bytes_that_are_no_prompt_make_no_request_longer_than_a_kv_cache() -> None:
    """Policies let pass first what no worker can serve, and the length of text is a guess. Token ids are counted."""

    async def run() -> None:
        async with stand("unified", settings=patient()) as it:
            router = it.route(Fixed())
            chat = {"messages": [{"role": "user", "content": "hi"}], "padding": "x" * 10 * KV_TOKENS, "max_tokens": 1}
            await it.post("/v1/chat/completions", chat)
            await it.post("/generate", ask("x" * 10 * KV_TOKENS, 1))
            await it.post("/generate", ask([1] * (2 * KV_TOKENS), 1))
            assert [request.prompt_tokens for request in router.requests] == [KV_TOKENS - 1] * 2 + [2 * KV_TOKENS]

    asyncio.run(run())
