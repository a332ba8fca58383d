"""What aiohttp's server says by itself has the form of all other answers."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.gateway.fake import settled
from tests.gateway.rig import ask, stand
from tests.gateway.sockets import ends, message, sockets

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("listener", ["url", "admin_url"])
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"\x00\xff garbage\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (GET + b"X: " + b"a" * 9_000 + b"\r\n\r\n", 400),
        (GET + b"Content-Length: many\r\n\r\n", 400),
        (GET + b"Expect: x\r\nConnection: close\r\n\r\n", 417),
        (GET.replace(b"GET", b"BREW") + b"\r\n", 400),
        (GET.replace(b"/health", b"/nowhere") + b"Connection: close\r\n\r\n", 404),
    ],
)
def test_what_is_no_request_gets_an_error_object(head: bytes, status: int, listener: str) -> None:
    async def run() -> None:
        async with stand("unified") as it, sockets(getattr(it.gateway, listener)) as connect:
            reader, writer = await connect()
            writer.write(head)
            said, _, body = (await ends(reader)).partition(b"\r\n\r\n")
        assert b"Content-Type: application/json" in said
        assert json.loads(body)["error"]["code"] == status == int(said.split()[1])
        assert said.count(b"Server: pdplugins\r\n") == 1

    asyncio.run(run())


POST = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("listener", "path"), [("url", b"/generate"), ("url", b"/v1/tokenize"), ("admin_url", b"/roles")]
)
@pytest.mark.parametrize("bad", [b"4\r\n{}{}XX", b"z\r\n", b"4\n{}{}", b"0\r\n" + b"X: y\r\n" * 200])
@pytest.mark.parametrize("waits", [True, False])
def test_a_body_that_is_no_http_is_told_at_once(listener: str, path: bytes, bad: bytes, waits: bool) -> None:
    """Its client waited until the time for a body was over."""

    async def run() -> None:
        async with stand("unified") as it, sockets(getattr(it.gateway, listener)) as connect:
            reader, writer = await connect()
            writer.write(POST % path)
            await writer.drain()
            if waits:
                busy = it.gateway.clients if listener == "url" else it.gateway._operators
                assert await settled(lambda: any(one.request is not None for one in busy._all.values()))
            writer.write(bad)
            said = await ends(reader)
            assert said.count(b"HTTP/1.") == 1
            assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == 400 == int(said.split()[1])
            assert await settled(lambda: not it.gateway.admission.requests)

    asyncio.run(run())


def test_a_body_that_is_no_http_ends_no_request_before_it() -> None:
    async def run() -> None:
        async with stand("unified", token_s=0.05) as it, sockets(it.gateway.url) as connect:
            reader, writer = await connect()
            writer.write(message(stream=True) + POST % b"/generate")
            assert b" 200 OK" in await reader.readline()
            writer.write(b"z\r\n")
            first, _, second = (await ends(reader)).partition(b"HTTP/1.1 400 Bad Request")
            assert first.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert json.loads(second.partition(b"\r\n\r\n")[2])["error"]["code"] == 400
            assert it.faults["gateway_error"] == 0

    asyncio.run(run())


def test_no_answer_tells_the_version_of_the_http_server() -> None:
    async def run() -> None:
        async with stand("unified") as it:
            for path in ("/health", "/v1/models", "/openapi.json"):
                async with it.client.get(it.gateway.url + path) as answer:
                    assert answer.headers["Server"] == "pdplugins"
            for stream in (True, False):
                async with it.client.post(it.gateway.url + "/generate", json=ask(stream=stream)) as answer:
                    assert answer.headers["Server"] == "pdplugins"
            async with it.client.get(it.gateway.admin_url + "/workers") as answer:
                assert answer.headers["Server"] == "pdplugins"

    asyncio.run(run())
