"""Measuring an endpoint: what a server of known times is said to take."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import pytest
from aiohttp import web

from pdplugins.profiling import endpoint
from pdplugins.profiling.endpoint import EndpointError, Grid, Measured, measure, without_handoff

pytestmark = pytest.mark.moderate

PREFILL_S = (0.02, 1e-5)
"""Fixed, and for each token."""
Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]
STEP_S = (0.01, 0.005)
"""Fixed, and for each stream that decodes."""


class Server:
    """Answers completions like an engine that prefills any number at once and decodes all streams together."""

    def __init__(self) -> None:
        self.streams = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(PREFILL_S[0] + PREFILL_S[1] * len(asked["prompt"]))
        self.streams += 1
        for _ in range(asked["max_tokens"]):
            await response.write(b'data: {"choices":[{"text":"x"}]}\n\n')
            await asyncio.sleep(STEP_S[0] + STEP_S[1] * self.streams)
        self.streams -= 1
        usage = {"choices": [], "usage": {"completion_tokens": asked["max_tokens"]}}
        await response.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())
        return response


def run(handler: Answering, grid: Grid) -> Measured:
    async def inner() -> Measured:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/completions", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            return await measure(f"http://127.0.0.1:{port}", "m", grid, repeats=3, seed=0)
        finally:
            await runner.cleanup()

    return asyncio.run(inner())


def test_a_server_of_known_times_is_measured_as_it_is() -> None:
    found = run(Server().answer, Grid((500, 8000), (1, 4), (200, 1000)))
    prefill_ms = [1e3 * (PREFILL_S[0] + tokens * PREFILL_S[1]) for tokens in (500, 8000)]
    steps_ms = [1e3 * (STEP_S[0] + batch * STEP_S[1]) for batch in (1, 4)]
    wanted = [*prefill_ms, *(ms for ms in steps_ms for _ in range(2))]
    said = [*found.prefill["raw_ms"], *(ms for row in found.decode["raw_ms"] for ms in row)]
    for ms, true_ms in zip(said, wanted, strict=True):
        assert true_ms - 1 < ms < 3 * true_ms + 50  # a busy machine is late, never early


def test_tokens_that_share_an_event_are_counted_each() -> None:
    """SGLang sends what it has when its HTTP server comes round to it: at times all tokens of a short answer."""
    step_s = 0.02

    async def answer(request: web.Request) -> web.StreamResponse:
        tokens = (await request.json())["max_tokens"]
        response = web.StreamResponse()
        await response.prepare(request)
        for sent in range(0, tokens, 2):
            await asyncio.sleep(2 * step_s)
            text = "x" * min(2, tokens - sent)
            await response.write(f'data: {{"choices":[{{"text":"{text}"}}]}}\n\n'.encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    found = run(answer, Grid((1, 10), (1, 2), (100, 200)))
    for ms in (ms for row in found.decode["raw_ms"] for ms in row):
        assert 1e3 * step_s - 1 < ms < 1.5 * 1e3 * step_s


def test_a_slow_spell_spoils_one_measurement_of_each_length() -> None:
    """The first two prompts take long. They are not of the same length: the medians are those of the others."""
    prompts = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal prompts
        tokens = (await request.json())["max_tokens"]
        prompts += tokens == 2
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(0.4 if tokens == 2 and prompts <= 2 else 0.01)
        for _ in range(tokens):
            await response.write(b'data: {"choices":[{"text":"x"}]}\n\n')
            await asyncio.sleep(0.002)
        await response.write(b"data: [DONE]\n\n")
        return response

    found = run(answer, Grid((1, 10), (1,), (100, 200)))
    assert max(found.prefill["raw_ms"]) < 300


def test_a_batch_that_met_other_work_does_not_count() -> None:
    """One of three batches of a size and context is five times as slow: the median is that of the others.

    The four of a turn have six streams. Those of the second turn are slow.
    """
    decodes = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal decodes
        tokens = (await request.json())["max_tokens"]
        decodes += 30 < tokens < 60
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(tokens):
            await asyncio.sleep(0.02 if 6 < decodes <= 12 else 0.004)
            await response.write(b'data: {"choices":[{"text":"x"}]}\n\n')
        await response.write(b"data: [DONE]\n\n")
        return response

    found = run(answer, Grid((1, 10), (1, 2), (100, 200)))
    assert all(3.9 < ms < 15 for ms in found.decode["raw_ms"][0])


def test_a_stream_without_tokens_is_one_line() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: [DONE]\n\n")
        return response

    with pytest.raises(EndpointError, match="the stream ended without tokens"):
        run(answer, Grid((10, 20), (1, 2), (10, 20)))


def test_a_server_that_refuses_is_one_line() -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "no such model"}, status=404)

    with pytest.raises(EndpointError, match=r"HTTP 404 for 10 tokens: .*no such model"):
        run(refuse, Grid((10, 20), (1, 2), (10, 20)))


def test_a_server_that_refuses_a_batch_is_one_line() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        tokens = (await request.json())["max_tokens"]
        if tokens not in {2, 64}:
            return web.json_response({"error": "too many requests"}, status=429)
        return await streamed(request, [b'data: {"choices":[{"text":"x"}]}\n\n'] * tokens)

    with pytest.raises(EndpointError, match=r"HTTP 429 for .*too many requests"):
        run(answer, Grid((10, 20), (1, 4), (10, 20)))


def test_a_stream_that_comes_in_one_piece_is_one_line() -> None:
    """Behind a proxy that buffers, no time between tokens can be measured."""

    async def answer(request: web.Request) -> web.StreamResponse:
        tokens = (await request.json())["max_tokens"]
        return await streamed(request, [b'data: {"choices":[{"text":"x"}]}\n\n' * tokens])

    with pytest.raises(EndpointError, match="all tokens of a stream came at once"):
        run(answer, Grid((10, 20), (1, 4), (10, 20)))


def test_a_count_of_tokens_that_is_no_number_is_one_line() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        event = b'data: {"choices":[{"text":"x"}]}\n\n'
        return await streamed(request, [event, b'data: {"choices":[],"usage":{"completion_tokens":"64"}}\n\n'])

    with pytest.raises(EndpointError, match="is none of a completion"):
        run(answer, Grid((10, 20), (1, 2), (10, 20)))


async def streamed(request: web.Request, pieces: Iterable[bytes]) -> web.StreamResponse:
    """Answer with a stream of these pieces, some milliseconds apart, and its end."""
    response = web.StreamResponse()
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0.002)
    await response.write(b"data: [DONE]\n\n")
    return response


def endless(*pieces: bytes, pause_s: float = 0.0, headers: dict[str, str] | None = None) -> Answering:
    """Return what answers with these bytes, the last of them without end, as long as the client listens."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        with suppress(ConnectionError):
            for piece in (*pieces, *itertools.repeat(pieces[-1], 100_000)):
                await response.write(piece)
                await asyncio.sleep(pause_s)
        return response

    return answer


@pytest.mark.parametrize(
    ("pieces", "headers", "said"),
    [
        ([b"x" * 2**16], {}, "an event of the stream has more than 1048576 bytes"),
        ([b": nothing\n\n" * 2**12], {}, "the stream is too long for 64 tokens"),
        ([b'data: {"choices": 5}\n\n'], {}, "an event of the stream is none of a completion"),
        ([b"data: {not json\x1b[31m\n\n"], {}, "an event of the stream is none of a completion"),
        ([b"\x1f\x8b"], {"Content-Encoding": "gzip"}, "it sends gzip, not plain text; turn compression off"),
    ],
)
def test_what_a_server_may_send_is_bounded(pieces: list[bytes], headers: dict[str, str], said: str) -> None:
    with pytest.raises(EndpointError, match=said) as raised:
        run(endless(*pieces, headers=headers), Grid((10, 20), (1, 2), (10, 20)))
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


def test_a_stream_that_drips_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "STREAM_S", 0.3)
    with pytest.raises(EndpointError, match="no whole answer in time"):
        run(endless(b": \n\n", pause_s=0.01), Grid((10, 20), (1, 2), (10, 20)))


def test_prompts_follow_no_redirect() -> None:
    async def elsewhere(_: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/elsewhere")

    with pytest.raises(EndpointError, match="it redirects to /elsewhere; give that URL, if you trust it"):
        run(elsewhere, Grid((10, 20), (1, 2), (10, 20)))


def test_an_error_in_the_stream_is_one_short_line() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'data: {"error": "\\u001b[31m' + b"no" * 9999 + b'"}\n\n')
        return response

    with pytest.raises(EndpointError) as raised:
        run(answer, Grid((10, 20), (1, 2), (10, 20)))
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


def test_no_server_is_one_line() -> None:
    with pytest.raises(EndpointError, match="is the endpoint up"):
        asyncio.run(measure("http://127.0.0.1:9", "m", Grid((10, 20), (1, 2), (10, 20)), 1, 0))


def test_what_a_decode_worker_adds_to_the_ttft_is_taken_away() -> None:
    decode = {"batch": [1, 2], "context_tokens": [100, 200], "raw_ms": [[5, 6], [7, 8]]}
    found = Measured({"tokens": [100, 200], "raw_ms": [50, 90]}, decode, ())
    left = without_handoff(found, lambda tokens: 0.01 + tokens * 1e-4)
    assert left.prefill["raw_ms"] == pytest.approx([50 - 5 - 20, 90 - 6 - 30])
    assert left.decode == decode
    with pytest.raises(EndpointError, match="disaggregated"):
        without_handoff(found, lambda _: 1.0)


@pytest.mark.parametrize(("reason", "whole"), [("stop", False), ("length", True)])
def test_without_usage_an_answer_is_whole_where_its_length_ended_it(reason: str, whole: bool) -> None:
    """Two tokens in an event and half of the answer look alike."""

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["max_tokens"]
        response = web.StreamResponse()
        await response.prepare(request)
        for left in reversed(range(max(asked // 2, 1))):
            await asyncio.sleep(0.002)
            choice = {"text": "x", "finish_reason": None if left else reason}
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def measured() -> None:
        run(answer, Grid((1, 10), (1, 2), (100, 200)))

    if whole:
        measured()
    else:
        with pytest.raises(EndpointError, match=r"tokens where \d+ were asked for"):
            measured()


@pytest.mark.parametrize(
    ("usage", "done", "said"),
    [
        (10, True, "an answer of 10 tokens where"),
        (None, False, "a stream ended before it was whole"),
    ],
)
def test_answers_that_are_cut_are_not_measured(usage: int | None, done: bool, said: str) -> None:
    """Their few tokens would be spread over those that were asked for."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(10):
            await response.write(b'data: {"choices":[{"text":"x"}]}\n\n')
        if usage is not None:
            told = {"choices": [], "usage": {"completion_tokens": usage}}
            await response.write(f"data: {json.dumps(told)}\n\n".encode())
        if done:
            await response.write(b"data: [DONE]\n\n")
        return response

    with pytest.raises(EndpointError, match=said):
        run(answer, Grid((1, 10), (1, 2), (100, 200)))
