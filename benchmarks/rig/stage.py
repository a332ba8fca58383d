"""Two dual-role servers, a gateway in a process of its own, peers that misbehave; and a count of all that they hold."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from benchmarks.rig import named, servers, tiny_model
from pdplugins.processes.ports import free_ports

ROOT = Path(__file__).parents[2]
"""Gateway and servers run the code that is here, also where another one is installed."""
LINK = "link-down"
PEER_S = 8
"""After this long SGLang gives up a peer that does not answer."""
SGLANG_TIMES = {
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": str(PEER_S),
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(PEER_S),
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT": str(PEER_S),
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2",
    "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "2",
}
DEADLINE_S = 60.0
"""The gateway's own time-out: whatever happens, a request has its answer or a clear error then."""
FREED_AT_ONCE = {"RIG_KV_FREED_AT_ONCE": "1", "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "0"}
"""A server then frees the KV cache of an aborted transfer at once, though the other one may still write to it."""
TOKENS = 32768
"""KV cache of a server."""
OPTIONS = ["--timeout-s", str(DEADLINE_S), "--first-token-s", "12", "--silence-s", "12", "--poll-s", "0.2"]
CONFIG = {"sglang": {"dual_role": True}, "router": "named"}
COMPLAINTS = ("Scheduler hit an exception", "leak detected", "bootstrap_thread died")
KEEP_ALIVE_S = 6
"""SGLang closes a connection on which nothing comes after 5 s, or some time later."""
GRACE_S = 5.0
"""What an answer may take beyond its deadline on a busy machine."""


class GatewayProcess:
    """``pdplugins gateway`` with the router of `named`, installed as a plugin would be."""

    def __init__(self, folder: Path, workers: list[str]) -> None:
        self.workers = workers
        self.port, self._admin_port = free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self._admin_port}"
        self._folder = folder
        self.log = folder / f"gateway-{self.port}.log"

    async def start(self) -> None:
        """Start it; return once it serves."""
        facts = self._folder / "named_router-1.dist-info"
        facts.mkdir(exist_ok=True)
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: named-router\nVersion: 1\n")
        (facts / "entry_points.txt").write_text("[pdplugins]\nnamed = named_router\n")
        shutil.copy(named.__file__, self._folder / "named_router.py")
        config = self._folder / "gateway.yaml"
        config.write_text(yaml.safe_dump(CONFIG))
        program = Path(sys.executable).with_name("pdplugins")
        ports = ["--port", str(self.port), "--admin-port", str(self._admin_port)]
        command = [str(program), "gateway", "--config", str(config), *ports, *OPTIONS]
        with self.log.open("a") as out:
            self.process = subprocess.Popen(
                [*command, *(part for worker in self.workers for part in ("--worker", worker))],
                env=os.environ | {"PYTHONPATH": f"{self._folder}{os.pathsep}{ROOT}"},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        async with aiohttp.ClientSession() as client:
            await until(lambda: _ok(client, self.url + "/health"), 60, f"no gateway, see {self.log}")

    def kill(self) -> None:
        """End it without a chance to clean up."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it in an orderly way."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


class Impostor:
    """A peer that looks like a dual-role server and does not do its part: its answers never come.

    :param bootstrap: ``hole`` accepts connections and never answers; ``refuse`` has nobody there; a port number is
        that of another server, which knows nothing of the request: its other half never comes.
    """

    def __init__(self, bootstrap: str | int) -> None:
        self._bootstrap = bootstrap
        self.port = free_ports(1)[0]
        self.bootstrap_port = bootstrap if isinstance(bootstrap, int) else free_ports(1)[0]

    async def start(self) -> None:
        """Serve."""
        app = web.Application()
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_post("/abort_request", self._loads)
        app.router.add_post("/generate", self._never)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self._hole: asyncio.Server | None = None
        if self._bootstrap == "hole":
            self._hole = await asyncio.start_server(self._swallow, "127.0.0.1", self.bootstrap_port)

    @property
    def id(self) -> str:
        """Its name for routers."""
        return f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """End."""
        if self._hole is not None:
            self._hole.close()
        await self._runner.cleanup()

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"disaggregation_mode": "decode", "disaggregation_bootstrap_port": self.bootstrap_port}
        )

    async def _loads(self, _: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": 0, "max_total_num_tokens": 100_000}]})

    async def _never(self, request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(10 * DEADLINE_S)
        raise AssertionError

    @staticmethod
    async def _swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(4096):
                pass
        writer.close()


@dataclass
class Stage:
    """What faults are made on."""

    a: servers.Server
    b: servers.Server
    unified: servers.Server
    gateway: GatewayProcess
    impostors: Mapping[str, Impostor]
    client: aiohttp.ClientSession
    link: Path
    """While this file is there, the link between the servers is down."""

    @contextmanager
    def link_down(self) -> Iterator[None]:
        """Let KV cache be under way until the end of this context."""
        self.link.touch()
        try:
            yield
        finally:
            self.link.unlink()

    @asynccontextmanager
    async def joined(self, kind: str) -> AsyncIterator[None]:
        """Let the gateway have an impostor among its workers for a while."""
        impostor = self.impostors[kind]

        async def known() -> bool:
            return any(worker["id"] == impostor.id and worker["alive"] for worker in await self.workers())

        await impostor.start()
        try:
            await until(known, 30, f"the gateway does not see the impostor {kind}")
            yield
        finally:
            await impostor.stop()

    async def workers(self) -> list[dict[str, Any]]:
        """Return the workers as the gateway sees them."""
        async with self.client.get(self.gateway.admin_url + "/workers") as answer:
            workers: list[dict[str, Any]] = await answer.json()
            return workers

    @property
    def pair(self) -> tuple[servers.Server, servers.Server]:
        """The two servers under test."""
        return self.a, self.b

    async def right(self, ids: list[int], count: int) -> list[int]:
        """Return what a server that does everything alone answers."""
        sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": sampling}
        async with self.client.post(self.unified.url + "/generate", json=body) as answer:
            tokens: list[int] = (await answer.json())["output_ids"]
            return tokens

    async def load(self, server: servers.Server) -> dict[str, int]:
        """Return every count of requests and tokens that a server reports."""
        async with self.client.get(server.url + "/v1/loads", timeout=aiohttp.ClientTimeout(total=10)) as answer:
            load = (await answer.json())["loads"][0]
        counts = {name: count for name, count in load["disaggregation"].items() if name.endswith("_reqs")}
        names = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")
        return {name: int(count) for name, count in (counts | {name: load[name] for name in names}).items()}

    async def idle(self) -> bool:
        """Tell whether no request is left anywhere, on the servers or in the books of the gateway."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            if any([any((await self.load(server)).values()) for server in self.pair]):
                return False
            own = [
                worker for worker in await self.workers() if worker["id"] in {address(server) for server in self.pair}
            ]
            books = [worker["load"][name] for worker in own for name in ("queued_requests", "running_requests")]
            return all(worker["alive"] for worker in own) and not any(books)
        return False

    async def settled(self, within_s: float = 120.0) -> None:
        """Return once nothing is left of any request. Raises TimeoutError with what is left."""
        await until(self.idle, within_s, "not idle", self._left)

    async def _left(self) -> str:
        said = []
        for server in self.pair:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                said.append(f"{address(server)}: {await self.load(server)}")
        return "; ".join([*said, str(await self.workers())])

    async def held(self) -> dict[str, dict[str, int]]:
        """Count what every process holds, once all is idle, connections are closed and the prefix caches are empty."""
        await self.settled()
        await self._quiet()
        counts: dict[str, dict[str, int]] = {}
        for name, server in (("a", self.a), ("b", self.b)):
            async with self.client.post(server.url + "/flush_cache") as answer:
                assert answer.status == 200, await answer.text()
            load = await self.load(server)
            used = load.pop("num_used_tokens")
            counts[name] = {"kv_tokens": used, "requests": sum(load.values())} | processes(server.process.pid)
        return counts | {"gateway": processes(self.gateway.process.pid)}

    async def _quiet(self) -> None:
        """Return once no connection is kept open for requests that may come: their number falls no more."""
        counts: list[int] = []

        async def quiet() -> bool:
            pids = [self.gateway.process.pid, *(server.process.pid for server in self.pair)]
            counts.append(sum(processes(pid)["files"] for pid in pids))
            return len(counts) > KEEP_ALIVE_S and min(counts[-KEEP_ALIVE_S:]) >= counts[-KEEP_ALIVE_S - 1]

        await until(quiet, 60, "connections come and go", pause_s=1)

    def complaints(self) -> list[str]:
        """Return what the servers' logs hold that no fault may cause: a scheduler that fails, a leak that it found."""
        return [
            f"{log.name}: {line.strip()[:200]}"
            for server in self.pair
            for log in server.log.parent.glob(f"{server.log.stem}*.log")
            for line in log.read_text(errors="replace").splitlines()
            if any(complaint in line for complaint in COMPLAINTS)
        ]


def address(server: servers.Server) -> str:
    """Return the name of a server for routers."""
    return f"127.0.0.1:{server.port}"


@asynccontextmanager
async def stage(tree: Path, folder: Path, more: Mapping[str, str] | None = None) -> AsyncIterator[Stage]:
    """Start everything; afterwards nothing is left of it. :param more: environment of the two servers."""
    model = tiny_model.make(folder / "model")
    dual = folder / "dual.yaml"
    dual.write_text(yaml.safe_dump({"sglang": {"dual_role": True}}))
    path = os.pathsep.join(map(str, (servers.HERE / "stubs", tree, ROOT)))
    env = SGLANG_TIMES | {"PYTHONPATH": path, "RIG_LINK_DOWN": str(folder / LINK)} | dict(more or {})
    a, b = (servers.Server(tree, model, folder / f"{name}.log", servers.DUAL, dual, env, TOKENS) for name in "ab")
    unified = servers.Server(tree, model, folder / "unified.log", tokens=TOKENS)
    started = (a, b, unified)
    try:
        for server in started:
            server.start()
        for server in started:
            server.wait()
        async with on_servers(a, b, unified, folder) as it:
            yield it
    finally:
        servers.stop(*(server for server in started if hasattr(server, "process")))


@asynccontextmanager
async def on_servers(
    a: servers.Server, b: servers.Server, unified: servers.Server, folder: Path
) -> AsyncIterator[Stage]:
    """Put a gateway and its false peers before servers that run."""
    impostors = {"hole": Impostor("hole"), "refuse": Impostor("refuse"), "half": Impostor(a.bootstrap_port)}
    urls = [a.url, b.url, *(f"http://{impostor.id}" for impostor in impostors.values())]
    gateway = GatewayProcess(folder, urls)
    try:
        await gateway.start()
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as client:
            yield Stage(a, b, unified, gateway, impostors, client, folder / LINK)
    finally:
        gateway.stop()


GROWS = ("kv_tokens", "requests", "threads", "files", "processes")
"""What must not grow; memory is counted too, and grows with SGLang's own caches."""
SLACK = {"files": 8, "threads": 2}
"""Connections and pool threads that come and go."""


def grown(before: Mapping[str, int], after: Mapping[str, int], names: Sequence[str] = GROWS) -> dict[str, str]:
    """Return what one process, or one server, holds more of."""
    both = {name: (before[name], after[name]) for name in names if name in before}
    return {name: f"{was} to {now}" for name, (was, now) in both.items() if now > was + SLACK.get(name, 0)}


# --- processes --------------------------------------------------------------------------------------------------------


def processes(session: int) -> dict[str, int]:
    """Count threads, open files and resident memory of all processes of a session."""
    pids = [pid for pid in _numbers(Path("/proc")) if _session(pid) == session]
    return {
        "threads": sum(len(_numbers(Path(f"/proc/{pid}/task"))) for pid in pids),
        "files": sum(len(_numbers(Path(f"/proc/{pid}/fd"))) for pid in pids),
        "rss_mib": sum(_rss_bytes(pid) for pid in pids) // 2**20,
        "processes": len(pids),
    }


def _numbers(folder: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()]
    return []


def _session(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    return None


def _rss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def scheduler_of(server: servers.Server) -> int:
    """Return the process of a server that has the engine."""
    for pid in _numbers(Path("/proc")):
        with contextlib.suppress(OSError):
            if _session(pid) == server.process.pid and b"sglang::schedul" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise LookupError(f"no scheduler process in session {server.process.pid}")


def send(server: servers.Server, number: signal.Signals, *, engine_only: bool = False) -> None:
    """Send a signal to all processes of a server, or to that of its engine."""
    if engine_only:
        os.kill(scheduler_of(server), number)
    else:
        server.signal(number)


async def until(
    condition: Callable[[], Awaitable[bool]],
    within_s: float,
    why: str,
    detail: Callable[[], Awaitable[str]] | None = None,
    pause_s: float = 0.1,
) -> None:
    """Return once `condition` holds. Raises TimeoutError that says why not."""
    deadline = time.monotonic() + within_s
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{why}: {await detail() if detail else ''}")
        await asyncio.sleep(pause_s)


async def _ok(client: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with client.get(url) as answer:
            return answer.status == 200
    return False


def last_event(data: bytes) -> dict[str, Any]:
    """Return the last event of a stream that has come to its end; nothing of one that has not."""
    *events, done, rest = data.split(b"\n\n")
    if (done, rest) != (b"data: [DONE]", b"") or not events:
        return {}
    said: dict[str, Any] = json.loads(events[-1].removeprefix(b"data: "))
    return said
