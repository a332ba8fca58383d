"""How answers go out: their heads, their ends, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from time import monotonic, time
from unittest import mock

import pytest
from aiohttp import test_utils, web

from pdplugins.gateway.admission import Admission
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.replies import Reply, finish
from pdplugins.limits import GatewayConfig
from tests.gateway.fake import answer_of, settled
from tests.gateway.rig import PROMPT, Fixed, ask, stand

SLOW_S = 1.0


Answering = Callable[[Reply], Awaitable[None]]
EVENT, END = b"data: 1\n\n", b"data: [DONE]\n\n"


def heard(answering: Answering, *requests: bytes, closed: bool = False) -> list[tuple[list[bytes], bytes]]:
    """Send requests on one connection. Return head and body of what comes after each one, up to one packet."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        admission = Admission(GatewayConfig(), GatewayMetrics())
        if closed:
            admission.close()
        reply = Reply(request, admission)
        await answering(reply)
        assert reply.response is not None
        await finish(reply.response, request, admission)
        return reply.response

    async def run() -> list[tuple[list[bytes], bytes]]:
        async with test_utils.RawTestServer(answer) as server:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            found = []
            for request in requests:
                writer.write(request)
                head, _, body = (await reader.read(2**16)).partition(b"\r\n\r\n")
                found.append((head.split(b"\r\n"), body))
            writer.close()
        return found

    return asyncio.run(run())


def post(version: str = "1.1", *headers: str) -> bytes:
    lines = (f"POST / HTTP/{version}", "Host: x", "Content-Length: 0", *headers, "", "")
    return "\r\n".join(lines).encode()


async def whole(reply: Reply) -> None:
    await reply.whole(b"{}", "application/json")
    await reply.fail(GatewayError(500, "too late"))


async def stream(reply: Reply) -> None:
    await reply.send(EVENT + END, "text/event-stream")
    await reply.fail(GatewayError(500, "too late"))
    await reply.send(END, "text/event-stream")


def test_a_whole_answer_goes_out_at_once_and_nothing_follows_it() -> None:
    for head, body in heard(whole, post(), post()):
        assert head[0] == b"HTTP/1.1 200 OK"
        names = [line.split(b":")[0] for line in head[1:]]
        assert names == [b"Content-Type", b"Content-Length", b"Date", b"Server"]
        assert head[1:3] + head[4:] == [b"Content-Type: application/json", b"Content-Length: 2", b"Server: pdplugins"]
        assert abs(parsedate_to_datetime(head[3][6:].decode()).timestamp() - time()) < 60
        assert body == b"{}"


def test_a_stream_goes_out_with_its_head_and_ends_with_its_last_part() -> None:
    """One packet for a stream that comes at once; and nothing follows its end."""
    for head, body in heard(stream, post(), post()):
        assert b"Content-Type: text/event-stream" in head
        assert b"Transfer-Encoding: chunked" in head
        assert b"Cache-Control: no-cache" in head
        assert body == b"17\r\ndata: 1\n\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def test_a_stream_that_ends_without_its_mark_has_an_end_for_http() -> None:
    async def broken(reply: Reply) -> None:
        await reply.send(EVENT, "text/event-stream")

    ((_, body),) = heard(broken, post())
    assert body == b"9\r\ndata: 1\n\n\r\n0\r\n\r\n"


def test_a_stream_over_http_1_0_has_no_chunks_and_ends_with_its_connection() -> None:
    ((head, body), (_, rest)) = heard(stream, post("1.0", "Connection: keep-alive"), post("1.0"))
    assert b"Connection: close" in head
    assert not any(line.startswith((b"Transfer-Encoding", b"Content-Length")) for line in head)
    assert (body, rest) == (EVENT + END, b"")


@pytest.mark.parametrize("answering", [whole, stream])
@pytest.mark.parametrize(
    ("request_", "closed"), [(post("1.1", "Connection: close"), False), (post("1.0"), False), (post(), True)]
)
def test_the_last_answer_of_a_connection_says_so(answering: Answering, request_: bytes, closed: bool) -> None:
    ((head, _), (_, rest)) = heard(answering, request_, post(), closed=closed)
    assert head.count(b"Connection: close") == 1
    assert rest == b""


@pytest.mark.parametrize("answering", [whole, stream])
def test_a_client_that_has_gone_is_no_fault(answering: Answering) -> None:
    request = test_utils.make_mocked_request("POST", "/generate", transport=mock.Mock(is_closing=lambda: True))
    with pytest.raises(ConnectionResetError):
        asyncio.run(answering(Reply(request, Admission(GatewayConfig(), GatewayMetrics()))))


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_whole_answer_waits_for_the_prefill_server_only_where_that_has_logprobs(logprobs: bool) -> None:
    async def run() -> None:
        async with stand("prefill", "decode") as it:
            it.route(Fixed())
            it.workers[0].token_s = SLOW_S  # the answer of the prefill server comes later than that of the other
            began_s = monotonic()
            status, answer = await it.post("/generate", ask(stream=False, return_logprob=logprobs))
            took_s = monotonic() - began_s
            assert (status, answer["output_ids"]) == (200, answer_of(PROMPT, len(answer["output_ids"])))
            assert took_s > SLOW_S if logprobs else took_s < SLOW_S / 2
            assert await settled(it.idle)
            assert not it.workers[0].aborted

    asyncio.run(run())


def test_an_error_reaches_a_client_that_reads_slowly() -> None:
    """Whoever waited for it was cancelled, and with it the wait that aiohttp shares between all that send."""

    told: list[Reply] = []

    async def answering(reply: Reply) -> None:
        await reply.send(EVENT, "text/event-stream")
        with mock.patch("aiohttp.http_writer.StreamWriter.drain", side_effect=asyncio.CancelledError):
            await reply.fail(GatewayError(504, "too late"))
        told.append(reply)  # else the request would count as one whose client has left

    ((head, body),) = heard(answering, post())
    assert told
    assert head[0] == b"HTTP/1.1 200 OK"
    assert b"too late" in body
