"""``dynamo serve`` with real mockers, what goes wrong with it, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from tests.chaos.clients import MALFORMED, together
from tests.chaos.plan import DEADLINE_S, Fault, Others, Tally
from tests.chaos.steady import Steady
from tests.hosts.dynamo.local.serve import Serve
from tests.sockets import listening

TOKENS = 5
GROWTH_MIB = 48.0
SPARE_DESCRIPTORS = 16


class StackStage:
    """A stack that serves."""

    def __init__(self, serve: Serve) -> None:
        self.serve = serve
        self.ready: dict[str, Any] = serve.ready()
        self.url = str(self.ready["url"])
        self.port = int(self.url.rpartition(":")[2])
        self.metrics_port = int(self.ready["metrics_port"])
        self.steady = Steady(self.ask, {})

    @property
    def body(self) -> dict[str, Any]:
        return {
            "model": self.ready["model"],
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": TOKENS,
        }

    async def ask(self, client: aiohttp.ClientSession) -> tuple[Others, str]:
        async with client.post(self.url + "/v1/chat/completions", json=self.body) as answer:
            data = await answer.read()
        said = f"{answer.status} {data[-300:]!r}"
        if answer.status != 200:
            return (Others.REFUSED if answer.status in (429, 503) else Others.FAILED), said
        right = json.loads(data)["usage"]["completion_tokens"] == TOKENS
        return (Others.RIGHT if right else Others.ODD), said

    async def raw(self, data: bytes, tally: Tally, port: int, *, within_s: float = DEADLINE_S) -> None:
        """Send bytes, and take what comes, for a while: others' servers may say nothing."""
        said = b""
        with tally.one():
            try:
                async with asyncio.timeout(within_s):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    try:
                        writer.write(data)
                        said = await reader.read(12)
                    finally:
                        writer.transport.abort()
            except TimeoutError:
                tally.came["left"] += 1
                return
            except OSError:
                said = b""
        ok = said.startswith(b"HTTP/1.1 2")
        tally.came["answered" if ok else "refused" if said.startswith(b"HTTP") else "closed"] += 1

    async def request(self, body: Any, tally: Tally) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status = 0
        with tally.one():
            try:
                async with (
                    asyncio.timeout(DEADLINE_S),
                    aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as client,
                    client.post(self.url + "/v1/chat/completions", data=data) as answer,
                ):
                    await answer.read()
                    status = answer.status
            except TimeoutError:
                raise AssertionError(f"no end within {DEADLINE_S:g} s of {data[:200]!r}") from None
            except (aiohttp.ClientError, OSError):
                pass
        tally.came["closed" if not status else "answered" if status < 300 else "refused"] += 1

    # --- what it holds ---------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self.serve.process.pid

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def rss_mib(self) -> float:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024

    def last_words(self) -> str:
        """What launcher and frontend have logged last, also where their logs have been deleted."""
        logs = [Path(f"/proc/{pid}/fd/2") for pid in (self.pid, *self.serve.descendants())]
        return "\n".join(f"{log}: {log.read_text(errors='replace')[-1500:]}" for log in logs if log.exists())

    def workers(self) -> dict[str, int]:
        return self.serve.workers("prefill") | self.serve.workers("decode")

    def frontend(self) -> int:
        """The process that listens on the endpoint's port."""
        pids = self.serve.descendants()
        return next(pid for pid in pids if ("127.0.0.1", self.port) in listening([pid]))


# --- faults -----------------------------------------------------------------------------------------------------------


async def load(stage: StackStage, dice: Random, tally: Tally, count: int = 10) -> None:
    bodies = [stage.body | {"max_tokens": dice.randrange(1, 40), "stream": dice.random() < 0.5} for _ in range(count)]
    await together([stage.request(body, tally) for body in bodies])


def signalled(number: signal.Signals) -> Callable[[StackStage, Random, Tally], Awaitable[None]]:
    """A worker gets a signal in the middle of requests; it must be replaced."""

    async def act(stage: StackStage, dice: Random, tally: Tally) -> None:
        name, pid = dice.choice(sorted(stage.workers().items()))
        async with asyncio.TaskGroup() as group:
            group.create_task(load(stage, dice, tally))
            await asyncio.sleep(dice.uniform(0, 0.3))
            os.kill(pid, number)
        await asyncio.to_thread(stage.serve.wait, lambda: name not in stage.workers())

    return act


def paused(who: Callable[[StackStage], int]) -> Callable[[StackStage, Random, Tally], Awaitable[None]]:
    """A process of the stack is stopped for a moment, and goes on."""

    async def act(stage: StackStage, dice: Random, tally: Tally) -> None:
        pid = who(stage)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(dice.uniform(0.5, 3))
        finally:
            os.kill(pid, signal.SIGCONT)
        await load(stage, dice, tally)

    return act


async def deleted_logs(stage: StackStage, dice: Random, tally: Tally) -> None:
    shutil.rmtree(stage.ready["logs"], ignore_errors=True)
    await load(stage, dice, tally)


async def malformed_http(stage: StackStage, dice: Random, tally: Tally) -> None:
    said = dice.sample(MALFORMED, 12)
    await together([stage.raw(data, tally, stage.port, within_s=2) for data in said])
    await together([stage.raw(data, tally, stage.metrics_port, within_s=2) for data in said])


async def garbage_at_every_port(stage: StackStage, dice: Random, tally: Tally) -> None:
    """Random bytes to whatever listens: workers' requests, status and events, the broker."""
    ports = {port for _, port in listening([stage.pid, *stage.serve.descendants()])} - {stage.port}
    said = [b"\xff" * 64, b"\x00" * 1000, b"GET / HTTP/1.1\r\n\r\n", dice.randbytes(500)]
    await together([stage.raw(data, tally, port, within_s=1) for port in sorted(ports) for data in said])


async def odd_bodies(stage: StackStage, dice: Random, tally: Tally) -> None:
    deep = [b'{"a":' * depth + b"1" + b"}" * depth for depth in (100, 100_000)]
    odd = [
        stage.body | {key: value} for key in ("messages", "max_tokens", "model") for value in (None, [], -1, {"a": 1})
    ]
    await together([stage.request(body, tally) for body in [*deep, b"", b"[]", b"\xff", b"x" * 2**20, *odd]])


async def leaving_clients(stage: StackStage, dice: Random, tally: Tally) -> None:
    async def one() -> None:
        body = json.dumps(stage.body | {"max_tokens": 200, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json\r\n\r\n"
        data = head.encode() + body
        _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        writer.write(data[: dice.choice([len(data), dice.randrange(len(data))])])
        await asyncio.sleep(dice.uniform(0, 0.5))
        writer.transport.abort()
        tally.came["left"] += 1

    await together([one() for _ in range(20)])


async def burst(stage: StackStage, dice: Random, tally: Tally) -> None:
    await load(stage, dice, tally, 100)


FAULTS: list[Fault[StackStage]] = [
    Fault("a worker that is killed", "worker", signalled(signal.SIGKILL), Others.FAILED),
    Fault("a worker that is stopped", "worker", signalled(signal.SIGSTOP), Others.FAILED),
    Fault("a frontend that is stopped for a while", "frontend", paused(StackStage.frontend)),
    Fault("a launcher that is stopped for a while", "launcher", paused(lambda stage: stage.pid)),
    Fault("deleted logs", "operator", deleted_logs),
    Fault("garbage at every port", "client", garbage_at_every_port, Others.FAILED),
    Fault("malformed HTTP", "client", malformed_http),
    Fault("odd bodies", "client", odd_bodies),
    Fault("clients that leave", "client", leaving_clients),
    Fault("burst", "client", burst),
]


# --- invariants -------------------------------------------------------------------------------------------------------


class StackInvariants:
    """The checks of one stack."""

    def __init__(self, stage: StackStage) -> None:
        self.stage = stage
        self.held: list[dict[str, float]] = []

    async def after(self, batch: Sequence[Fault[StackStage]]) -> None:
        stage = self.stage
        assert stage.serve.process.poll() is None, f"dynamo serve ended: {stage.serve.errors()}"
        async with stage.steady.quiet():
            stage.steady.check(max(fault.others for fault in batch))
            await asyncio.to_thread(stage.serve.wait, self._all_there)
            await asyncio.to_thread(stage.serve.wait, self._nothing_in_flight)

    def _all_there(self) -> bool:
        """As many workers serve as the planner wants, and nothing else runs below the launcher."""
        status = self.stage.serve.status()
        pools = [status[role] for role in ("prefill", "decode")]
        settled = all(pool["ready"] == pool["wanted"] and not pool["starting"] + pool["draining"] for pool in pools)
        return settled and len(self.stage.serve.descendants()) == 1 + sum(pool["ready"] for pool in pools)

    def _nothing_in_flight(self) -> bool:
        return self.stage.serve.status()["pulse"]["in_flight"] == 0

    async def after_round(self) -> None:
        now = {"rss_mib": round(self.stage.rss_mib, 1), "descriptors": self.stage.descriptors}
        self.held.append(now)
        first = self.held[0]
        assert now["rss_mib"] - first["rss_mib"] <= GROWTH_MIB, f"the launcher's memory grew: {self.held}"
        assert now["descriptors"] - first["descriptors"] <= SPARE_DESCRIPTORS, f"descriptors: {self.held}"


def free(port: int) -> bool:
    """Tell whether nothing listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
