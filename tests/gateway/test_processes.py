"""Several gateway processes on one port, which know each other's sessions."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdplugins.config import parse
from pdplugins.errors import ConfigError, HostError
from pdplugins.gateway import supervisor
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.peers import MOST_UNSENT, Peers
from pdplugins.gateway.sessions import Session, Sessions
from pdplugins.gateway.share import DIVIDED, Share, part_of
from pdplugins.gateway.supervisor import supervise
from pdplugins.processes.ports import free_ports
from tests.gateway.fake import FakeWorker, Rooms, settled
from tests.gateway.rig import ask

STICKY = "deployment: {decode: {tp: 1}}\nrouter: {name: least-loaded, sticky: true}\n"


@asynccontextmanager
async def two(
    workers: list[FakeWorker], folder: Path, config: str = STICKY
) -> AsyncIterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """Two processes; their supervisor, port and log."""
    (folder / "config.yaml").write_text(config)
    port, *_ = free_ports(3)
    command = [str(Path(sys.executable).with_name("pdplugins")), "gateway", "--processes", "2", "--port", str(port)]
    command += ["--config", str(folder / "config.yaml"), "--poll-s", "0.05", "--admin-port", "0"]
    for worker in workers:
        command += ["--worker", worker.url]
    log = folder / "log"
    with log.open("w") as out:
        env = os.environ | {"PYTHONUNBUFFERED": "1"}
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        assert await settled(lambda: log.read_text().count("gateway on") == 2 or child.poll() is not None), log
        assert child.poll() is None, log.read_text()
        yield child, port, log
    finally:
        if child.poll() is None:
            child.terminate()
            await asyncio.to_thread(child.wait, 60)
        for worker in workers:
            await worker.stop()


async def asked(port: int, session: str, count: int = 9) -> int:
    """Ask on a connection of its own, which the kernel may give to any of the processes."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as client,
        client.post(
            f"http://127.0.0.1:{port}/generate", json=ask(count=count, stream=True, session_id=session)
        ) as answer,
    ):
        await answer.read()
        return answer.status


async def counted(log: Path) -> list[float]:
    """Requests of each process that runs, by its own metrics."""
    counts = []
    async with aiohttp.ClientSession() as client:
        for url in re.findall(r"(http://[\d.:]+)/workers", log.read_text()):
            try:
                async with client.get(url + "/metrics") as answer:
                    page = await answer.text()
            except aiohttp.ClientError:
                continue
            found = re.search(r'requests_total\{outcome="ok"\} ([\d.]+)', page)
            counts.append(float(found[1]) if found else 0.0)
    return counts


@pytest.mark.moderate
def test_a_session_stays_where_it_is_whichever_process_is_asked(tmp_path: Path) -> None:
    async def run() -> None:
        rooms = Rooms()
        modes = ("prefill", "decode", "decode", "decode")
        workers = [await FakeWorker(mode, rooms, 9000 + n).start() for n, mode in enumerate(modes)]
        async with two(workers, tmp_path) as (child, port, log):
            for session in range(20):
                assert await asked(port, f"session {session}") == 200
                before = [len(worker.seen) for worker in workers[1:]]
                for _ in range(4):
                    assert await asked(port, f"session {session}") == 200
                rounds = [len(worker.seen) - n for worker, n in zip(workers[1:], before, strict=True)]
                assert sorted(rounds) == [0, 0, 4], f"session {session}"
            assert min(await counted(log)) > 0, "both have served"
            assert all(worker.seen for worker in workers)
            child.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(child.wait, 60) == 0

    asyncio.run(run())


QUEUE = "deployment: {decode: {tp: 1}}\nflow: {name: fcfs, per_worker: 4}\ngateway: {max_waiting: 6}\n"


@pytest.mark.moderate
def test_the_queues_of_all_processes_together_keep_the_limits(tmp_path: Path) -> None:
    async def run() -> None:
        worker = await FakeWorker("unified", Rooms(), 9000, token_s=0.2).start()
        async with two([worker], tmp_path, QUEUE) as (_, port, log):
            asking = {asyncio.create_task(asked(port, f"session {n}", count=300)) for n in range(40)}

            def ended() -> list[int]:
                return [task.result() for task in asking if task.done()]

            assert await settled(lambda: len(ended()) == 30), "all are refused for which there is no room"
            assert await settled(lambda: len(worker.running) == 4), "requests in service"
            worker.token_s = 0
            await asyncio.wait(asking)
            assert min(await counted(log)) > 0, "both have served"
        assert Counter(ended()) == {503: 30, 200: 4 + 6}, "in service and waiting"

    asyncio.run(run())


def test_the_parts_of_all_processes_add_up_to_the_limits() -> None:
    whole = parse({"gateway": {"max_waiting": 7, "max_requests": 9}, "flow": {"name": "fcfs", "per_worker": 5}})
    parts = [part_of(whole, index, 3) for index in range(3)]
    for name in DIVIDED:
        assert sum(getattr(part.gateway, name) for part in parts) == getattr(whole.gateway, name), name
    assert [part.flow and part.flow.settings for part in parts] == [{"per_worker": n} for n in (2, 2, 1)]
    assert part_of(whole, 0, 1) == whole
    other = parse({"flow": {"name": "fcfs"}})
    assert part_of(other, 0, 3).flow == other.flow
    assert part_of(parse({}), 0, 3).flow is None


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"gateway": {"max_waiting": 3}}, "max_waiting is 3, less than one for each"),
        ({"flow": {"name": "fcfs", "per_worker": 3}}, "per_worker is 3, less than one for each"),
        ({"gateway": {"max_bodies_mib": 15}}, "max_bodies_mib has no room for a body in each; raise it to 16"),
    ],
)
def test_limits_that_cannot_be_divided_are_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=f"^--processes 4: {why}"):
        part_of(parse(config), 3, 4)


@pytest.mark.moderate
def test_the_last_process_ends_with_the_supervisor(tmp_path: Path) -> None:
    async def run() -> None:
        workers = [await FakeWorker("unified", Rooms(), 9000).start()]
        async with two(workers, tmp_path) as (child, port, _):
            child.kill()
            await asyncio.to_thread(child.wait, 60)

            def free() -> bool:
                with socket.socket() as probe:
                    return probe.connect_ex(("127.0.0.1", port)) != 0

            assert await settled(free)

    asyncio.run(run())


def peers(folder: Path, count: int) -> list[tuple[Peers, Sessions, GatewayMetrics]]:
    made = []
    for index in range(count):
        sessions, metrics = Sessions(10), GatewayMetrics()
        made.append((Peers(Share(index, count, folder, 0, "00" * 16), sessions, metrics), sessions, metrics))
    return made


def overloads(metrics: GatewayMetrics) -> float:
    return metrics.registry.get_sample_value("pdplugins_gateway_overloads_total", {"of": "peers"}) or 0.0


@pytest.mark.moderate
def test_every_other_process_hears_of_a_session(tmp_path: Path) -> None:
    async def run() -> None:
        made = peers(tmp_path, 3)
        ends = [one.start() for one, *_ in made]
        session = made[0][1].remember("a")
        session.bound_worker, session.tokens, session.prefix, session.held = "w", 12, (1, -(2**62)), {"w": 12, "v": 3}
        made[0][1].changed("a", session)
        for _, sessions, _ in made[1:]:
            assert await settled(lambda sessions=sessions: sessions.find("a") == session)
        for number in range(30):
            made[0][1].changed(str(number), Session())
        assert await settled(lambda: made[1][1].find("29"))
        assert len(made[1][1]) == 10, "as many as are remembered"
        for end in ends:
            end()

    asyncio.run(run())


@pytest.mark.moderate
def test_one_that_is_away_or_behind_or_told_nonsense_keeps_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        (first, sessions, metrics), (second, others, heard) = peers(tmp_path, 2)
        for number in range(MOST_UNSENT + 2000):  # nobody hears; the kernel keeps a few
            sessions.changed(str(number), Session("w"))
        assert overloads(metrics) > 0
        end = second.start()
        assert await settled(lambda: others.find(str(MOST_UNSENT + 1999)))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            assert await settled(lambda: len(others) == 10)
            stranger.sendto(b"nonsense", str(tmp_path / "1"))
        assert await settled(lambda: heard.faults["gateway_error"] == 1)
        end()
        before = overloads(metrics)
        sessions.changed("late", Session("w"))
        assert overloads(metrics) == before + 1
        first.start()()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("count", "port", "why"), [(1, 8000, "from 2"), (65, 8000, "to 64"), (2, 0, "name it with --port")]
)
def test_processes_that_cannot_share_are_refused(count: int, port: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        supervise(count, "127.0.0.1", port)


def test_a_port_that_another_gateway_shares_is_taken() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(HostError, match="choose another port"):
            supervise(2, "127.0.0.1", other.getsockname()[1])


def test_processes_do_not_begin_on_an_address_of_another_machine() -> None:
    with pytest.raises(HostError, match=r"^gateway: cannot listen on 192\.0\.2\.1:8000 .*no address of this machine"):
        supervise(2, "192.0.2.1", 8000)


def script(folder: Path, body: str) -> list[str]:
    """A process that notes its starts in `folder`, and then does as it is told."""
    path = folder / "script.py"
    path.write_text(
        "import json, os, pathlib, sys, time\n"
        "index = json.loads(os.environ['PDPLUGINS_PEERS'])['index']\n"
        "noted = pathlib.Path(sys.argv[1]) / str(index)\n"
        "noted.write_text((noted.read_text() if noted.exists() else '') + 'x')\n" + body
    )
    return [sys.executable, str(path), str(folder)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "AGAIN_S", 0.0)
    monkeypatch.setattr(supervisor, "PAUSE_S", 0.01)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's own stay


@pytest.mark.moderate
@pytest.mark.usefixtures("quick")
def test_a_process_that_cannot_start_ends_all(tmp_path: Path) -> None:
    body = "while not noted.with_name('1').exists(): time.sleep(0.01)\nif index == 0: sys.exit(3)\ntime.sleep(60)\n"
    words = script(tmp_path, body)
    assert supervisor.Supervisor(words, 2).run() == 3
    assert [(tmp_path / name).read_text() for name in ("0", "1")] == ["x", "x"]


@pytest.mark.moderate
@pytest.mark.usefixtures("quick")
def test_a_process_that_is_killed_at_its_beginning_ends_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for want of memory. It did not end by itself, so nothing says that it was started wrongly."""
    body = "if index == 0 and len(noted.read_text()) == 1: os.kill(os.getpid(), 9)\ntime.sleep(60)\n"
    began = supervisor.Supervisor(script(tmp_path, body), 2)
    look = began._look

    def watched(share: Share) -> None:
        look(share)
        if (tmp_path / "0").exists() and len((tmp_path / "0").read_text()) == 2 and not began._stops:
            began._pass_on(signal.SIGTERM, None)

    monkeypatch.setattr(began, "_look", watched)
    began.run()
    assert [(tmp_path / name).read_text() for name in ("0", "1")] == ["xx", "x"]


@pytest.mark.moderate
@pytest.mark.usefixtures("quick")
def test_a_process_that_dies_later_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here every death is a later one; after three starts of the first process the other one ends the test."""
    monkeypatch.setattr(supervisor, "YOUNG_S", 0.0)
    body = "if index == 0: sys.exit(1)\nother = noted.with_name('0')\n"
    body += "while not other.exists() or len(other.read_text()) < 3: time.sleep(0.01)\n"
    began = supervisor.Supervisor(script(tmp_path, body), 2)
    look = began._look

    def watched(share: Share) -> None:
        look(share)
        if (tmp_path / "0").exists() and len((tmp_path / "0").read_text()) >= 3:
            began._stops = True

    monkeypatch.setattr(began, "_look", watched)
    began.run()
    assert len((tmp_path / "0").read_text()) >= 3


@pytest.mark.moderate
@pytest.mark.usefixtures("quick")
def test_a_process_that_dies_twice_in_a_row_ends_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one lived long enough; those after it die at once, and start later each time."""
    monkeypatch.setattr(supervisor, "YOUNG_S", 2.0)  # on a busy machine a process takes a second to begin
    monkeypatch.setattr(supervisor, "AGAIN_S", 0.01)
    body = "if index == 1: time.sleep(60)\nif len(noted.read_text()) == 1: time.sleep(2.2)\nsys.exit(1)\n"
    began = supervisor.Supervisor(script(tmp_path, body), 2)
    look, pauses = began._look, list[float]()

    def watched(share: Share) -> None:
        look(share)
        if (pause := began._pauses.get(0)) is not None and pause not in pauses:
            pauses.append(pause)
        if (tmp_path / "0").exists() and len((tmp_path / "0").read_text()) >= 4 and not began._stops:
            began._pass_on(signal.SIGTERM, None)

    monkeypatch.setattr(began, "_look", watched)
    began.run()
    assert (tmp_path / "1").read_text() == "x"
    assert pauses[:3] == [0.01, 0.02, 0.04]


@pytest.mark.moderate
@pytest.mark.usefixtures("quick")
def test_a_signal_while_processes_start_ends_those_that_have_and_starts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = supervisor.Supervisor(script(tmp_path, "time.sleep(60)\n"), 4)
    start, started = began._start, []

    def signalled(share: Share) -> None:
        started.append(share.index)
        if share.index == 1:
            began._pass_on(signal.SIGTERM, None)  # before the process of this one is known
        start(share)

    monkeypatch.setattr(began, "_start", signalled)
    assert began.run() == 128 + signal.SIGTERM
    assert started == [0, 1]


@pytest.mark.moderate
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("reloads", [True, False])
def test_a_reload_does_not_end_a_process_that_still_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reloads: bool
) -> None:
    """Where there is nothing to read again, it ends all of them, as when their terminal closes."""
    words = script(tmp_path, "time.sleep(0.3)\nnoted.write_text('ran')\ntime.sleep(60)\n")
    began = supervisor.Supervisor(words, 2, reloads=reloads)
    start, look = began._start, began._look

    def hung_up(share: Share) -> None:
        start(share)
        began._pass_on(signal.SIGHUP, None)

    def ended_when_both_ran(share: Share) -> None:
        look(share)
        if all((tmp_path / name).exists() and (tmp_path / name).read_text() == "ran" for name in ("0", "1")):
            began._pass_on(signal.SIGTERM, None)

    monkeypatch.setattr(began, "_start", hung_up)
    monkeypatch.setattr(began, "_look", ended_when_both_ran)
    assert began.run() == 128 + signal.SIGTERM
    assert (tmp_path / "1").exists() is reloads
