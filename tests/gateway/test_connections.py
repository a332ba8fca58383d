"""Connections to workers: kept as long as they can be, and never one whose answer is not whole."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from pdplugins.gateway.engines.sglang import connections
from pdplugins.gateway.engines.sglang.connections import Connections, Response
from pdplugins.gateway.reading import read_whole
from tests.gateway.fake import settled

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 2\r\n\r\nok"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PART = b"HTTP/1.1 200 OK\r\nContent-Le"
Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """A server that does as it is told with each request."""

    def __init__(self, *acts: bytes | Act) -> None:
        self._acts = list(acts)
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.opened = self.closed = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                length = next(line for line in head.splitlines() if line.startswith("Content-Length:"))
                self.bodies.append(await reader.readexactly(int(length.partition(":")[2])))
                act = self._acts.pop(0)
                if isinstance(act, bytes):
                    writer.write(act)
                else:
                    await act(reader, writer)
        self.closed += 1
        writer.close()


async def whole(response: Response) -> bytes:
    return await read_whole(response.readany, 1_000)


@contextlib.asynccontextmanager
async def over(peer: Peer, pool: Connections | None = None) -> AsyncIterator[Callable[..., Awaitable[Response]]]:
    server = await asyncio.start_server(peer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base"
    pool = pool or Connections(5, ssl.create_default_context())

    async def post(body: bytes = b"{}", headers: dict[str, str] | None = None, silence_s: float = 10) -> Response:
        return await pool.post(url, "/path", body, headers or {}, silence_s)

    try:
        yield post
    finally:
        pool.close()
        assert await settled(lambda: peer.closed == peer.opened)
        server.close()
        await server.wait_closed()


def test_a_connection_whose_answer_is_whole_serves_the_next_request() -> None:
    """Whether it came at once or in chunks, and also where nobody has read it."""

    async def work() -> None:
        peer = Peer(WHOLE, CHUNKS + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", WHOLE, b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE)
        async with over(peer) as post:
            first = await post(b'{"a":1}', {"traceparent": "x"})
            assert (first.status, first.content_type, await whole(first)) == (200, "text/x", b"ok")
            assert peer.heads[0].startswith("POST /base/path HTTP/1.1\r\nHost: 127.0.0.1:")
            assert "\r\ntraceparent: x\r\n" in peer.heads[0]
            assert peer.bodies == [b'{"a":1}']
            second = await post()
            assert second.content_type == "application/json"
            assert b"".join([part async for part in _parts(second)]) == b"abc"
            await post()
            assert (await post()).status == 200
            assert peer.opened == 1

    asyncio.run(work())


async def _parts(response: Response) -> AsyncIterator[bytes]:
    while part := await response.readany():
        yield part


def test_of_a_server_that_is_forgotten_no_connection_stays() -> None:
    """One with an answer that still comes closes at its end."""

    async def work() -> None:
        go = asyncio.Event()

        async def later(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(WHOLE[:-1])
            await go.wait()
            writer.write(WHOLE[-1:])

        peer, pool = Peer(WHOLE, later), Connections(5, ssl.create_default_context())
        async with over(peer, pool) as post:
            assert await whole(await post()) == b"ok"
            ((url, target),) = pool._targets.items()
            busy = await post()
            pool.forget(url)
            pool.forget("http://nobody:1")
            assert not pool._targets
            go.set()
            assert await whole(busy) == b"ok"
            assert await settled(lambda: peer.closed == peer.opened == 1)
            assert not target.idle

    asyncio.run(work())


def test_a_trailer_that_does_not_end_is_a_fault_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the body before it was."""
    monkeypatch.setattr(connections, "MOST_HEAD_BYTES", 2**12)

    async def work() -> None:
        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(8):
                writer.write(b"1000\r\n" + b"x" * 2**12 + b"\r\n")
                await asyncio.sleep(0)
            writer.write(b"0\r\nX-T: ")
            while not reader.at_eof():
                writer.write(b"x" * 2**10)
                await writer.drain()
                await asyncio.sleep(0)

        async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(CHUNKS)
            await drip(reader, writer)

        async with over(Peer(begin)) as post:
            response = await post()
            async with asyncio.timeout(20):
                with pytest.raises(aiohttp.ClientPayloadError, match="a head or a trailer of more than 4096 bytes"):
                    await read_whole(response.readany, 2**20)

    asyncio.run(work())


def test_requests_at_once_have_connections_of_their_own() -> None:
    async def work() -> None:
        both = asyncio.Barrier(2)

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await both.wait()
            writer.write(WHOLE)

        peer = Peer(meet, meet)
        async with over(peer) as post:
            await asyncio.gather(post(), post())
            assert peer.opened == 2

    asyncio.run(work())


def test_an_idle_connection_is_not_trusted_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.0)

    async def work() -> None:
        peer = Peer(WHOLE, WHOLE, WHOLE)
        async with over(peer) as post:
            await asyncio.gather(post(), post())
            await post()
            assert peer.opened == 3
            assert await settled(lambda: peer.closed == 2), "the one that was not used is closed too"

    asyncio.run(work())


@pytest.mark.parametrize("last", [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", None])
def test_a_connection_that_its_server_closes_is_not_used_again(last: bytes | None) -> None:
    """Whether it said so, or closes it while it is idle."""

    async def work() -> None:
        async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(WHOLE)
            raise ConnectionResetError

        peer = Peer(last or leave, WHOLE)
        async with over(peer) as post:
            assert await whole(await post()) == b"ok"
            assert await settled(lambda: peer.closed == 1)
            await asyncio.sleep(0)
            assert await whole(await post()) == b"ok"
            assert peer.opened == 2

    asyncio.run(work())


@pytest.mark.parametrize(("extra", "later"), [(WHOLE, False), (PART, False), (WHOLE, True), (PART, True), (b"x", True)])
def test_an_answer_that_nobody_asked_for_goes_to_nobody(extra: bytes, later: bool) -> None:
    """Whether it comes with the answer before it or while the connection is idle."""

    async def work() -> None:
        more = asyncio.Event()

        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(WHOLE if later else WHOLE + extra)
            if later:
                await more.wait()
                writer.write(extra)

        peer = Peer(say, CHUNKS + b"3\r\nnew\r\n0\r\n\r\n")
        async with over(peer) as post:
            assert await whole(await post()) == b"ok"
            more.set()
            await asyncio.sleep(0.05)
            assert await whole(await post()) == b"new"
            assert peer.opened == 2

    asyncio.run(work())


def test_what_is_given_up_takes_its_connection_with_it() -> None:
    async def work() -> None:
        peer = Peer(CHUNKS + b"2\r\nab\r\n", WHOLE)
        async with over(peer) as post:
            response = await post()
            assert await response.readany() == b"ab"
            response.close()
            assert await whole(await post()) == b"ok"
            assert peer.opened == 2

    asyncio.run(work())


def test_a_request_that_is_cancelled_takes_its_connection_with_it() -> None:
    async def work() -> None:
        peer = Peer(b"", WHOLE)
        async with over(peer) as post:
            asked = asyncio.ensure_future(post())
            assert await settled(lambda: len(peer.bodies) == 1)
            asked.cancel()
            assert await settled(lambda: peer.closed == 1)
            assert (await post()).status == 200

    asyncio.run(work())


def test_a_request_that_is_cancelled_too_late_leaves_its_connection_to_the_next_one() -> None:
    """Its answer has come, and the connection serves another request, before the cancellation is heard."""

    async def work() -> None:
        more = asyncio.Event()

        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await more.wait()
            writer.write(WHOLE)

        async with over(Peer(WHOLE, say)) as post:
            first = asyncio.ensure_future(post())
            await asyncio.sleep(0)
            while first._fut_waiter is None or not first._fut_waiter.done():  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            second = asyncio.ensure_future(post())  # it begins before the first one goes on
            first.cancel()
            await asyncio.sleep(0.01)
            more.set()
            assert await whole(await second) == b"ok"

    asyncio.run(work())


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def work() -> None:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nab")
            raise ConnectionResetError

        async with over(Peer(say)) as post:
            assert await whole(await post()) == b"ab"

    asyncio.run(work())


def test_what_nobody_reads_stays_with_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_UNREAD_BYTES", 1000)

    async def work() -> None:
        size, sent = 64 * 2**20, asyncio.Event()

        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(64):
                writer.write(b"x" * 2**20)
                await writer.drain()
            sent.set()

        async with over(Peer(say, WHOLE)) as post:
            answer = await post(silence_s=0.5)
            await asyncio.sleep(1.0)  # longer than a silence may be, which counts from the reading
            assert not sent.is_set()
            assert len(await read_whole(answer.readany, size)) == size
            assert await whole(await post()) == b"ok"

    asyncio.run(work())


async def _leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raise ConnectionResetError


async def _announce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Announce an answer for ever."""
    with contextlib.suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 100)
            await writer.drain()


async def _break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")
    raise ConnectionResetError


async def _whole(post: Callable[..., Awaitable[Response]]) -> bytes:
    response = await post(silence_s=0.1)
    try:
        return await whole(response)
    finally:
        response.close()


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (b"no HTTP at all\r\n\r\n", aiohttp.ClientPayloadError),
        (b"", aiohttp.SocketTimeoutError),
        (CHUNKS + b"2\r\nab\r\n", aiohttp.SocketTimeoutError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, aiohttp.ClientPayloadError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", aiohttp.ClientPayloadError),
        (b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", aiohttp.ClientPayloadError),
        (_announce, aiohttp.ClientPayloadError),
        (_break_off, aiohttp.ClientPayloadError),
        (_leave, aiohttp.ServerDisconnectedError),
    ],
)
def test_failures_are_errors_of_aiohttp(act: bytes | Act, error: type[Exception]) -> None:
    async def work() -> None:
        async with over(Peer(act)) as post:
            with pytest.raises(error):
                await _whole(post)

    asyncio.run(work())


def test_nobody_listens() -> None:
    async def work() -> None:
        with pytest.raises(ConnectionRefusedError):
            await Connections(5, ssl.create_default_context()).post("http://127.0.0.1:1", "/", b"", {}, None)

    asyncio.run(work())


def test_the_timer_of_a_connection_counts_from_what_came_last() -> None:
    """An answer in parts may take longer than a silence may, and one timer looks after all answers of a connection."""

    async def work() -> None:
        async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(CHUNKS)
            for _ in range(6):
                await asyncio.sleep(0.3)
                writer.write(b"1\r\nx\r\n")
            writer.write(b"0\r\n\r\n")

        async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(CHUNKS + b"1\r\nx\r\n")
            await reader.read()

        async with over(Peer(WHOLE, slowly, stop)) as post:
            await whole(await post(silence_s=1.5))
            assert await whole(await post(silence_s=1.5)) == b"x" * 6
            last = await post(silence_s=1.5)
            assert await last.readany() == b"x"
            with pytest.raises(aiohttp.ServerTimeoutError):
                await last.readany()
            last.close()

    asyncio.run(work())
