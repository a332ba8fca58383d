"""``dynamo serve --engine sglang``, as an operator types it."""

from __future__ import annotations

import asyncio
import random
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from benchmarks.rig.servers import Server
from tests.hosts.dynamo.local.serve import Serve
from tests.hosts.dynamo.sglang import workers
from tests.hosts.dynamo.sglang.workers import Ask
from tests.sockets import beyond_this_machine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1500)]


@pytest.fixture
def stack(model: Path, tmp_path: Path) -> Iterator[Serve]:
    (tmp_path / "temp").mkdir()
    engine = ["--engine", "sglang", "--model-path", str(model), "--engine-python", str(workers.program(tmp_path))]
    options = ["--planner", "static", "--router", "arrow", "--prefill", "1", "--decode", "1", "--port", "0"]
    args = [*engine, *options, "--engine-args", shlex.join(workers.OPTIONS), "--log-dir", str(tmp_path / "logs")]
    serve = Serve(args, tmp_path / "temp", {}, patience_s=workers.START_S)
    yield serve
    serve.close()


def test_it_serves_and_replaces_a_worker_that_dies_under_load(stack: Serve, plain: Server) -> None:
    """No request is lost, and none gets other tokens than from a plain server."""
    ready = stack.ready()
    assert "SGLang engines of" in ready["text"]
    assert beyond_this_machine([stack.process.pid, *stack.descendants()]) == set()
    rng = random.Random(3)
    asks = [Ask(rng.choices(workers.VOCABULARY, k=150), 300, stream=True) for _ in range(12)]

    async def run() -> None:
        async with aiohttp.ClientSession() as client:
            wanted = [await ask.plain(client, plain.wait().url) for ask in asks]
            work = [asyncio.create_task(ask.send(client, ready["url"])) for ask in asks]
            await asyncio.wait(work, timeout=0.5)
            (pid,) = stack.workers("prefill").values()
            subprocess.run(["kill", "-KILL", str(pid)], check=True)
            got = await asyncio.gather(*work)
            assert [ids for ids, _ in got] == wanted

    asyncio.run(run())
    stack.wait(lambda: "prefill-2" in stack.workers("prefill"))
    assert stack.signal(signal.SIGTERM) == 0
