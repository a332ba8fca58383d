"""Clients that are slow, or many: none of them holds anything for long, and the others are served."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol

from pdplugins.gateway import clients
from pdplugins.gateway.admission import Admission
from pdplugins.gateway.bodies import read_body
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.limits import GatewayConfig
from tests.gateway.fake import settled
from tests.gateway.rig import Stand, ask, patient, stand
from tests.gateway.sockets import ends, head, message, sockets

pytestmark = pytest.mark.moderate


def closed(it: Stand, why: str) -> float:
    return it.gateway.metrics.closed.labels(why)._value.get()


@pytest.mark.parametrize("listener", ["url", "admin_url"])
def test_a_slow_head_is_cut_off(listener: str) -> None:
    async def run() -> None:
        async with stand("dual", settings=patient(head_s=0.3)) as it, sockets(getattr(it.gateway, listener)) as connect:
            slow = [await connect() for _ in range(20)]
            for _, writer in slow:
                writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nX: ")
            assert await asyncio.gather(*(ends(reader) for reader, _ in slow)) == [b""] * 20
            assert closed(it, "head") == 20
            assert (await it.post("/generate", ask()))[0] == 200

    asyncio.run(run())


def test_a_connection_without_requests_is_closed() -> None:
    """Also one on which the head of the next request does not end."""

    async def run() -> None:
        async with stand("dual", settings=patient(idle_s=0.3)) as it, sockets(it.gateway.url) as connect:
            for begun in (b"", b"POST /generate HT"):
                reader, writer = await connect()
                writer.write(message())
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                writer.write(begun)
                await ends(reader)

    asyncio.run(run())


@pytest.mark.parametrize("chunked", [False, True])
def test_a_slow_body_is_cut_off_and_gives_its_place_back(chunked: bool) -> None:
    async def run() -> None:
        async with stand("dual", settings=patient(body_s=0.3)) as it, sockets(it.gateway.url) as connect:
            slow = [await connect() for _ in range(20)]
            for _, writer in slow:
                if chunked:
                    writer.write(head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"5\r\n{")
                else:
                    writer.write(head(100) + b"{")
            assert await settled(lambda: it.gateway.admission._requests == 20)
            for said in await asyncio.gather(*(ends(reader) for reader, _ in slow)):
                assert said.startswith(b"HTTP/1.1 408")
                assert b'"invalid_request_error"' in said
            assert it.gateway.admission._requests == it.gateway.admission._bytes == 0

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_does_not_read_is_cut_off(stream: bool) -> None:
    """Its request ends on the workers too, also where the answer is whole and has only to be written."""

    async def run() -> None:
        async with stand("dual", settings=patient(write_s=0.5, timeout_s=60)) as it, sockets(it.gateway.url) as connect:
            it.workers[0].padding = "x" * 100_000
            _, writer = await connect(4096)
            writer.write(message(count=300, stream=stream))
            assert await settled(lambda: closed(it, "write") == 1)
            assert await settled(it.idle)
            assert await settled(lambda: it.gateway.admission._requests == 0)

    asyncio.run(run())


def test_a_client_that_reads_slowly_gets_all() -> None:
    async def run() -> None:
        async with stand("dual", settings=patient(write_s=1, timeout_s=60)) as it, sockets(it.gateway.url) as connect:
            it.workers[0].padding = "x" * 20_000
            reader, writer = await connect(4096)
            writer.write(message(count=100, stream=True))
            said = b""
            while b"[DONE]" not in said:
                said += await reader.read(2**16)
                await asyncio.sleep(0.01)
            assert closed(it, "write") == 0

    asyncio.run(run())


async def is_served(it: Stand) -> bool:
    """Return whether a request is answered. Where all connections are new, one more is refused or closed."""
    try:
        return (await it.post("/generate", ask()))[0] != 503
    except aiohttp.ClientError:
        return False


def test_a_thousand_idle_connections_leave_the_gateway_open() -> None:
    async def run() -> None:
        settings = patient(max_connections=40, max_connections_per_client=40, head_s=60)
        async with stand("dual", settings=settings) as it, sockets(it.gateway.url) as connect:
            for _ in range(100):
                await connect()
            while not await is_served(it):  # until they have been idle for a moment
                await asyncio.sleep(0.01)
            assert closed(it, "idle") >= 1
            there = it.gateway.clients
            assert len(there._all) - there._refused <= 20  # half of all, as they come from one address

    asyncio.run(run())


def test_a_connection_that_has_just_been_opened_makes_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """More clients at once than may be: those that came first are served, however slow this machine opens them."""
    now_s = monotonic()
    monkeypatch.setattr(clients, "monotonic", lambda: now_s)

    async def run() -> None:
        settings = patient(max_connections=40, max_connections_per_client=40, head_s=60)
        async with stand("dual", settings=settings) as it, sockets(it.gateway.url) as connect:
            opened = [await connect() for _ in range(60)]
            for _, writer in opened[:15]:
                writer.write(message())
            for reader, _ in opened[:15]:
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")

    asyncio.run(run())


def test_a_body_on_a_connection_that_has_just_been_closed_is_nobodys_fault() -> None:
    """aiohttp says then what it says when it is used wrongly."""

    async def run() -> None:
        content = aiohttp.StreamReader(BaseProtocol(asyncio.get_running_loop()), 2**16)
        request = SimpleNamespace(headers={}, content_length=100, content=content, transport=None)
        admission = Admission(GatewayConfig(), GatewayMetrics())
        with pytest.raises(ConnectionResetError):
            await read_body(request, admission)  # type: ignore[arg-type]
        assert admission._bytes == 0

    asyncio.run(run())


def test_one_connection_too_many_is_told_so() -> None:
    async def run() -> None:
        async with (
            stand("dual", token_s=0.3, settings=patient(max_connections_per_client=4)) as it,
            sockets(it.gateway.url) as connect,
        ):
            streams = [await connect() for _ in range(4)]
            for _, writer in streams:
                writer.write(message(stream=True, count=3))
            assert await settled(lambda: len(it.workers[0].running) == 4)
            reader, writer = await connect()
            writer.write(message())
            said = await ends(reader)
            assert said.startswith(b"HTTP/1.1 503")
            assert b"Retry-After: 1\r\n" in said
            assert b'"too many connections"' in said
            for reader, _ in streams:
                assert (await reader.readuntil(b"[DONE]")).startswith(b"HTTP/1.1 200")
            assert it.gateway.metrics._overloads.labels("connections_per_client")._value.get() == 1

    asyncio.run(run())


def test_those_that_are_refused_are_few_at_a_time() -> None:
    async def run() -> None:
        async with (
            stand("dual", token_s=1, settings=patient(max_connections=2, head_s=60)) as it,
            sockets(it.gateway.url) as connect,
        ):
            _, writer = await connect()
            writer.write(message(stream=True, count=3))
            assert await settled(lambda: len(it.workers[0].running) == 1)
            for _ in range(100):
                await connect()
            assert await settled(lambda: len(it.gateway.clients._all) <= 1 + 64)
            assert it.gateway.clients._refused <= 64

    asyncio.run(run())


def test_the_books_of_connections_come_back_to_nothing() -> None:
    async def run() -> None:
        async with stand("dual", settings=patient(max_connections=30)) as it:
            async with sockets(it.gateway.url) as connect:
                for number in range(60):
                    _, writer = await connect()
                    writer.write(message() if number % 3 else b"no HTTP\r\n\r\n")
            await it.client.close()
            there = it.gateway.clients
            assert await settled(lambda: not there._all)
            assert not there._idle
            assert not there._by_client
            assert there._refused == 0

    asyncio.run(run())
