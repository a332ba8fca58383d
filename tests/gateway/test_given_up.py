"""What is given up is closed: a worker that does not end what it says keeps no connection of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.gateway.access.worker_keys import WorkerKey
from pdplugins.gateway.engines.sglang import upstream as module
from pdplugins.gateway.engines.sglang.upstream import Upstream
from pdplugins.limits import GatewayConfig
from tests.gateway.fake import settled

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAMED: Any = SimpleNamespace(stream=True, one_answer=True, path="/generate")
DONE = b"data: 1\n\ndata: [DONE]\n\n"


class Worker:
    """A worker that begins each answer with the same bytes and says no more."""

    def __init__(self, says: bytes) -> None:
        self._says = says
        self.open = self.opened = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.opened += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._says)
            while await reader.read(2**16):
                pass
        self.open -= 1
        writer.close()


@contextlib.asynccontextmanager
async def talking(says: bytes) -> AsyncIterator[tuple[Worker, Upstream, Any]]:
    worker = Worker(says)
    server = await asyncio.start_server(worker, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    load = SimpleNamespace(tokens=lambda *_: None)
    backend = SimpleNamespace(id="w", url=url, key=WorkerKey(), alive=True, view=SimpleNamespace(load=load))
    upstream = Upstream(GatewayConfig(), ssl.create_default_context())
    yield worker, upstream, backend
    assert await settled(lambda: worker.open == 0)
    await upstream.settle(1)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("more", [b"", b"3\r\n: x\r\n", b"zz\r\n"])
def test_a_stream_that_does_not_end_after_its_last_event(more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has all of it, so nothing fails."""
    monkeypatch.setattr(module, "REST_S", 0.05)

    async def run() -> None:
        async with talking(STREAM + b"%x\r\n%s\r\n" % (len(DONE), DONE) + more) as (_, upstream, backend):
            answer = await upstream.begin(
                backend, await upstream.post(backend, "/generate", b"{}", {}, stream=True), "r", STREAMED
            )
            assert await answer.piece() == DONE
            assert await answer.piece() == b""
            upstream.end(answer)

    asyncio.run(run())


@pytest.mark.parametrize("status", ["400 No", "200 OK"], ids=["refusal", "answer to a question"])
def test_a_body_that_hangs_while_its_request_is_given_up(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        reading, read_whole = asyncio.Event(), module.read_whole

        async def noticed(*args: Any) -> bytes:
            reading.set()
            return await read_whole(*args)

        monkeypatch.setattr(module, "read_whole", noticed)
        async with talking(f"HTTP/1.1 {status}\r\nContent-Length: 9\r\n\r\nab".encode()) as (_, upstream, backend):
            asked = asyncio.ensure_future(upstream.ask(backend, "/tokenize", {}))
            await reading.wait()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked

    asyncio.run(run())


@pytest.mark.parametrize("length", [9, 2 * 2**20])
def test_an_answer_to_an_abort_that_hangs_or_is_too_long(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ABORT_S", 0.2)
    says = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + b"x" * min(length - 1, 2**20 + 1)

    async def run() -> None:
        async with talking(says) as (worker, upstream, backend):
            upstream.drop(backend, "r", None)
            assert await settled(lambda: worker.opened == 1)

    asyncio.run(run())
