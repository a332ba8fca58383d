"""When a whole answer goes out."""

from __future__ import annotations

import asyncio
from time import monotonic
from unittest import mock

import pytest
from aiohttp import test_utils, web

from pdplugins.gateway.admission import Admission
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.replies import Reply
from pdplugins.limits import GatewayConfig
from tests.gateway.fake import answer_of, settled
from tests.gateway.rig import PROMPT, Fixed, ask, stand

SLOW_S = 1.0


def test_a_whole_answer_goes_out_at_once_and_nothing_follows_it() -> None:
    async def run() -> None:
        writer = mock.Mock(wraps=None)
        writer.write_headers = mock.AsyncMock()
        writer.write_eof = mock.AsyncMock()
        request = test_utils.make_mocked_request("POST", "/generate", writer=writer)
        reply = Reply(request, Admission(GatewayConfig(), GatewayMetrics()))
        await reply.whole(b"{}", "application/json")
        writer.write_eof.assert_awaited_once_with(b"{}")
        answer = reply.response
        await reply.fail(GatewayError(500, "too late"))
        assert reply.response is answer
        writer.write.assert_not_called()
        writer.write_eof.assert_awaited_once()

    asyncio.run(run())


def test_a_stream_goes_out_with_its_head_and_ends_with_its_last_part() -> None:
    """One packet for a stream that comes at once; and nothing follows its end."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        reply = Reply(request, Admission(GatewayConfig(), GatewayMetrics()))
        await reply.send(b"data: 1\n\ndata: [DONE]\n\n", "text/event-stream")
        await reply.fail(GatewayError(500, "too late"))
        await reply.send(b"data: [DONE]\n\n", "text/event-stream")
        assert reply.response is not None
        return reply.response

    async def run() -> None:
        async with test_utils.RawTestServer(answer) as server:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            head, body = (await reader.read(2**16)).split(b"\r\n\r\n", 1)
            writer.close()
        assert b"text/event-stream" in head
        assert body == b"17\r\ndata: 1\n\ndata: [DONE]\n\n\r\n0\r\n\r\n"

    asyncio.run(run())


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
