"""Limits that no other test of the gateway meets; `test_limits.py` names a test for each limit."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import aiohttp
import pytest

from pdplugins.gateway.app import ADMIN_CONNECTIONS, LONGEST_LINE, MOST_HEADERS
from pdplugins.gateway.engines.sglang.calls import parse
from pdplugins.gateway.engines.sglang.fields import LONGEST_LAX
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.nesting import MOST_BRACKETS, MOST_MARKS, too_nested
from tests.gateway.fake import answer_of, settled
from tests.gateway.rig import PROMPT, Fixed, Stand, ask, fast, patient, stand
from tests.gateway.sockets import ends, head, message, sockets

pytestmark = pytest.mark.moderate

LINES = "x: y\r\n"


@pytest.mark.parametrize(
    ("more", "path", "status"),
    [
        (LINES * (MOST_HEADERS - 3), "/generate", b"200"),
        (LINES * (MOST_HEADERS - 2), "/generate", b"400"),
        (f"x: {'y' * (LONGEST_LINE - 10)}\r\n", "/generate", b"200"),
        (f"x: {'y' * (LONGEST_LINE + 1)}\r\n", "/generate", b"400"),
        ("", "/generate?" + "y" * LONGEST_LINE, b"400"),
    ],
    ids=["most headers", "one header too many", "longest header", "a header too long", "a path too long"],
)
def test_the_head_of_a_request_has_a_limit(more: str, path: str, status: bytes) -> None:
    async def run() -> None:
        async with stand("unified") as it, sockets(it.gateway.url) as connect:
            body = message().partition(b"\r\n\r\n")[2]
            reader, writer = await connect()
            writer.write(head(len(body), path, more) + body)
            if status == b"200":
                assert (await reader.readuntil(b"\r\n")).split()[1] == status
            else:
                assert (await ends(reader)).split()[1] == status
                assert not it.workers[0].seen

    asyncio.run(run())


async def is_answered(it: Stand) -> bool:
    """Return whether an operator is answered. Where all connections are new, one more is refused or closed."""
    try:
        async with it.client.get(it.gateway.admin_url + "/workers") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def test_operators_have_few_connections_and_none_of_those_of_clients() -> None:
    async def run() -> None:
        async with stand("unified", settings=patient(head_s=60)) as it, sockets(it.gateway.admin_url) as connect:
            operators = it.gateway._operators
            for _ in range(2 * ADMIN_CONNECTIONS):
                await connect()
            assert await settled(lambda: bool(operators._all))
            assert len(operators._all) - operators._refused <= ADMIN_CONNECTIONS
            assert not it.gateway.clients._all
            while not await is_answered(it):  # until they have been idle for a moment
                await asyncio.sleep(0.01)
            assert (await it.post("/generate", ask()))[0] == 200

    asyncio.run(run())


def test_clients_of_many_addresses_have_a_limit_together() -> None:
    """Half of all connections is the most for one address, so that four of them fill the gateway."""

    async def run() -> None:
        async with (
            stand("dual", token_s=0.3, settings=patient(max_connections=4)) as it,
            contextlib.AsyncExitStack() as stack,
        ):

            async def asks(host: str) -> tuple[int, str | None]:
                connector = aiohttp.TCPConnector(local_addr=(host, 0))
                client = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
                async with client.post(it.gateway.url + "/generate", json=ask(count=30)) as answer:
                    return answer.status, answer.headers.get("Retry-After")

            four = [asyncio.create_task(asks(f"127.0.0.{number}")) for number in range(2, 6)]
            assert await settled(lambda: len(it.workers[0].running) == 4)
            assert await asks("127.0.0.6") == (503, "1")
            assert it.gateway.metrics._overloads.labels("connections")._value.get() == 1
            assert await asyncio.gather(*four) == [(200, None)] * 4

    asyncio.run(run())


@contextlib.contextmanager
def deaf(port: int) -> Iterator[None]:
    """A port on which someone listens and connections do not open: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(4):
            queued = stack.enter_context(socket.socket())
            queued.setblocking(False)
            queued.connect_ex(("127.0.0.1", port))
        yield


def test_a_connection_that_does_not_open_is_not_waited_for() -> None:
    async def run() -> None:
        async with stand("dual", "dual", settings=fast(connect_s=0.3, poll_s=60, first_token_s=60)) as it:
            router = it.route(Fixed())
            router.first = router.second = 0
            await it.workers[0].stop()
            with deaf(it.workers[0].port):
                assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)
                assert it.workers[1].served["local"] == 1
                assert it.faults["worker_failed"] == 1
                assert all(backend.alive for backend in it.gateway.backends.all)

    asyncio.run(run())


def test_a_stream_that_falls_silent_goes_on_elsewhere() -> None:
    async def run() -> None:
        async with stand("dual", "dual", settings=patient(silence_s=0.5)) as it:
            router = it.route(Fixed())
            router.first = router.second = 0
            it.workers[0].token_s = 0.2
            stream = asyncio.create_task(it.stream("/generate", ask()))
            assert await settled(lambda: it.workers[0].served["local"] == 1)
            it.workers[0].token_s = 60
            assert (await stream)[-1]["output_ids"] == answer_of(PROMPT, 9)
            assert it.workers[1].served["local"] == 1
            assert await settled(it.idle)

    asyncio.run(run())


def test_a_worker_that_failed_rests_and_then_serves_again() -> None:
    async def run() -> None:
        async with stand("dual", "dual", settings=patient(rest_s=0.5)) as it:
            router = it.route(Fixed())
            router.first = router.second = 0
            it.workers[0].faults.status, it.workers[0].faults.times = 500, 1
            assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)
            assert [view.id for view in it.gateway.backends.now_ready()] == [it.workers[1].id]
            assert await settled(lambda: len(it.gateway.backends.now_ready()) == 2)

    asyncio.run(run())


def test_what_only_python_takes_for_json_is_short() -> None:
    """It is read by a parser that takes ten times as long."""
    longest = b'{"x":NaN,"text":"' + b"a" * (LONGEST_LAX - 19) + b'"}'
    assert len(longest) == LONGEST_LAX
    assert parse("/generate", longest, "rid").prompt == "a" * (LONGEST_LAX - 19)
    with pytest.raises(GatewayError, match="the body is not JSON"):
        parse("/generate", longest + b" ", "rid")


@pytest.mark.parametrize("mark", [b'"",', rb"\\"])
def test_marks_are_not_counted_for_ever(mark: bytes) -> None:
    inside = mark * (MOST_MARKS // len(mark.strip(b",")) + 1)
    body = b'{"x":[' + (b'"' + inside + b'"' if b"\\" in mark else inside + b'""') + b",[]]}"
    assert too_nested(body, 1) == "the body has too many values"


def test_brackets_are_gone_through_for_each_level_only_while_they_are_few() -> None:
    def body(pairs: int) -> bytes:
        return b'{"x":[' + b"[]," * pairs + b"[]]}"

    assert too_nested(body(MOST_BRACKETS // 2 - 3), 64) is None
    assert too_nested(body(MOST_BRACKETS // 2), 64) == "the body has too many values"
