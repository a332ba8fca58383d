"""Door (c): our planner in its own process registers with Dynamo 1.4.2's gateway over gRPC, and stays registered."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.config import Config, load
from pdplugins.errors import ConfigError, HostError, PdpluginsError
from pdplugins.runtime.decision_reader import read
from pdplugins.runtime.planner import build_safe_planner
from pdplugins.runtime.replaying import verify
from pdplugins.testing import planner_view
from tests.programs import PDPLUGINS

pytestmark = pytest.mark.dynamo

external = pytest.importorskip("pdplugins.hosts.dynamo.doors.external")
guard = pytest.importorskip("pdplugins.hosts.dynamo.doors.guard")
proposer = pytest.importorskip("pdplugins.hosts.dynamo.doors.proposer")
grpc = pytest.importorskip("grpc")
pb = pytest.importorskip("dynamo.planner.plugins.proto.v1.plugin_pb2")
pbg = pytest.importorskip("dynamo.planner.plugins.proto.v1.plugin_pb2_grpc")

Make = Callable[..., Any]


@asynccontextmanager
async def plugin(
    config: Config,
    gateway: str,
    token: str = "s3cret-token",  # noqa: S107
    listen: str = "127.0.0.1:0",
    checks: Any = None,
    *,
    shadow: bool = False,
) -> AsyncIterator[asyncio.Task[None]]:
    """Our plugin, in the test's own loop."""
    service = external.ProposeService(lambda: proposer.Proposer(build_safe_planner(config), shadow=shadow), checks)
    stop = asyncio.Event()
    task = asyncio.create_task(external.serve(service, listen=listen, gateway=gateway, token=token, stop=stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait([task], timeout=60)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait as long as in production."""
    monkeypatch.setattr(external, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(external, "RETRY_S", (0.05, 0.1))


def test_it_waits_for_the_gateway_registers_and_its_answer_wins(
    config: Config, gateway: str, stock_with_gateway: Make
) -> None:
    async def story() -> None:
        async with plugin(config, gateway):
            await asyncio.sleep(0.3)  # the planner is not there yet
            planner = stock_with_gateway()
            await planner.start()
            await planner.until(planner.plugin)
            ours = planner.plugin()
            assert (ours.plugin_type, ours.priority, ours.execution_interval_seconds) == ("propose", 1, 5.0)
            assert [await planner.tick(rate) for rate in (25, 45, 0)] == [(3, 2), (5, 3), (1, 1)]
            await planner.until(lambda: ours.last_heartbeat_at > 0)
        assert planner.plugin() is None  # it said good-bye
        await planner.stop()

    asyncio.run(story())


def test_in_shadow_it_accepts_what_dynamo_decides(config: Config, gateway: str, stock_with_gateway: Make) -> None:
    async def story() -> None:
        planner = stock_with_gateway()
        await planner.start()
        async with plugin(config, gateway, shadow=True):
            await planner.until(planner.plugin)
            before = planner.pools
            assert [await planner.tick(rate) for rate in (25, 45)] == [before] * 2
        await planner.stop()

    asyncio.run(story())


def test_it_registers_again_when_the_planner_has_restarted(
    config: Config, gateway: str, stock_with_gateway: Make
) -> None:
    async def story() -> None:
        async with plugin(config, gateway):
            before = stock_with_gateway()
            await before.start()
            await before.until(before.plugin)
            await before.stop()
            after = stock_with_gateway()
            await after.start()
            await after.until(after.plugin)
            assert await after.tick(25) == (3, 2)
        await after.stop()

    asyncio.run(story())


def test_a_planner_that_forgot_us_is_told_again(config: Config, gateway: str, stock_with_gateway: Make) -> None:
    """As when a planner restarts between two of our heartbeats."""

    async def story() -> None:
        planner = stock_with_gateway()
        await planner.start()
        async with plugin(config, gateway):
            await planner.until(planner.plugin)
            await planner.engine._orchestrator._registry.unregister("pdplugins")
            assert planner.plugin() is None
            await planner.until(planner.plugin)
            assert await planner.tick(25) == (3, 2)
        await planner.stop()

    asyncio.run(story())


def test_a_planner_that_is_busy_keeps_us(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's stands still while it waits for Prometheus. Registered again in its tick, it would decide without us."""
    monkeypatch.setattr(external, "CALL_S", 0.2)
    calls = []

    class Registry(pbg.PluginRegistryServicer):
        async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802 - Dynamo's name
            calls.append("register")
            return pb.RegisterResponse(accepted=True)

        async def Heartbeat(self, request: Any, context: Any) -> Any:  # noqa: N802 - Dynamo's name
            calls.append("heartbeat")
            if calls.count("heartbeat") in (2, 3):
                await asyncio.sleep(60)
            return pb.HeartbeatResponse(ok=True)

        async def Unregister(self, request: Any, context: Any) -> Any:  # noqa: N802 - Dynamo's name
            calls.append(request.reason)
            return pb.UnregisterResponse(ok=True)

    async def story() -> None:
        server = grpc.aio.server()
        pbg.add_PluginRegistryServicer_to_server(Registry(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with plugin(config, f"grpc://127.0.0.1:{port}"), asyncio.timeout(30):
            while calls.count("heartbeat") < 5:
                await asyncio.sleep(0.01)
        await server.stop(0)

    asyncio.run(story())
    assert [call for call in calls if call != "heartbeat"] == ["register", "graceful_shutdown"]


@pytest.mark.parametrize(
    ("token", "transport", "message"),
    [
        ("wrong", {}, r"refused us: auth_failed; give the token with --token-file or PDPLUGINS_TOKEN"),
        (
            "s3cret-token",
            {"allow_insecure_grpc": False},
            r"refused us: transport_build_failed.*; set .*allow_insecure_grpc",
        ),
    ],
)
def test_a_refusal_is_one_line_with_the_fix(
    config: Config, gateway: str, stock_with_gateway: Make, token: str, transport: dict[str, Any], message: str
) -> None:
    async def story() -> None:
        planner = stock_with_gateway(**transport)
        await planner.start()
        async with plugin(config, gateway, token) as task:
            await asyncio.wait([task], timeout=60)
            assert planner.plugin() is None
        await planner.stop()
        with pytest.raises(HostError, match=message):
            task.result()

    asyncio.run(story())


def test_over_a_unix_socket_only_this_user_reaches_it(
    config: Config, gateway: str, stock_with_gateway: Make, tmp_path: Path
) -> None:
    """Dynamo 1.4's planner connects to it, since it hands gRPC whatever follows ``grpc://``."""
    socket = tmp_path / "planner.sock"

    async def story() -> None:
        planner = stock_with_gateway()
        await planner.start()
        async with plugin(config, gateway, listen=f"unix://{socket}"):
            await planner.until(planner.plugin)
            assert planner.plugin().endpoint == f"grpc://unix:{socket}"
            assert socket.stat().st_mode & 0o777 == 0o600
            assert await planner.tick(25) == (3, 2)
        await planner.stop()

    asyncio.run(story())


def test_no_proxy_hears_the_token(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names one, and the gateway is on this machine."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    class Registry(pbg.PluginRegistryServicer):
        def __init__(self) -> None:
            self.tokens: list[str] = []

        async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802 - Dynamo's name
            self.tokens.append(request.auth_token)
            return pb.RegisterResponse(accepted=True)

    async def story() -> None:
        server, registry = grpc.aio.server(), Registry()
        pbg.add_PluginRegistryServicer_to_server(registry, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with plugin(config, f"grpc://127.0.0.1:{port}"):
            async with asyncio.timeout(30):
                while not registry.tokens:
                    await asyncio.sleep(0.01)
        await server.stop(0)
        assert registry.tokens[0] == "s3cret-token"

    asyncio.run(story())


CALLS = {
    "Propose": (pbg.ProposePluginStub, pb.ProposeStageRequest()),
    "Bootstrap": (pbg.PluginLifecycleStub, pb.BootstrapRequest()),
    "Reset": (pbg.PluginLifecycleStub, pb.ResetRequest()),
}


def test_a_reset_that_cannot_build_a_planner_leaves_the_old_one(config: Config) -> None:
    """Its config may have been edited meanwhile."""
    built = [proposer.Proposer(build_safe_planner(config)) for _ in range(2)]
    closed = []
    for one in built:
        one.close = lambda one=one: closed.append(one)
    ready = list(built)
    service = external.ProposeService(lambda: ready.pop(0))
    stranger = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1")

    async def story() -> None:
        await service.Reset(pb.ResetRequest(), stranger)
        assert service.proposer is built[1]
        assert closed == [built[0]]
        with pytest.raises(IndexError):
            await service.Reset(pb.ResetRequest(), stranger)
        assert service.proposer is built[1]
        assert closed == [built[0]]

    asyncio.run(story())


def test_a_reset_goes_on_from_what_was_learned_and_a_bad_config_changes_nothing(tmp_path: Path) -> None:
    config, log, state = tmp_path / "c.yaml", tmp_path / "log.jsonl", tmp_path / "state.json"
    config.write_text("planner: dopd\n")

    def build() -> Any:
        return proposer.Proposer(proposer.door_planner(load(config), log, shadow=False, state=state))

    service = external.ProposeService(build)
    stranger = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1")
    for tick in range(10):
        service.proposer._planner.decide(planner_view(5.0 * tick, 20.0))
    config.write_text("router: arrow\n")
    with pytest.raises(ConfigError, match="none chosen"):
        asyncio.run(service.Reset(pb.ResetRequest(), stranger))
    service.proposer._planner.decide(planner_view(50.0, 20.0))
    assert [len(run.entries) for run in read(log)] == [11]
    config.write_text("planner: dopd\n")
    learned = service.proposer._planner.policy.state()
    asyncio.run(service.Reset(pb.ResetRequest(), stranger))
    assert service.proposer._planner.policy.state()["levels"] == learned["levels"]
    assert [run.header["planner"] for run in read(log)] == ["dopd", "dopd"]
    service.proposer.close()


def test_a_reset_whose_signals_have_no_folder_begins_no_run_in_the_log(tmp_path: Path) -> None:
    """The planner that goes on is still in the run before."""
    config, log = tmp_path / "c.yaml", tmp_path / "log.jsonl"
    config.write_text("planner: dopd\n")
    options = external.Options(config=str(config), listen="127.0.0.1:0", decision_log=log)
    service = external.ProposeService(lambda: external.build(options))
    config.write_text(f"planner: dopd\nsignals: {{folder: {config}}}\n")
    with pytest.raises(ConfigError, match=r"signals\.folder"):
        asyncio.run(service.Reset(pb.ResetRequest(), SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1")))
    service.proposer._planner.decide(planner_view(5.0, 20.0))
    service.proposer.close()
    assert [len(run.entries) for run in read(log)] == [1]


@pytest.mark.parametrize("call", CALLS)
def test_a_stranger_may_call_nothing(config: Config, call: str) -> None:
    """With a key, only who has it may; with networks, only who is in one; and the planner keeps what it knows."""
    stub, request = CALLS[call]
    key = "a-key-of-some-length"
    tries = [
        (guard.Guard(key), [], grpc.StatusCode.UNAUTHENTICATED),
        (guard.Guard(key), [("authorization", f"Bearer {key[:-1]}")], grpc.StatusCode.UNAUTHENTICATED),
        (guard.Guard(key), [("authorization", key)], grpc.StatusCode.UNAUTHENTICATED),
        (guard.Guard(key), [("authorization", f"Bearer {key}")], grpc.StatusCode.OK),
        (guard.Guard(None, [guard.network("10.0.0.0/8")]), [], grpc.StatusCode.PERMISSION_DENIED),
        (guard.Guard(None, [guard.network("10.0.0.0/8"), guard.network("127.0.0.1")]), [], grpc.StatusCode.OK),
        (guard.Guard(key, [guard.network("::1")]), [("authorization", f"Bearer {key}")], None),
    ]

    async def story(checks: Any, metadata: list[tuple[str, str]]) -> grpc.StatusCode:
        where: asyncio.Future[str] = asyncio.Future()
        stop = asyncio.Event()
        service = external.ProposeService(lambda: proposer.Proposer(build_safe_planner(config)), checks)
        before = service.proposer
        task = asyncio.create_task(external.serve(service, listen="127.0.0.1:0", stop=stop, ready=where.set_result))
        async with grpc.aio.insecure_channel((await where).removeprefix("grpc://")) as channel:
            answer = getattr(stub(channel), call)(request, metadata=metadata)
            code = await answer.code()
        assert (service.proposer is before) or (call, code) == ("Reset", grpc.StatusCode.OK)
        stop.set()
        await task
        return code

    for checks, metadata, expected in tries:
        code = asyncio.run(story(checks, metadata))
        assert code is (expected or grpc.StatusCode.PERMISSION_DENIED)


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        (":99999", "--listen: ':99999' is no HOST:PORT"),
        ("127.0.0.1:99999", "--listen: '127.0.0.1:99999' is no HOST:PORT"),
        (":9099", "--listen: ':9099' is no HOST:PORT"),
        ("0.0.0.0:0", "does not say where the planner finds us; add --advertise"),
        ("unix:///no/such/folder/p.sock", "cannot listen on unix:///no/such/folder/p.sock"),
    ],
)
def test_where_to_listen_is_said_in_full(config: Config, listen: str, message: str) -> None:
    async def story() -> None:
        service = external.ProposeService(lambda: proposer.Proposer(build_safe_planner(config)))
        await external.serve(service, listen=listen, gateway="unix:///x", stop=asyncio.Event())

    with pytest.raises(PdpluginsError, match=message):
        asyncio.run(story())


def test_an_endpoint_that_cannot_be_is_one_line(config: Config) -> None:
    async def story(listen: str, gateway: str) -> None:
        service = external.ProposeService(lambda: proposer.Proposer(build_safe_planner(config)))
        await external.serve(service, listen=listen, gateway=gateway, stop=asyncio.Event())

    with pytest.raises(HostError, match=r"^--listen: cannot listen on 192\.0\.2\.1:1 .* no address of this machine"):
        asyncio.run(story("192.0.2.1:1", "unix:///x"))

    async def beside_another_planner() -> None:
        other = grpc.aio.server(options=external.LIMITS)
        port = other.add_insecure_port("127.0.0.1:0")
        await other.start()
        try:
            await story(f"127.0.0.1:{port}", "unix:///x")
        finally:
            await other.stop(None)

    with pytest.raises(HostError, match=r"cannot listen on 127\.0\.0\.1:\d+; give a free --listen"):
        asyncio.run(beside_another_planner())
    for gateway in ("http://x", "unix:"):
        with pytest.raises(HostError, match=rf"--gateway {gateway}: give unix:///path"):
            asyncio.run(story("127.0.0.1:0", gateway))
    for gateway in ("grpc://", "grpc://:9098", "grpc://planner", "grpc://planner:99999"):
        with pytest.raises(ConfigError, match=r"--gateway: '.*' is no HOST:PORT"):
            asyncio.run(story("127.0.0.1:0", gateway))


@pytest.mark.parametrize(
    ("options", "open_"),
    [
        ({"listen": "127.0.0.1:9099"}, False),
        ({"listen": "[::1]:9099"}, False),
        ({"listen": "unix:///run/p.sock"}, False),
        ({"listen": "0.0.0.0:9099"}, True),
        ({"listen": "planner:9099"}, True),
        ({"listen": "0.0.0.0:9099", "key": "some-long-key"}, False),
        ({"listen": "0.0.0.0:9099", "allow_from": (guard.network("10.0.0.0/8"),)}, False),
    ],
)
def test_a_planner_that_anyone_may_call_does_not_start(options: dict[str, Any], open_: bool) -> None:
    assert external.open_to_all(external.Options(config="dopd", **options)) is open_
    if open_:
        with pytest.raises(ConfigError, match=r"say who may call with --allow-from or --key-file"):
            external.run(external.Options(config="dopd", **options))


@pytest.mark.parametrize(
    ("gateway", "beyond"),
    [
        ("unix:///run/registry.sock", False),
        ("grpc://127.0.0.1:9098", False),
        ("grpc://[::1]:9098", False),
        ("grpc://localhost:9098", False),
        ("grpc://planner:9098", True),
        ("grpc://10.0.0.1:9098", True),
    ],
)
def test_a_token_that_leaves_this_machine_in_plain_text_is_said(
    gateway: str, beyond: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr(external, "serve", nothing)
    external.run(external.Options(config="dopd", listen="127.0.0.1:0", gateway=gateway, token="some-long-token"))
    assert ("in plain text" in caplog.text) is beyond
    assert "some-long-token" not in caplog.text


def test_dynamo_has_no_credentials_for_calls_of_plugins_as_the_page_says() -> None:
    """Where a later Dynamo has some, use them, and change docs/security.md."""
    for module, line in (("transport.grpc_remote", 67), ("orchestrator.engine_adapter", 438)):
        source = inspect.getsource(importlib.import_module(f"dynamo.planner.plugins.{module}")).splitlines()
        said = "".join(source[line - 1 : line + 4])
        assert "insecure_channel(" in said or "start_gateway_server(" in said
        assert "credentials" not in said


@pytest.fixture
def command(config_data: dict[str, Any], tmp_path: Path, gateway: str) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start `pdplugins planner` as an operator would; whatever is still there afterwards is killed."""
    (tmp_path / "c.yaml").write_text(json.dumps({**config_data, "planner": "dopd", "deployment": {"gpu_budget": 16}}))
    running: list[subprocess.Popen[str]] = []
    options = ["--config", f"{tmp_path}/c.yaml", "--listen", "127.0.0.1:0", "--gateway", gateway]

    def start() -> subprocess.Popen[str]:
        running.append(
            subprocess.Popen(
                [*PDPLUGINS, "planner", *options, "--decision-log", f"{tmp_path}/d.jsonl"],
                env={**os.environ, "PDPLUGINS_TOKEN": "s3cret-token"},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_killed_it_leaves_the_planner_holding_and_a_new_process_takes_over(
    command: Callable[[], subprocess.Popen[str]], stock_with_gateway: Make, tmp_path: Path
) -> None:
    async def story() -> None:
        planner = stock_with_gateway()
        await planner.start()
        process = command()
        await planner.until(planner.plugin)
        for _ in range(3):
            held = await planner.tick(12, isl=3000, osl=300)
        assert held[0] > 1
        process.kill()
        await asyncio.to_thread(process.wait)
        assert [await planner.tick(0) for _ in range(3)] == [held] * 3
        endpoint = planner.plugin().endpoint
        process = command()
        await planner.until(lambda: planner.plugin() and planner.plugin().endpoint != endpoint)
        taken_over = await planner.tick(12, isl=3000, osl=300)
        plan = read(tmp_path / "d.jsonl")[1].entries[0].plan
        assert taken_over == (plan.prefill, plan.decode)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
        assert planner.plugin() is None
        await planner.stop()

    asyncio.run(story())
    runs = read(tmp_path / "d.jsonl")
    assert len(runs) == 2
    assert [verify(run) for run in runs] == [None, None]


def alone(*options: str) -> subprocess.Popen[str]:
    """Start `pdplugins planner` with its standard error going to us, whatever the environment says of logs."""
    words = ["planner", "--listen", "127.0.0.1:0", *options]
    env = {key: value for key, value in os.environ.items() if key != "DYN_SDK_DISABLE_ANSI_LOGGING"}
    return subprocess.Popen([*PDPLUGINS, *words], stderr=subprocess.PIPE, text=True, env={**env, "DYN_LOG": "info"})


def test_a_gateway_that_cannot_be_is_refused_before_anything_listens() -> None:
    process = alone("--gateway", "foo")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said == "pdplugins: --gateway foo: give unix:///path/to/registry.sock or grpc://host:port\n"


def test_a_log_that_goes_to_a_file_has_no_colours() -> None:
    process = alone()
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
    finally:
        process.kill()
        process.communicate()
    assert "planner of dopd answers at grpc://127.0.0.1:" in first
    assert "\x1b" not in first
