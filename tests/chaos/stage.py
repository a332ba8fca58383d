"""A gateway in a process of its own over fake workers, steady requests that must come out right, and hostile ones."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from pdplugins.gateway.access.api_keys import new_key
from tests.chaos.plan import DEADLINE_S, Others, Tally
from tests.chaos.steady import Steady
from tests.chaos.worker import Child
from tests.gateway.fake import FakeWorker, Rooms, answer_of, text_of, tokenize
from tests.gateway.process import Running, running
from tests.gateway.rig import ask

LIMITS = {
    **{"head_s": 6, "idle_s": 6, "body_s": 4, "write_s": 2, "timeout_s": 25, "connect_s": 2, "first_token_s": 6},
    **{"silence_s": 6, "worker_wait_s": 5, "rest_s": 1, "poll_timeout_s": 3, "drain_s": 10, "max_connections": 400},
    **{"max_connections_per_client": 300, "max_requests": 150, "max_waiting": 100, "max_sessions": 500},
    **{"max_bodies_mib": 24, "max_answer_mib": 2, "retry_reserve": 50},
}
HOSTILE = "127.0.0.2"
"""Address of hostile clients, as limits are per address."""
JSON = {"Content-Type": "application/json"}


class Stage:
    """What faults act on."""

    def __init__(
        self, gateway: Running, workers: list[FakeWorker], child: Child | None, keys: Path, key: str, dice: Random
    ) -> None:
        self.gateway, self.workers, self.child, self.keys, self.key = gateway, workers, child, keys, key
        self.url = gateway.url
        self.host, port = gateway.url.removeprefix("http://").split(":")
        self.port = int(port)
        found = re.search(r"workers: (http://[\d.:]+)/workers", gateway.said)
        assert found is not None
        self.admin_url = found[1]
        self.steady = Steady(self.ask, self.authorized)
        self._dice = dice

    # --- steady requests -------------------------------------------------------------------------------------------

    async def ask(self, client: aiohttp.ClientSession) -> tuple[Others, str]:
        """Send one; return what came of it."""
        stream, path = self._dice.random() < 0.5, self._dice.choice(["/generate", "/v1/completions"])
        count = self._dice.randrange(2, 20)
        text = "".join(self._dice.choices("abcdef ", k=self._dice.randrange(4, 60)))
        body = ask(tokenize(text), count) if path == "/generate" else {"prompt": text, "max_tokens": count}
        async with client.post(self.url + path, json=body | {"stream": stream}) as answer:
            data = await answer.read()
        said = f"{path} stream={stream}: {answer.status} {data[-300:]!r}"
        if answer.status == 503 and "Retry-After" in answer.headers:
            return Others.REFUSED, said
        if answer.status in (502, 504) or b'"type": "gateway_error"' in data:
            cut = stream and path == "/v1/completions" and answer.status == 200
            return (Others.CUT if cut else Others.FAILED), said
        right = answer.status == 200 and said_text(data, path, stream=stream) == text_of(
            answer_of(tokenize(text), count)
        )
        return Others.RIGHT if right else Others.ODD, said

    @property
    def authorized(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    # --- hostile requests ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def connection(
        self, *, admin: bool = False, buffer: int | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A raw connection; it may be refused or reset at any time."""
        port = int(self.admin_url.rpartition(":")[2]) if admin else self.port
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((HOSTILE, 0))
        if buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.get_running_loop().sock_connect(sock, (self.host, port))
                reader, writer = await asyncio.open_connection(sock=sock, limit=2**18)
        except BaseException:
            sock.close()
            raise
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def raw(self, data: bytes, tally: Tally, *, admin: bool = False) -> bytes:
        """Send bytes, and return the head of what comes back; nothing where the connection is closed."""
        with tally.one():
            head = b""
            try:
                async with self.connection(admin=admin) as (reader, writer), asyncio.timeout(DEADLINE_S):
                    writer.write(data)
                    head = await reader.readuntil(b"\r\n\r\n")
                    while head.startswith(b"HTTP/1.1 1"):  # go on, and the answer will come
                        head = await reader.readuntil(b"\r\n\r\n")
            except TimeoutError:
                raise AssertionError(f"no answer within {DEADLINE_S:g} s to {data[:200]!r}") from None
            except (asyncio.IncompleteReadError, OSError):
                pass  # closed
        status = int(head.split(b" ", 2)[1]) if head else None
        assert status != 500, (data[:300], head)
        said = head.lower()
        assert status is None or b"\r\nserver: pdplugins\r\n" in said, (data[:300], head)
        assert status is None or status < 400 or b"\r\ncontent-type: application/json" in said, (data[:300], head)
        tally.came["closed" if status is None else "answered" if status < 300 else "refused"] += 1
        return head

    def message(self, body: bytes, path: str = "/generate", more: str = "") -> bytes:
        """Return a whole request with a key."""
        return self.head(len(body), path, more) + body

    def head(self, length: int, path: str = "/generate", more: str = "") -> bytes:
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.key}", f"Content-Length: {length}"]
        lines += ["Content-Type: application/json"]
        return ("\r\n".join(lines) + "\r\n" + more + "\r\n").encode()

    async def request(self, body: Any, tally: Tally, path: str = "/generate") -> bytes:
        """Send a request as a library would, and read all of its answer."""
        connector = aiohttp.TCPConnector(local_addr=(HOSTILE, 0))
        status, data = 0, b""
        with tally.one():
            try:
                async with (
                    asyncio.timeout(DEADLINE_S),
                    aiohttp.ClientSession(connector=connector, headers=self.authorized | JSON) as client,
                    client.post(self.url + path, data=body if isinstance(body, bytes) else json.dumps(body)) as answer,
                ):
                    data = await answer.read()
                    status = answer.status
            except TimeoutError:
                raise AssertionError(f"no end within {DEADLINE_S:g} s of {path} {str(body)[:200]}") from None
            except (aiohttp.ClientError, OSError):
                status = 0
        assert status != 500, (path, str(body)[:300], data[:300])
        failed = status >= 300 or b'"error"' in data
        tally.came["closed" if not status else "refused" if failed else "answered"] += 1
        return data

    # --- its process -----------------------------------------------------------------------------------------------

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.gateway.child.pid}/fd").iterdir()))

    @property
    def rss_mib(self) -> float:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.gateway.child.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024

    def reload(self) -> None:
        self.gateway.child.send_signal(signal.SIGHUP)


def said_text(data: bytes, path: str, *, stream: bool) -> str | None:
    """Return the text of an answer; None where it is not whole."""
    if not stream:
        said = json.loads(data)
        return str(said["text"] if path == "/generate" else said["choices"][0]["text"])
    *events, done, rest = data.split(b"\n\n")
    if done != b"data: [DONE]" or rest:
        return None
    parts = [json.loads(event.removeprefix(b"data: ")) for event in events]
    if any("error" in part for part in parts):
        return None
    return str(parts[-1]["text"]) if path == "/generate" else "".join(part["choices"][0]["text"] for part in parts)


@asynccontextmanager
async def gateway_stage(folder: Path, seed: int, modes: Sequence[str], *options: str) -> AsyncIterator[Stage]:
    """A gateway over workers of these modes; unified ones get one more, in a process of its own."""
    rooms = Rooms()
    workers = [await FakeWorker(mode, rooms, 9000 + i, token_s=0.001).start() for i, mode in enumerate(modes)]
    keys = folder / "keys"
    key = new_key(keys, "steady", admin=False)
    limits = [word for name, value in LIMITS.items() for word in ("--set", f"{name}={value}")]
    async with AsyncExitStack() as stack:
        child = None
        if set(modes) == {"unified"}:
            child = await Child().start()
            stack.push_async_callback(child.stop)
        fleet: list[Any] = [*workers, *([child] if child else [])]
        given = ("--api-keys", str(keys), "--admin-port", "0", *limits, *options)
        gateway = await stack.enter_async_context(running(fleet, folder, *given))
        stage = Stage(gateway, workers, child, keys, key, Random(seed))
        async with stage.steady.asking():
            yield stage
