"""The load client: it sends what the trace says, when it says so, and believes nothing that did not arrive."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.types import Round, TraceRequest
from pdplugins.workloads.client import MOST_EVENT, Answer, Client, body, load, prompt
from pdplugins.workloads.jsonl import write_mooncake

pytestmark = pytest.mark.moderate


def event(data: dict[str, Any] | str) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def token(text: str) -> bytes:
    workers = {"prefill_worker_id": 1, "decode_worker_id": 2}
    return event({"id": "cmpl-1", "choices": [{"text": text, "index": 0}], "nvext": {"worker_id": workers}})


def ending(count: int) -> bytes:
    """What Dynamo's frontend sends after the last token."""
    last = {"id": "cmpl-1", "choices": [{"text": "", "index": 0, "finish_reason": "length"}], "usage": None}
    usage = {"id": "cmpl-1", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": count}}
    return event(last) + event(usage) + event("[DONE]")


STREAM = token("a") + token('"finish_reason":"x') + token("\n\ndata: [DONE]") + ending(3)


def test_prompts_are_of_tokens_that_a_small_vocabulary_has() -> None:
    """An engine refuses an id beyond its vocabulary, or ends. The model of our own tests has 512 tokens."""
    assert max(prompt(TraceRequest(0.0, 5000, 1), 0, 0)) < 512


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_tokens_are_counted_however_the_stream_is_cut(cuts: list[int]) -> None:
    """TCP cuts where it likes, and a token may look like the protocol."""
    answer, last = Answer(), 0
    for cut in [*sorted(cuts), len(STREAM)]:
        answer.feed(STREAM[last:cut], now_s=float(cut))
        last = cut
    assert len(answer.token_times_s) == answer.completion_tokens == 3
    assert answer.token_times_s == sorted(answer.token_times_s)
    assert answer.workers == {"prefill_worker_id": 1, "decode_worker_id": 2}
    assert answer.done
    assert answer.error is None


def drip(answer: Answer, count: int) -> None:
    for _ in range(count):
        answer.feed(b"x", 0.0)


def test_an_event_without_end_is_searched_once_and_refused() -> None:
    answer, began_s = Answer(), time.perf_counter()
    with pytest.raises(ValueError, match="an event of the stream has more than"):
        drip(answer, MOST_EVENT + 1)
    assert time.perf_counter() - began_s < 20  # a search from the start each time takes minutes


@pytest.mark.parametrize("data", ['{"choices": [5]}', '{"usage": 7}', "[" * 50_000, '{"text":"', '{"choices": null}'])
def test_an_event_that_is_no_completion_is_a_value_error(data: str) -> None:
    with pytest.raises(ValueError, match="none of a completion"):
        Answer().feed(event(data), 0.0)


def test_an_error_in_the_stream_is_an_error() -> None:
    """Status 200 has long been sent when a worker dies."""
    answer = Answer()
    answer.feed(token("a") + event({"error": {"message": "Internal server error"}}), 1.0)
    assert "Internal server error" in str(answer.error)
    assert not answer.done


def test_prompts_have_exactly_the_traces_lengths() -> None:
    """With and without blocks, also when the blocks say less or more than the length."""
    for request in (
        TraceRequest(0, 777, 1),
        TraceRequest(0, 1000, 1, (5, 6)),
        TraceRequest(0, 1300, 1, (5, 6)),
        TraceRequest(0, 3, 1, (5,)),
    ):
        assert len(prompt(request, 0, 0)) == request.isl_tokens


def test_requests_share_a_prefix_where_the_trace_does_and_nowhere_else() -> None:
    """The engine's prefix cache must see what production saw."""
    a, b = TraceRequest(0, 1024, 1, (5, 6)), TraceRequest(0, 1024, 1, (5, 7))
    assert prompt(a, 0, 0)[:512] == prompt(b, 1, 0)[:512]
    assert prompt(a, 0, 0)[512:] != prompt(b, 1, 0)[512:]
    plain = TraceRequest(0, 64, 1)
    assert prompt(plain, 0, 0) != prompt(plain, 1, 0)
    assert prompt(plain, 0, 0) == prompt(plain, 0, 0)
    assert prompt(plain, 0, 0) != prompt(plain, 0, 1)


def test_the_output_length_is_pinned() -> None:
    """No stop token may end a request early."""
    sent = json.loads(body([1, 2, 3, 4], 17, "m"))
    assert (sent["max_tokens"], sent["min_tokens"], sent["ignore_eos"], sent["stream"]) == (17, 17, True, True)
    assert len(sent["prompt"]) == 4


def test_duration_is_trace_time_and_speed_divides_it(tmp_path: Path) -> None:
    """The first 2 s of the trace, in 1 s."""
    path = tmp_path / "trace.jsonl"
    write_mooncake([TraceRequest(at_s, 5, 5) for at_s in (0.0, 1.0, 1.9, 2.1)], path)
    assert [request.arrival_s for request in load(path, 2.0, 2.0)] == [0.0, 0.5, 0.95]


Handler = Callable[[web.Request, int], Awaitable[web.StreamResponse]]


async def replay(handler: Handler, requests: list[TraceRequest]) -> list[dict[str, Any]]:
    """Replay `requests` against a server that answers with `handler(request, number)`; returns the records."""
    count = iter(range(1000))

    async def handle(request: web.Request) -> web.StreamResponse:
        return await handler(request, next(count))

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    out = io.StringIO()
    try:
        await Client(f"http://127.0.0.1:{port}", "m", requests, 0, out).run()
    finally:
        await runner.cleanup()
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    return sorted((row for row in rows if "request" in row), key=lambda row: row["request"])


async def stream(request: web.Request, *parts: bytes, pause_s: float = 0.0) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for part in parts:
        await response.write(part)
        await asyncio.sleep(pause_s)
    return response


def test_requests_leave_on_time_whether_or_not_others_came_back() -> None:
    """An open loop: a slow answer delays nobody else, and latency counts from the time of the trace."""
    arrivals: list[float] = []

    async def slow(request: web.Request, number: int) -> web.StreamResponse:
        arrivals.append(time.monotonic())
        return await stream(request, token("a"), token("b"), ending(2), pause_s=1.0)

    records = asyncio.run(replay(slow, [TraceRequest(at_s, 10, 2) for at_s in (0.0, 0.1, 0.2)]))
    assert all(gap < 0.8 for gap in (b - a for a, b in pairwise(arrivals)))
    for record in records:
        first, second = record["token_times_s"]
        assert record["error"] is None
        assert record["osl_tokens"] == 2
        assert 0 <= first - record["arrival_s"] < 0.8
        assert second - first == pytest.approx(1.0, abs=0.7)


def test_a_round_of_a_session_waits_for_the_answer_and_its_gap_and_repeats_the_history() -> None:
    prompts: list[list[int]] = []

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        prompts.append((await request.json())["prompt"])
        return await stream(request, token("a"), token("b"), ending(2), pause_s=0.05)

    rounds = (Round(0.2, 5, 2), Round(0.0, 5, 2, history_tokens=4))
    first, second, third, other = asyncio.run(
        replay(answer, [TraceRequest(0.0, 10, 2, session="s", rounds=rounds), TraceRequest(0.1, 3, 2)])
    )
    assert [len(ids) for ids in prompts] == [10, 3, 17, 9]
    assert prompts[2][:10] == prompts[0]
    assert prompts[3][:4] == prompts[0][:4]
    assert second["arrival_s"] == pytest.approx(first["finished_s"] + 0.2, abs=0.05)
    assert third["arrival_s"] >= second["finished_s"] - 0.01
    assert [r["error"] for r in (first, second, third, other)] == [None] * 4
    assert other["arrival_s"] == 0.1


def test_rounds_after_one_that_failed_fail_unsent() -> None:
    async def refuse(request: web.Request, number: int) -> web.StreamResponse:
        return web.Response(status=503, text="no worker")

    first, *later = asyncio.run(replay(refuse, [TraceRequest(0.0, 10, 2, rounds=(Round(9.0, 5, 2),) * 2)]))
    assert first["error"] == "HTTP 503: no worker"
    assert [r["error"] for r in later] == ["not sent: an earlier round of its session failed"] * 2


def test_whatever_goes_wrong_with_one_request_is_its_own_error() -> None:
    """A refused request, a broken stream and a short answer are failures; the others go on."""

    async def moody(request: web.Request, number: int) -> web.StreamResponse:
        if number == 0:
            return web.Response(status=503, text="no worker")
        if number == 1:
            return await stream(request, token("a"))
        if number == 2:
            return await stream(request, token("a"), ending(1))
        return await stream(request, token("a"), token("b"), ending(2))

    records = asyncio.run(replay(moody, [TraceRequest(n / 10, 10, 2) for n in range(4)]))
    assert [record["error"] for record in records] == [
        "HTTP 503: no worker",
        "the stream ended after 1 of 2 tokens",
        "1 tokens came instead of 2",
        None,
    ]


def client(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pdplugins.workloads.client",
        "--url",
        "http://127.0.0.1:9",
        "--model",
        "m",
        *arguments,
    ]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)


def test_a_trace_that_cannot_be_read_is_one_line_and_code_2(tmp_path: Path) -> None:
    """The launcher passes it on."""
    result = client("--trace", "no/such.csv", "--out", str(tmp_path / "out"))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


def test_a_client_on_hold_leaves_when_its_launcher_dies(tmp_path: Path) -> None:
    """End of file on standard input is not a go."""
    assert client("--trace", "synthetic", "--out", str(tmp_path / "out"), "--hold").returncode == 1


def test_an_endpoint_that_is_down_fails_every_request_and_not_the_run(tmp_path: Path) -> None:
    """The records say why."""
    trace = tmp_path / "trace.jsonl"
    write_mooncake([TraceRequest(0.0, 5, 5), TraceRequest(0.1, 5, 5)], trace)
    result = client("--trace", str(trace), "--out", str(tmp_path / "out"), "--hold", stdin="go\n")
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [bool(row["error"]) for row in rows if "request" in row] == [True, True]
