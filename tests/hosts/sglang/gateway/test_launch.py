"""Servers that the gateway starts itself: with what, how they are awaited, and that none is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import typer
import yaml
from prometheus_client import generate_latest
from rich.console import Console
from typer.testing import CliRunner

from pdplugins.config import load
from pdplugins.errors import ConfigError, HostError
from pdplugins.gateway import command, process
from pdplugins.gateway.access import api_keys
from pdplugins.gateway.access.worker_keys import NONE
from pdplugins.gateway.engines.sglang import servers as servers_module
from pdplugins.gateway.engines.sglang.launch import Launch, plan
from pdplugins.gateway.engines.sglang.ranks import STORE, TRANSFERS_HERE
from pdplugins.gateway.engines.sglang.servers import Servers, Times
from pdplugins.gateway.metrics import GatewayMetrics
from tests.gateway.fake import settled
from tests.sockets import beyond_this_machine

pytestmark = pytest.mark.moderate

STAND_IN = Path(__file__).parent / "launched"
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `sglang` mean the one beside this file, on a machine without GPUs."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(STAND_IN), os.environ.get("PYTHONPATH")))))
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def config_file(folder: Path, *, dual: bool = False, prefill: int = 1, decode: int = 1) -> Path:
    path = folder / "config.yaml"
    deployment = {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}}
    path.write_text(yaml.safe_dump({"deployment": deployment, "sglang": {"dual_role": dual}}))
    return path


class Run:
    """A `pdplugins gateway --launch …` and its servers."""

    def __init__(self, folder: Path, launch: str, config: Path, *options: str, **environment: str) -> None:
        self.out, self.logs = folder / "out", folder / "logs"
        command = [Path(sys.executable).with_name("pdplugins"), "gateway", "--config", config, "--launch", launch]
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                [*command, "--port", "0", "--log-dir", self.logs, *options],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, "PYTHONUNBUFFERED": "1", "COLUMNS": "500"},
            )

    def said(self) -> str:
        return self.out.read_text()

    def started(self, name: str) -> list[dict[str, Any]]:
        """What the server called `name` was started with, each time."""
        with contextlib.suppress(FileNotFoundError):
            return started(self.logs / f"{name}.log")
        return []

    @property
    def pids(self) -> list[int]:
        return [row["pid"] for log in self.logs.glob("*.log") for row in self.started(log.stem)]

    def url(self) -> str:
        assert wait(lambda: "gateway on" in self.said()), self.said()
        return self._found(r"gateway on (http://[\d.:]+)")

    def admin_url(self) -> str:
        return self._found(r"workers: (http://[\d.:]+)/workers")

    def _found(self, pattern: str) -> str:
        found = re.search(pattern, self.said())
        assert found is not None
        return found[1]

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(launch: str, *options: str, environment: Mapping[str, str] | None = None, **more: Any) -> Run:
        runs.append(Run(tmp_path, launch, config_file(tmp_path, **more), *options, **(environment or {})))
        return runs[-1]

    yield start
    for one in runs:
        one.process.kill()
        one.process.wait()


def wait(condition: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_command_starts_servers_serves_over_them_and_stops_them(run: Callable[..., Run], tmp_path: Path) -> None:
    it = run("tiny --max-total-tokens 5")
    url = it.url()

    async def ask() -> dict[str, Any]:
        async with aiohttp.ClientSession() as client:
            async with client.post(url + "/generate", json={"input_ids": [1, 2]}) as answer:
                answered: dict[str, Any] = await answer.json()
            async with client.get(it.admin_url() + "/metrics") as page:
                assert 'server_events_total{event="ready",server="prefill-1"} 1.0' in await page.text()
        return answered

    answered = asyncio.run(ask())
    (prefill,), (decode,) = it.started("prefill-1"), it.started("decode-1")
    assert answered == {"by": "decode", "bootstrap_port": int(after(prefill, "--disaggregation-bootstrap-port"))}
    for role, server in (("prefill", prefill), ("decode", decode)):
        assert after(server, "--disaggregation-mode") == role
        assert after(server, "--model-path") == "tiny"
        assert server["argv"][-2:] == ["--max-total-tokens", "5"]
        env = server["env"]
        assert env.pop(STORE).startswith("file:///")
        ours = {"CUDA_VISIBLE_DEVICES": "", "PDPLUGINS_CONFIG": str(tmp_path / "config.yaml")}
        assert env == {**ours, **TRANSFERS_HERE, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    assert it.stop(signal.SIGTERM) == 0
    assert len(it.pids) == 2
    assert all(map(gone, it.pids))


def started(log: Path) -> list[dict[str, Any]]:
    """What the server with this log was started with, each time."""
    lines = log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def after(server: dict[str, Any], option: str) -> str:
    return str(server["argv"][server["argv"].index(option) + 1])


def test_servers_of_a_dual_role_config_take_every_role(run: Callable[..., Run]) -> None:
    it = run("tiny", dual=True, decode=2)
    it.url()
    for name in ("prefill-1", "decode-1", "decode-2"):
        (server,) = it.started(name)
        assert after(server, "--disaggregation-mode") == "decode"
        assert "--disaggregation-decode-enable-radix-cache" in server["argv"]
    assert it.stop(signal.SIGINT) == 0
    assert all(map(gone, it.pids))


def test_servers_beside_others_may_exchange_kv_cache_over_the_network(run: Callable[..., Run]) -> None:
    it = run("tiny", "--worker", "http://127.0.0.1:1", environment={"GLOO_SOCKET_IFNAME": "eth7"})
    it.url()
    env = it.started("prefill-1")[0]["env"]
    assert {env[name] for name in TRANSFERS_HERE} == {None}
    assert env["GLOO_SOCKET_IFNAME"] == "eth7", "who says so gets it"
    assert it.stop(signal.SIGINT) == 0


def test_a_server_that_dies_at_its_start_is_one_clear_line_and_no_server_stays(run: Callable[..., Run]) -> None:
    it = run("broken")
    assert it.process.wait(DEADLINE_S) == 2
    wrong = it.said().splitlines()[-1]
    assert "decode-1 exited with code 1 at its start: " in wrong
    assert "OSError: there is no model broken" in wrong
    assert str(it.logs / "decode-1.log") in wrong
    assert all(map(gone, it.pids))


def test_ctrl_c_while_servers_start_stops_them(run: Callable[..., Run]) -> None:
    it = run("slow")
    assert wait(lambda: len(it.pids) == 2), it.said()
    assert it.stop(signal.SIGINT) == 0
    assert all(map(gone, it.pids))


def test_no_server_outlives_a_gateway_that_is_killed(run: Callable[..., Run]) -> None:
    it = run("tiny")
    it.url()
    it.stop(signal.SIGKILL)
    assert len(it.pids) == 2
    assert wait(lambda: all(map(gone, it.pids)))


@contextlib.asynccontextmanager
async def servers(folder: Path, launch: str, **more: Any) -> AsyncIterator[tuple[Servers, GatewayMetrics]]:
    path, metrics = config_file(folder), GatewayMetrics()
    wanted = Launch.parse(launch)
    times = Times(**{"ready_s": DEADLINE_S, **more})
    mine = Servers(
        plan(load(path), wanted),
        wanted,
        path,
        dual=False,
        logs=folder / "logs",
        metrics=metrics,
        times=times,
    )
    try:
        yield mine, metrics
    finally:
        await mine.stop(5.0)


def test_a_server_that_dies_later_starts_anew_with_another_bootstrap_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays at its address, so that the gateway finds it again."""

    async def work() -> None:
        async with servers(tmp_path, "tiny", restart_s=0.05) as (mine, metrics):
            await mine.start(Console(quiet=True))
            log = tmp_path / "logs" / "decode-1.log"
            os.kill(started(log)[0]["pid"], signal.SIGKILL)
            assert await settled(lambda: len(started(log)) == 2, DEADLINE_S)
            one, other = started(log)
            assert after(one, "--port") == after(other, "--port")
            ports = {after(server, "--disaggregation-bootstrap-port") for server in (one, other)}
            assert len(ports) == 2
            assert one["env"][STORE] != other["env"][STORE]
            assert b'server_events_total{event="died",server="decode-1"} 1.0' in generate_latest(metrics.registry)

    asyncio.run(work())
    assert "decode-1" in caplog.text
    assert "was killed by SIGKILL" in caplog.text


def test_servers_that_never_serve_are_named(tmp_path: Path) -> None:
    async def work() -> None:
        async with servers(tmp_path, "slow", ready_s=0.1) as (mine, _):
            with pytest.raises(HostError, match=r"no answer after .* from prefill-1 .*, decode-1 .*--launch-s"):
                await mine.start(Console(quiet=True))

    asyncio.run(work())


def test_a_server_that_hangs_is_killed_and_started_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It served; then its process is stopped, and the gateway's polls get no answer. One that starts has more time."""
    hung: set[str] = set()

    async def work() -> None:
        async with servers(tmp_path, "tiny", restart_s=0.05, hang_s=0.3) as (mine, metrics):
            await mine.start(Console(quiet=True))
            log = tmp_path / "logs" / "decode-1.log"
            (first,) = started(log)
            watch = asyncio.create_task(mine.watch(lambda url: url not in hung))
            await asyncio.sleep(2 * servers_module.LOOK_S)
            os.kill(first["pid"], signal.SIGSTOP)
            hung.add(f"http://127.0.0.1:{after(first, '--port')}")
            assert await settled(lambda: len(started(log)) == 2, DEADLINE_S)
            await asyncio.sleep(3 * servers_module.LOOK_S)
            assert len(started(log)) == 2
            assert b'server_events_total{event="hung",server="decode-1"} 1.0' in generate_latest(metrics.registry)
            watch.cancel()
            assert gone(first["pid"])

    asyncio.run(work())
    assert "decode-1" in caplog.text
    assert "does not answer, though its process runs; killing it" in caplog.text


KEYS = {"PDPLUGINS_WORKER_KEY": "the-key-of-all-servers", "PDPLUGINS_WORKER_ADMIN_KEY": "the-key-of-their-admin"}


def test_no_secret_gets_into_anything_that_anyone_reads(run: Callable[..., Run], tmp_path: Path) -> None:
    """Command lines, logs of gateway and servers, pages, answers, errors, metrics and the decision log."""
    file = tmp_path / "keys"
    alice, root = (api_keys.new_key(file, name, admin=name == "root") for name in ("alice", "root"))
    log = tmp_path / "decisions.jsonl"
    it = run(*("tiny", "--api-keys", str(file), "--decision-log", str(log), "--access-log"), environment=KEYS)
    url, seen = it.url(), []
    assert beyond_this_machine([it.process.pid, *it.pids]) == set()
    body = {"input_ids": [1, 2]}
    asked = [("POST", "/generate", alice, body), ("GET", f"/server_info?api_key={alice}", alice, None)]
    asked += [
        ("POST", "/generate", alice[:-1], body),
        ("GET", "/v1/models", root, None),
        ("GET", f"/{root}", root, None),
    ]
    asked += [("POST", "/generate", alice, {"input_ids": "api_key=" + alice}), ("POST", "/abort_request", root, {})]

    async def ask() -> None:
        async with aiohttp.ClientSession() as client:
            for method, path, key, data in asked:
                headers = {"Authorization": f"Bearer {key}"}
                async with client.request(method, url + path, json=data, headers=headers) as answer:
                    seen.append(await answer.text())
            assert json.loads(seen[0])["by"] == "decode"
            for page in ("/workers", "/metrics"):
                async with client.get(it.admin_url() + page) as answer:
                    assert answer.status == 200
                    seen.append(await answer.text())

    asyncio.run(ask())
    it.process.send_signal(signal.SIGHUP)
    assert wait(lambda: "read 2 keys" in it.said())
    os.kill(it.started("decode-1")[0]["pid"], signal.SIGKILL)
    assert wait(lambda: "was killed by SIGKILL" in it.said())
    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in (it.process.pid, it.started("prefill-1")[0]["pid"])]
    assert it.stop(signal.SIGTERM) == 0
    seen += [*lines, it.said(), log.read_text(), *(path.read_text() for path in it.logs.glob("*.log"))]
    for secret in (*KEYS.values(), alice, alice[:-1], root):
        assert not [text for text in seen if secret in text]
    assert any("server_args=Namespace(" in text and "api_key='***'" in text for text in seen)


def test_a_key_on_the_command_line_is_refused() -> None:
    for option in ("--api-key x", "--api-key=x", "--admin-api-key x"):
        with pytest.raises(ConfigError, match=r"leave out --(admin-)?api-key, since everyone can read") as caught:
            Launch.parse(f"tiny {option}")
        assert "=x" not in str(caught.value)


def test_logs_are_in_a_folder_that_only_this_user_may_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name cannot be known before, so nobody can plant a link there."""
    made = []

    def run(config: Any, sought: process.Sought, *rest: Any) -> None:
        assert sought.started is not None
        made.append(sought.started.logs)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(process, "run", run)
    app = typer.Typer()
    app.command()(command.gateway)
    for _ in range(2):
        assert CliRunner().invoke(app, ["--launch", "tiny"]).exit_code == 0
    assert len(set(made)) == 2
    assert [logs.stat().st_mode & 0o777 for logs in made] == [0o700] * 2
    assert all(logs.parent == tmp_path for logs in made)


def test_each_server_gets_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are visible, in order; as many as its options say."""
    config = load(config_file(tmp_path, decode=2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3,4,5,6,7,9")
    specs = plan(config, Launch.parse("m --tp 2"))
    assert [(spec.name, spec.gpus) for spec in specs] == [
        ("prefill-1", ("1", "3")),
        ("decode-1", ("4", "5")),
        ("decode-2", ("6", "7")),
    ]
    assert specs[1].environment(tmp_path, NONE)["CUDA_VISIBLE_DEVICES"] == "4,5"
    with pytest.raises(ConfigError, match="3 servers with 4 GPUs each need 12, and 7 are there"):
        plan(config, Launch.parse("m --tensor-parallel-size=2 --pp-size 2"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "name a model"),
        ("m 'a", "name a model"),
        ("m --model-path n", "leave out --model-path"),
        ("m --port=3", "leave out --port"),
        ("m --tp two", "invalid int"),
        ("--trust-remote-code m", "begin with the model"),
    ],
)
def test_launches_that_cannot_be(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Launch.parse(text)


def test_without_sglang_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HostError, match="pip install"):
        plan(load(config_file(tmp_path)), Launch("m"))


def test_a_gateway_without_servers_says_how_to_get_some() -> None:
    command = [Path(sys.executable).with_name("pdplugins"), "gateway"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--worker URL, or start some with --launch MODEL" in done.stderr
