"""The cost of our router in Dynamo's request path, against Dynamo's own frontend on the same workers, interleaved.

    python benchmarks/dynamo_router.py [--rounds 5] [--turns 300] [--result dynamo-router]

Two prefill and two decode mocker workers answer as fast as they can. There are four ways to them:

* native: a frontend routes to them itself, in turn;
* ours: a frontend sends everything through our router, which does the same (`round-robin`);
* bare: the same, but the router does nothing except to pass on what it gets (`rig/bare.py`). What it costs is the
  price of Python and of Dynamo's binding, which no router in Python can go below;
* picked: a sketch of what would cost less. The client asks a picker of ours which workers to take, and names them to a
  native frontend: no token passes Python (`rig/picker.py`). The client's own time for that is in the figures.

What is measured:

* Pairs, for the added latency of one request at a time: the ways take turns, request by request, with two tokens of
  output; the figure is the median of the differences within a turn, with its 95 % confidence interval.
* Rounds, for requests/s and CPU at 32 at once: each round measures all ways at each output length, one right after the
  other, and they take turns in going first. The ratio is the median over rounds. CPU is user plus system time of the
  frontend and of the router or picker, per request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import manifest
import uvloop
from gateway import cpu_s, free_port, interval, make_prompts

from pdplugins.config import Choice, find, load
from pdplugins.contracts.workers import Role
from pdplugins.hosts.dynamo.local.broker import Broker
from pdplugins.hosts.dynamo.local.engine import Mocker
from pdplugins.processes.process import Process, python, stop_all
from pdplugins.provenance import command_line, record
from pdplugins.runtime.assembly import build_deployment

HOST = "127.0.0.1"
MODEL = "tiny"
OUTPUTS = (1, 16, 128, 512)
"""Output lengths of the rounds, in tokens."""
TOKENS = 12_800
"""Output tokens of one measurement, in at most `MOST_REQUESTS` requests."""
MOST_REQUESTS, LEAST_REQUESTS = 600, 64
AT_ONCE = 32
WORKERS = 2
"""Of each role."""
WAYS = ("native", "ours", "bare", "picked")
RIG = Path(__file__).parent / "rig"
HEADERS = ("x-dynamo-prefill-instance-id", "x-dynamo-worker-instance-id")
FASTER = 1e6
"""Than the profile says: the engines' own time is no part of this."""


class Way:
    """One way to the workers: a frontend, and what stands behind it."""

    def __init__(self, name: str, url: str, processes: list[Process]) -> None:
        self.name, self.url, self._processes = name, url, processes

    async def ask(self, session: aiohttp.ClientSession, prompt: list[int], tokens: int, *, stream: bool) -> float:
        """Send one request; return the seconds to its first bytes where it streams, else to its end."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
        began = time.perf_counter()
        headers = await self._headers(session)
        async with session.post(f"{self.url}/v1/completions", json=body, headers=headers) as answer:
            first = await answer.content.readany()
            took = time.perf_counter() - began
            assert answer.status == 200, first
            while await answer.content.readany():
                pass
        return took

    async def _headers(self, session: aiohttp.ClientSession) -> dict[str, str]:
        return {}

    def cpu_s(self) -> dict[str, float]:
        return {process.name: cpu_s(process.pid) for process in self._processes}


class Picked(Way):
    """A frontend that is told by each request which workers shall serve it."""

    picker_url: str

    async def _headers(self, session: aiohttp.ClientSession) -> dict[str, str]:
        async with session.get(self.picker_url) as answer:
            assert answer.status == 200, "no workers yet"
            return {name: answer.headers[name] for name in HEADERS}


class Stand:
    """The workers and all ways to them."""

    def __init__(self, folder: Path) -> None:
        config = load(find("dopd"))
        config = config.model_copy(update={"router": Choice(name="round-robin"), "planner": None})
        self._folder = folder
        self._mocker = Mocker(folder, MODEL, build_deployment(config), 0.0, Broker().url)
        self._mocker.prepare()
        for role in Role:
            path = folder / f"{role}.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"speedup_ratio": FASTER}))
        (folder / "router.yaml").write_text(json.dumps(config.model_dump(mode="json")))
        self._processes: list[Process] = []

    def _start(self, name: str, command: list[str]) -> Process:
        log = self._folder / f"{name}.log"
        process = Process.start(name, command, env=self._mocker.environment(name), log=log)
        self._processes.append(process)
        return process

    def start(self) -> list[Way]:
        for role in Role:
            for number in range(WORKERS):
                self._start(f"{role}-{number + 1}", self._mocker.worker(role, at_once=True))
        ways = []
        for name in WAYS:
            port = free_port()
            frontend = self._mocker.frontend(HOST, port, routed=name == "ours")
            options = ("--namespace", name) if name == "bare" else ()  # where it knows that router, and no worker
            processes = [self._start(f"frontend-{name}", [*frontend, *options])]
            way = (Picked if name == "picked" else Way)(name, f"http://{HOST}:{port}", processes)
            if name == "ours":
                options = ("--config", str(self._folder / "router.yaml"), *self._mocker.model_options)
                processes.append(self._start("router", python("pdplugins.hosts.dynamo.router", *options)))
            elif name == "bare":
                options = ("bare", str(self._mocker.model_folder), MODEL)
                processes.append(self._start("bare", [sys.executable, str(RIG / "bare.py"), *options]))
            elif isinstance(way, Picked):
                port = free_port()
                processes.append(self._start("picker", [sys.executable, str(RIG / "picker.py"), str(port)]))
                way.picker_url = f"http://{HOST}:{port}/pick"
            ways.append(way)
        return ways

    async def stop(self) -> None:
        await stop_all(self._processes, 5.0)


@contextlib.asynccontextmanager
async def standing(folder: Path) -> AsyncIterator[list[Way]]:
    stand = Stand(folder)
    ways = stand.start()
    try:
        async with aiohttp.ClientSession() as session:
            for way in ways:
                await up(way, session)
        yield ways
    finally:
        await stand.stop()


async def up(way: Way, session: aiohttp.ClientSession) -> None:
    """Return once `way` has answered one request after the other for a while: all workers are known to it."""
    good = 0
    for _ in range(1200):
        try:
            await way.ask(session, make_prompts(1, 16)[0], 1, stream=False)
            good += 1
        except (aiohttp.ClientError, AssertionError, OSError):
            good = 0
        if good == 50:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(way.url)


def in_turn(ways: list[Way], turn: int) -> list[Way]:
    """Return the ways in the order of this turn: another one goes first each time."""
    begin = turn % len(ways)
    return ways[begin:] + ways[:begin]


async def paired(ways: list[Way], turns: int, prompt_tokens: int, *, stream: bool) -> dict[str, Any]:
    """Return the latency of the native way in ms, and what the others add, with the confidence interval."""
    native: list[float] = []
    added: dict[str, list[float]] = {name: [] for name in WAYS[1:]}
    async with aiohttp.ClientSession() as session:
        for turn in range(turns):
            took = {}
            for way in in_turn(ways, turn):
                prompt = make_prompts(1, prompt_tokens)[0]
                took[way.name] = 1e3 * await way.ask(session, prompt, 2, stream=stream)
            native.append(took["native"])
            for name, more in added.items():
                more.append(took[name] - took["native"])
    told = {
        name: dict(zip(("added_p50_ms", "low", "high"), interval(more), strict=True)) for name, more in added.items()
    }
    return {"stream": stream, "turns": turns, "native_p50_ms": round(statistics.median(native), 3), **told}


async def measure(way: Way, outputs: int, prompt_tokens: int) -> dict[str, float]:
    """Return requests/s and the CPU of each process per request."""
    count = max(min(TOKENS // outputs, MOST_REQUESTS), LEAST_REQUESTS)
    prompts = make_prompts(count + AT_ONCE, prompt_tokens)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(way.ask(session, prompts.pop(), outputs, stream=False) for _ in range(AT_ONCE)))
        left = iter(prompts)

        async def client() -> None:
            for prompt in left:
                await way.ask(session, prompt, outputs, stream=False)

        before, began = way.cpu_s(), time.perf_counter()
        await asyncio.gather(*(client() for _ in range(AT_ONCE)))
        took = time.perf_counter() - began
        after = way.cpu_s()
    spent = {f"{name.partition('-')[0]}_cpu_ms": 1e3 * (after[name] - before[name]) / count for name in after}
    return {"rps": count / took, **spent}


async def compare(args: argparse.Namespace) -> dict[str, Any]:
    rows: dict[tuple[int, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with standing(Path(folder)) as ways:
            pairs = [await paired(ways, args.turns, args.prompt_tokens, stream=stream) for stream in (True, False)]
            for turn in range(args.rounds):
                for outputs in OUTPUTS:
                    for way in in_turn(ways, turn):
                        row = await measure(way, outputs, args.prompt_tokens)
                        rows.setdefault((outputs, way.name), []).append(row)
    return {"pairs": pairs, "tables": [summary(rows, outputs) for outputs in OUTPUTS]}


def summary(rows: dict[tuple[int, str], list[dict[str, float]]], outputs: int) -> dict[str, Any]:
    """Return the medians over rounds, and that of the ratio to the native way within a round."""
    table: dict[str, Any] = {"output_tokens": outputs, "rounds": len(rows[outputs, "ours"])}
    for name in WAYS:
        mine = rows[outputs, name]
        table[name] = {key: round(statistics.median(row[key] for row in mine), 3) for key in mine[0]}
        both = zip(mine, rows[outputs, "native"], strict=True)
        table[name]["rps_ratio"] = round(statistics.median(one["rps"] / native["rps"] for one, native in both), 3)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=300, help="of the pairs")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--result", help="write results/RESULT.json")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    result = uvloop.run(compare(args))
    facts = {
        **record("measured", seed=0, command=command_line("python", sys.argv), took_part=("ai-dynamo", "aiohttp")),
        "prompt_tokens": args.prompt_tokens,
        "cpus": os.cpu_count(),
        "load_average": [round(load, 1) for load in (before, os.getloadavg()[0])],
    }
    print(json.dumps(facts | result, indent=1))
    if args.result:
        manifest.write(args.result, facts | result)


if __name__ == "__main__":
    main()
