"""Systems of two SGLang servers each. One runs at a time; the others are stopped, and take no cores."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.rig import load, servers
from benchmarks.rig.servers import Server
from pdplugins.processes.ports import free_ports

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[2]
UP_S = 120.0
PROBE = load.Ask(0.0, 16, 2)


class Front:
    """A router in a process of its own."""

    def __init__(self, name: str, command: Sequence[str], port: int, log: Path) -> None:
        self.name, self.url = name, f"http://{HOST}:{port}"
        with log.open("w") as out:
            self._process = subprocess.Popen(
                list(command), stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=_environment()
            )

    def signal(self, number: int) -> None:
        """Signal it and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """End it."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self._process.wait()


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


@dataclass
class Side:
    """Two servers and the routers in front of them."""

    name: str
    pair: list[Server]
    fronts: dict[str, Front] = field(default_factory=dict)
    admin_url: str = ""
    """Where its gateway serves metrics."""

    def pause(self) -> None:
        """Stop all of it where it is."""
        for one in (*self.fronts.values(), *self.pair):
            one.signal(signal.SIGSTOP)

    async def resume(self, front: Front) -> None:
        """Go on; return once `front` serves with both servers."""
        for one in (*self.pair, *self.fronts.values()):
            one.signal(signal.SIGCONT)
        await up(front.url)

    async def idle(self) -> None:
        """Return once no request is left on the servers."""
        deadline = time.monotonic() + UP_S
        async with aiohttp.ClientSession() as client:
            while time.monotonic() < deadline:
                if not any([await _busy(client, server) for server in self.pair]):
                    return
                await asyncio.sleep(0.2)
        raise TimeoutError(f"{self.name} still has requests")

    async def flush(self) -> None:
        """Empty the prefix caches of idle servers."""
        async with aiohttp.ClientSession() as client:
            for server in self.pair:
                async with client.post(server.url + "/flush_cache") as answer:
                    assert answer.status == 200, await answer.text()

    def stop(self) -> None:
        """End all of it."""
        for front in self.fronts.values():
            front.stop()
        for server in self.pair:
            server.signal(signal.SIGCONT)
        servers.stop(*self.pair)


async def _busy(client: aiohttp.ClientSession, server: Server) -> bool:
    async with client.get(server.url + "/v1/loads") as answer:
        loads = (await answer.json())["loads"]
    return any(one["num_running_reqs"] or one["num_waiting_reqs"] for one in loads)


async def up(url: str) -> None:
    """Return once an endpoint has answered a few requests one after the other."""
    good, deadline = 0, time.monotonic() + UP_S
    async with load.session() as client:
        while good < 4:
            heard = await load.send(client, url, PROBE, load.body(PROBE, random.Random()))
            good = good + 1 if heard.ttft_s is not None else 0
            if not good:
                await asyncio.sleep(0.3)
            if time.monotonic() > deadline:
                raise TimeoutError(url)


# --- the three --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where and with what servers run."""

    tree: Path
    model: Path
    folder: Path
    rust: str
    tokens: int
    """KV cache of a server."""

    def servers(self, name: str, *options: Sequence[str], **more: Any) -> list[Server]:
        """Start servers with these options each."""
        logs = [self.folder / f"{name}-{number}.log" for number in range(len(options))]
        pairs = zip(options, logs, strict=True)
        return [Server(self.tree, self.model, log, one, tokens=self.tokens, **more).start() for one, log in pairs]

    def front(self, name: str, command: Sequence[str]) -> Front:
        """Start a router; its port comes last on the command line."""
        port = free_ports(1)[0]
        return Front(name, [*command, "--host", HOST, "--port", str(port)], port, self.folder / f"{name}.log")

    def router(self, name: str, *options: str) -> Front:
        """Start SGLang's own router."""
        command = [self.rust, "-m", "sglang_router.launch_router", *options, "--log-level", "error"]
        return self.front(name, [*command, "--prometheus-port", str(free_ports(1)[0])])

    def gateway(self, config: Path, pair: Sequence[Server]) -> tuple[Front, str]:
        """Start the gateway over dual-role servers; return it, and where it serves its metrics."""
        program = str(Path(sys.executable).with_name("pdplugins"))
        workers = [part for server in pair for part in ("--worker", server.url)]
        admin = free_ports(1)[0]
        command = [program, "gateway", "--config", str(config), *workers, "--admin-port", str(admin)]
        return self.front("gateway", command), f"http://{HOST}:{admin}"


def colocated(place: Place) -> Side:
    """Two servers that do all of a request each."""
    return Side("co-located", place.servers("unified", (), ()))


def disaggregated(place: Place) -> Side:
    """One server that prefills, one that decodes."""
    return Side("PD", place.servers("stock", (*servers.STOCK, "prefill"), (*servers.STOCK, "decode")))


def fused(place: Place, config: Path) -> Side:
    """Two dual-role servers."""
    return Side("fusion", place.servers("dual", servers.DUAL, servers.DUAL, config=config))
