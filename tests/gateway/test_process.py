"""The gateway as a process: its start, its descriptors, its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from pdplugins.gateway import process
from pdplugins.gateway.access.api_keys import new_key
from pdplugins.gateway.app import Gateway
from pdplugins.gateway.engines.sglang.servers import Servers
from pdplugins.processes.ending import HUNG
from tests.gateway.fake import FakeWorker, Rooms, answer_of, settled
from tests.gateway.process import running
from tests.gateway.rig import PROMPT, ask, config
from tests.gateway.sockets import head, message, sockets
from tests.programs import PDPLUGINS
from tests.sockets import beyond_this_machine, listening

pytestmark = pytest.mark.moderate


async def start(*modes: str, token_s: float = 0.0) -> list[FakeWorker]:
    rooms = Rooms()
    return [await FakeWorker(mode, rooms, 9000 + number, token_s).start() for number, mode in enumerate(modes)]


def test_the_command_serves_and_stops(tmp_path: Path) -> None:
    """Over two workers, one of which comes only later."""

    async def run() -> None:
        workers = await start("prefill", "decode")
        await workers[1].stop()
        async with running(workers, tmp_path) as gateway, aiohttp.ClientSession() as client:
            async with client.get(gateway.url + "/health") as answer:
                assert answer.status == 503
            assert len(listening([gateway.child.pid])) == 2
            assert beyond_this_machine([gateway.child.pid]) == set()
            await workers[1].start()
            assert await settled(lambda: "is there: decode" in gateway.said)
            async with client.post(gateway.url + "/generate", json=ask()) as answer:
                assert (await answer.json())["output_ids"] == answer_of(PROMPT, 9)
            assert (await gateway.end())[0] == 0

    asyncio.run(run())


def test_the_watch_over_started_servers_is_counted_and_starts_anew_when_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pdplugins.gateway.watchers.AGAIN_S", 0.0)
    watches = 0

    class Started:
        async def start(self, _: object) -> None: ...
        async def stop(self, _: float) -> None: ...

        async def watch(self, _: object) -> None:
            nonlocal watches
            watches += 1
            raise ProcessLookupError

    async def run() -> None:
        gateway = Gateway(config(), [])
        async with AsyncExitStack() as stack:
            await process._begin(stack, gateway, cast(Servers, Started()), process.StopTime(1.0), "127.0.0.1", 0)
            assert await settled(lambda: watches >= 3)
            assert gateway.metrics.faults["gateway_error"] >= 2

    asyncio.run(run())


def test_the_dashboard_of_the_command_listens_here_only_and_ends_with_it(tmp_path: Path) -> None:
    async def run() -> None:
        workers = await start("unified")
        async with running(workers, tmp_path, "--dashboard", "0") as gateway, aiohttp.ClientSession() as client:
            assert await settled(lambda: "dashboard on http://127.0.0.1:" in gateway.said)
            url = gateway.said.partition("dashboard on ")[2].split()[0]
            assert beyond_this_machine([gateway.child.pid]) == set()
            async with client.get(url) as answer:
                assert workers[0].url.rpartition("/")[2] in await answer.text()
            assert (await gateway.end())[0] == 0
            with pytest.raises(aiohttp.ClientConnectionError):
                await client.get(url)

    asyncio.run(run())


def test_few_descriptors_are_raised_and_connections_fit_into_them(tmp_path: Path) -> None:
    """Three hundred idle connections, where 42 are allowed: those that ask are served."""

    async def run() -> None:
        workers = await start("unified")
        async with (
            running(workers, tmp_path, descriptors=(100, 256)) as gateway,
            sockets(gateway.url) as connect,
            aiohttp.ClientSession() as client,
        ):
            limits = Path(f"/proc/{gateway.child.pid}/limits").read_text()
            assert "Max open files            256                  256" in limits
            assert "256 open files are enough for 42 connections" in gateway.said
            for _ in range(300):
                await connect()
            while not await serves(client, gateway.url):  # until they have been idle for a moment
                pass
            for _ in range(30):
                async with client.post(gateway.url + "/generate", json=ask()) as answer:
                    assert (await answer.json())["output_ids"] == answer_of(PROMPT, 9)
            assert len(list(Path(f"/proc/{gateway.child.pid}/fd").iterdir())) < 256

    asyncio.run(run())


async def serves(client: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with client.post(url + "/generate", json=ask()) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError):
        return False


async def stream(client: aiohttp.ClientSession, url: str, **more: Any) -> bytes:
    async with client.post(url + "/generate", json=ask(stream=True, **more)) as answer:
        return await answer.read()


def test_a_stop_cuts_what_is_left_in_time_with_an_error_event(tmp_path: Path) -> None:
    """A stream that would go on, a whole answer that is not there, a body that never ends.

    Against a control: a gateway that has nothing to wait for.
    """

    async def run() -> None:
        async with running(await start("unified"), tmp_path, "--set", "drain_s=3") as control:
            _, least_s = await control.end()
        workers = await start("unified", token_s=0.1)
        async with (
            running(workers, tmp_path, "--set", "drain_s=3") as gateway,
            sockets(gateway.url) as connect,
            aiohttp.ClientSession() as client,
        ):
            short = asyncio.create_task(stream(client, gateway.url, count=8))
            long = asyncio.create_task(stream(client, gateway.url, count=1_000))
            whole = asyncio.create_task(client.post(gateway.url + "/generate", json=ask(count=1_000)))
            reader, writer = await connect()
            writer.write(head(100) + b"{")
            assert await settled(lambda: len(workers[0].running) == 3)
            code, took_s = await gateway.end()
            assert code == 0
            assert 1 < took_s < 2 * 3 + least_s  # the stream went on for a while, and nothing waited twice
            assert json.loads((await short).split(b"\n\n")[-3].removeprefix(b"data: "))["output_ids"] == answer_of(
                PROMPT, 8
            )
            *_, error, done, _ = (await long).split(b"\n\n")
            assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 503
            assert done == b"data: [DONE]"
            answer = await whole
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert "the gateway stops" in await answer.text()
            assert (await reader.read()).startswith(b"HTTP/1.1 503")
            assert await settled(lambda: not workers[0].running)

    asyncio.run(run())


def test_an_unfinished_body_and_idle_connections_do_not_hold_the_stop(tmp_path: Path) -> None:
    async def run() -> None:
        workers = await start("unified")
        async with running(workers, tmp_path, "--set", "drain_s=20") as gateway, sockets(gateway.url) as connect:
            for begun in (b"", b"POST /gen", head(100) + b"{", message()):
                _, writer = await connect()
                writer.write(begun)
            assert await settled(lambda: bool(workers[0].seen))
            code, took_s = await gateway.end()
            assert code == 0
            assert took_s < 20

    asyncio.run(run())


def test_a_second_signal_skips_the_wait(tmp_path: Path) -> None:
    async def run() -> None:
        workers = await start("unified", token_s=0.2)
        async with running(workers, tmp_path, "--set", "drain_s=60") as gateway, aiohttp.ClientSession() as client:
            long = asyncio.create_task(stream(client, gateway.url, count=1_000))
            assert await settled(lambda: len(workers[0].running) == 1)
            gateway.child.send_signal(signal.SIGINT)
            port = int(gateway.url.rpartition(":")[2])
            assert await settled(lambda: port not in {port for _, port in listening([gateway.child.pid])})
            code, took_s = await gateway.end(signal.SIGINT)
            assert code == 0
            assert took_s < 60
            assert b'"code": 503' in await long

    asyncio.run(run())


HANGS = """
import time
import pdplugins
from pydantic import BaseModel

class Settings(BaseModel, extra="forbid"):
    pass

class Router:
    def __init__(self, settings, deployment):
        pass

    def on_arrival(self, request, workers, now_s):
        print("it hangs now", flush=True)
        time.sleep(600)

    on_prefill_done = on_arrival

@pdplugins.hookimpl
def pd_register_routers(register):
    register("hangs", Router, Settings)
"""


def test_a_policy_that_never_returns_does_not_keep_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop hangs in a router, and hears of no signal."""
    facts = tmp_path / "hangs-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: hangs\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[pdplugins]\nhangs = hangs\n")
    (tmp_path / "hangs.py").write_text(HANGS)
    (tmp_path / "config.yaml").write_text("router: hangs\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    options = ("--config", str(tmp_path / "config.yaml"), "--set", "drain_s=0.5")

    async def run() -> None:
        workers = await start("unified")
        async with running(workers, tmp_path, *options) as gateway, aiohttp.ClientSession() as client:
            asked = asyncio.create_task(client.post(gateway.url + "/generate", json=ask()))
            assert await settled(lambda: "it hangs now" in gateway.said)
            code, took_s = await gateway.end()
            assert code == HUNG
            assert took_s >= 0.5
            assert "did not end within 3.5 s, so it was cut off" in gateway.said
            with pytest.raises(aiohttp.ClientError):
                await asked

    asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_starts(number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM ends it; SIGHUP lets it read its keys again once it has started.

    A worker takes connections and says nothing, so the first look at it takes seconds.
    """
    keys = tmp_path / "keys"
    new_key(keys, "alice", admin=False)

    async def run() -> None:
        asked = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.set()
            await reader.read()
            writer.close()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            command = [*PDPLUGINS, "gateway", "--port", "0"]
            command += ["--api-keys", str(keys), "--worker", url]
            log = tmp_path / "log"
            with log.open("w") as out:
                child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            try:
                await asyncio.wait_for(asked.wait(), 60)
                child.send_signal(number)
                if number == signal.SIGHUP:
                    assert await settled(lambda: "read 1 keys" in log.read_text() or child.poll() is not None)
                    child.terminate()
                assert await asyncio.to_thread(child.wait, 60) == 0
            finally:
                child.kill()
            assert "ERROR" not in log.read_text()

    asyncio.run(run())


def test_an_access_log_has_a_line_for_each_request(tmp_path: Path) -> None:
    async def run() -> None:
        workers = await start("unified")
        async with running(workers, tmp_path, "--access-log") as gateway, aiohttp.ClientSession() as client:
            for path in ("/generate", "/nowhere"):
                await (await client.post(gateway.url + path, json=ask())).read()
            assert await settled(lambda: '"POST /nowhere HTTP/1.1" 404' in gateway.said)
            assert '"POST /generate HTTP/1.1" 200' in gateway.said

    asyncio.run(run())
