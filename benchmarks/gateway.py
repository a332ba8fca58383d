"""The cost of the gateway against SGLang's own router (Rust, `sglang_router`), over the same workers, interleaved.

    python benchmarks/gateway.py --rust PYTHON [--rounds 5] [--result gateway-fake]

Workers are one prefill and one decode server that speak SGLang's protocol and answer at once. With `--tree TREE`, a
folder with one version of SGLang as `make test-sglang` installs it, they are two stock servers with a tiny model; run
it with that environment's Python, in the root of the repository, with PYTHONPATH=. there. `PYTHON` is an interpreter
that has sglang_router. There are four ways to the decode server: without a router (both legs from the client: the
base), through the Rust router, through the gateway, and through a gateway of two processes (`--processes 2`).

* Pairs, for the added TTFT of one request at a time: the four ways take turns, request by request, each with a prompt
  of its own; the figure is the median of the differences to the base within a turn, with its 95 % confidence interval
  (order statistics). What the engines do from minute to minute is the same for all four.
* Rounds, for requests/s, CPU and TTFT at 1 and 32 at once: each round measures every way. Added TTFT is the difference
  of the medians (and 99th percentiles) within a round; the figures are medians over rounds. CPU is user plus system
  time of the router's process and of those that it has started, per request.

The client acknowledges the head of each answer at once: else each stream of the Rust router takes 40 ms more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import manifest
import uvloop
from aiohttp import web

from pdplugins.provenance import command_line, record

HOST = "127.0.0.1"
TOKENS = 8
META = {"id": "x", "finish_reason": None, "prompt_tokens": 100, "completion_tokens": 1}
EVENT = json.dumps({"text": "hello world", "output_ids": list(range(TOKENS)), "meta_info": META}).encode()
INFO = {
    "disaggregation_bootstrap_port": 8998,
    "model_path": "m",
    "served_model_name": "m",
    "version": "0.5.16",
    "tp_size": 1,
    "dp_size": 1,
}
KINDS = [(1, True), (1, False), (32, True), (32, False)]
"""Requests at once, and whether they stream."""
PAIR_TOKENS = 2
"""Output tokens of a request of the pairs, which ask for the first one only."""
ROUTERS = ("rust", "gateway", "two")
"""The ways that have a router: `two` is the gateway in two processes, one for each core of the machine."""
Rows = dict[tuple[tuple[int, bool], str], list[dict[str, float]]]
DICE = random.Random(0)  # noqa: S311 - prompts, not secrets
TICKS = os.sysconf("SC_CLK_TCK")


# --- the workers ------------------------------------------------------------------------------------------------------


def worker(mode: str, port: int) -> None:
    """Serve as one fake SGLang server: `TOKENS` tokens of a decode server, one of a prefill server, at once."""
    info = {**INFO, "disaggregation_mode": mode}

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        if request.path == "/v1/loads":
            return web.json_response({"loads": [{"num_running_reqs": 0, "max_total_num_tokens": 100_000}]})
        if request.path != "/generate":
            return web.json_response(info)
        if mode == "prefill":
            return web.Response(body=EVENT, content_type="application/json")
        if b'"stream":true' not in body.replace(b" ", b""):
            return web.Response(body=EVENT, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(TOKENS):
            await response.write(b"data: " + EVENT + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def run() -> None:
        runner = web.ServerRunner(web.Server(serve, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, HOST, port, backlog=1024).start()
        await asyncio.Event().wait()

    uvloop.run(run())


# --- processes --------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def cpu_s(pid: int) -> float:
    """Return user plus system time of a process and of those that it has started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / TICKS + sum(cpu_s(int(child)) for child in started)


@contextlib.contextmanager
def real_workers(tree: Path, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Start a stock prefill and a stock decode server; yield their addresses with the bootstrap port in between."""
    from benchmarks.rig import servers, tiny_model  # noqa: PLC0415 - needs the environment of SGLang

    model = tiny_model.make(folder / "model")
    pair = [
        servers.Server(tree.resolve(), model, folder / f"{mode}.log", (*servers.STOCK, mode))
        for mode in ("prefill", "decode")
    ]
    with pair[0] as prefill, pair[1] as decode:
        prefill.wait()
        decode.wait()
        yield prefill.url, str(prefill.bootstrap_port), decode.url


async def up(url: str, session: aiohttp.ClientSession) -> None:
    for _ in range(300):
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with session.get(url + "/health") as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.1)
    raise TimeoutError(url)


# --- one measurement --------------------------------------------------------------------------------------------------


class Way:
    """One way to the workers."""

    def __init__(self, name: str, urls: list[str], bootstrap_port: int, pid: int | None) -> None:
        self.name, self.urls, self.bootstrap_port, self.pid = name, urls, bootstrap_port, pid

    async def ask(
        self, session: aiohttp.ClientSession, prompt: list[int], *, stream: bool, tokens: int = TOKENS
    ) -> float:
        """Send one request; return the seconds to its first token."""
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body: dict[str, Any] = {"input_ids": prompt, "sampling_params": sampling, "stream": stream}
        if len(self.urls) == 2:
            room = random.getrandbits(62)
            body |= {"bootstrap_host": HOST, "bootstrap_port": self.bootstrap_port, "bootstrap_room": room}
        data = json.dumps(body).encode()
        began = time.perf_counter()
        aside = [asyncio.create_task(self._post(session, url, data)) for url in self.urls[:-1]]
        first_s = await self._post(session, self.urls[-1], data)
        await asyncio.gather(*aside)
        return first_s - began

    async def _post(self, session: aiohttp.ClientSession, url: str, data: bytes) -> float:
        headers = {"Content-Type": "application/json"}
        async with session.post(url + "/generate", data=data, headers=headers) as answer:
            acknowledge(answer)
            first = await answer.content.readany()
            at_s = time.perf_counter()
            assert answer.status == 200, first
            while await answer.content.readany():
                pass
        return at_s


def acknowledge(answer: aiohttp.ClientResponse) -> None:
    """Acknowledge the head of an answer at once.

    The Rust router sends the head of a stream and its first event as two small segments, without `TCP_NODELAY`: its
    kernel waits for the first one to be acknowledged, which Linux puts off by 40 ms.
    """
    if answer.connection is not None and answer.connection.transport is not None:
        client: socket.socket = answer.connection.transport.get_extra_info("socket")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def make_prompts(count: int, tokens: int) -> list[list[int]]:
    """Return prompts of random token ids, other ones at each call, so that no prefix cache knows them."""
    return [[DICE.randrange(4, 500) for _ in range(tokens)] for _ in range(count)]


async def paired(found: list[Way], turns: int, prompt_tokens: int, *, stream: bool) -> dict[str, Any]:
    """Return what each way adds to the TTFT of the base in ms: the median over turns, and its confidence interval."""
    added: dict[str, list[float]] = {way.name: [] for way in found[1:]}
    base: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for turn in range(turns):
            took: dict[str, float] = {}
            for way, prompt in zip(rotated(found, turn), make_prompts(len(found), prompt_tokens), strict=True):
                took[way.name] = await way.ask(session, prompt, stream=stream, tokens=PAIR_TOKENS)
            base.append(1e3 * took["none"])
            for name, row in added.items():
                row.append(1e3 * (took[name] - took["none"]))
    told = {name: dict(zip(("added_p50_ms", "low", "high"), interval(row), strict=True)) for name, row in added.items()}
    return {"stream": stream, "turns": turns, "none_p50_ms": round(statistics.median(base), 3), **told}


def rotated(ways: list[Way], turn: int) -> list[Way]:
    """Return the ways in the order of this turn: each one comes at each place equally often."""
    orders = list(itertools.permutations(ways))
    return list(orders[turn % len(orders)])


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median and the bounds of its 95 % confidence interval, which are order statistics."""
    ordered, half = sorted(values), 0.98 * len(values) ** 0.5
    low = max(int(len(values) / 2 - half), 0)
    high = min(int(len(values) / 2 + half) + 1, len(values) - 1)
    return round(statistics.median(ordered), 3), round(ordered[low], 3), round(ordered[high], 3)


async def measure(way: Way, concurrency: int, requests: int, prompt_tokens: int, *, stream: bool) -> dict[str, float]:
    """Return requests/s, TTFT and CPU of `requests` requests."""
    warm_up, *prompts = make_prompts(1 + requests, prompt_tokens)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(way.ask(session, warm_up, stream=stream) for _ in range(concurrency)))
        ttfts: list[float] = []
        left = iter(prompts)

        async def client() -> None:
            for prompt in left:
                ttfts.append(await way.ask(session, prompt, stream=stream))

        cpu = cpu_s(way.pid) if way.pid else 0.0
        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        took = time.perf_counter() - began
        cpu = cpu_s(way.pid) - cpu if way.pid else 0.0
    ttfts.sort()
    p99 = ttfts[min(int(0.99 * len(ttfts)), len(ttfts) - 1)]
    p50 = statistics.median(ttfts)
    return {"rps": requests / took, "p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99, "cpu_ms": 1e3 * cpu / requests}


# --- the comparison ---------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def ways(args: argparse.Namespace, folder: Path) -> AsyncIterator[list[Way]]:
    with contextlib.ExitStack() as stack:

        def start(name: str, command: list[str]) -> int:
            return stack.enter_context(process(command, folder / f"{name}.log")).pid

        if args.tree:
            p, port, d = stack.enter_context(real_workers(args.tree, folder))
        else:
            ports = free_port(), free_port()
            p, port, d = f"http://{HOST}:{ports[0]}", "8998", f"http://{HOST}:{ports[1]}"
            for mode, number in zip(("prefill", "decode"), ports, strict=True):
                start(mode, [sys.executable, __file__, "--serve", mode, str(number)])
        rust, ours, shared = free_port(), free_port(), free_port()
        router = [args.rust, "-m", "sglang_router.launch_router", "--pd-disaggregation", "--policy", "round_robin"]
        router += ["--prefill", p, port, "--decode", d, "--host", HOST, "--port", str(rust), "--log-level", "error"]
        theirs = start("rust", [*router, "--prometheus-port", str(free_port())])
        config = folder / "stock.yaml"
        config.write_text("router: round-robin\n")
        gateway = [str(Path(sys.executable).with_name("pdplugins")), "gateway", "--config", str(config)]
        gateway += [
            "--admin-port",
            "0",
            "--worker",
            f"{p},bootstrap_port={port},kind=prefill",
            "--worker",
            f"{d},kind=decode",
        ]
        mine = start("gateway", [*gateway, "--port", str(ours)])
        both = start("two", [*gateway, "--port", str(shared), "--processes", "2"])
        found = [Way("none", [p, d], int(port), None)]
        for name, number, pid in zip(ROUTERS, (rust, ours, shared), (theirs, mine, both), strict=True):
            found.append(Way(name, [f"http://{HOST}:{number}"], 0, pid))
        async with aiohttp.ClientSession() as session:
            for way in found[1:]:
                await up(way.urls[0], session)
        yield found


async def compare(args: argparse.Namespace) -> dict[str, Any]:
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        async with ways(args, Path(folder)) as found:
            await paired(found, 24, args.prompt_tokens, stream=True)  # who meets whom for the first time
            pairs = [await paired(found, args.turns, args.prompt_tokens, stream=stream) for stream in (True, False)]
            for turn in range(args.rounds):
                for kind, way in itertools.product(KINDS, rotated(found, 7 * turn)):  # another first one in each
                    concurrency, stream = kind
                    count = args.requests if concurrency == 1 else args.requests * 4
                    row = await measure(way, concurrency, count, args.prompt_tokens, stream=stream)
                    rows.setdefault((kind, way.name), []).append(row)
    return {"pairs": pairs, "tables": [summary(rows, kind) for kind in KINDS]}


def summary(rows: Rows, kind: tuple[int, bool]) -> dict[str, Any]:
    """Return the medians over rounds, and of the differences to the base within a round."""
    base = rows[kind, "none"]
    table: dict[str, Any] = {"concurrency": kind[0], "stream": kind[1]}
    for name in ("none", *ROUTERS):
        mine = rows[kind, name]
        table[name] = {key: round(statistics.median(row[key] for row in mine), 3) for key in mine[0]}
        for key in ("p50_ms", "p99_ms"):
            added = [row[key] - other[key] for row, other in zip(mine, base, strict=True)]
            table[name][f"added_{key}"] = round(statistics.median(added), 3)
    for key, name in (("rps_ratio", "gateway"), ("two_rps_ratio", "two")):
        both = zip(rows[kind, name], rows[kind, "rust"], strict=True)
        table[key] = round(statistics.median(row["rps"] / other["rps"] for row, other in both), 3)
    return table | {"rounds": len(base)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=2, metavar=("MODE", "PORT"))
    parser.add_argument("--rust", help="an interpreter that has sglang_router")
    parser.add_argument("--tree", type=Path, help="a folder that holds one version of SGLang: real workers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200, help="per round at concurrency 1; four times that at 32")
    parser.add_argument("--turns", type=int, default=600, help="of the pairs")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--result", help="write results/RESULT.json")
    args = parser.parse_args()
    if args.serve:
        worker(args.serve[0], int(args.serve[1]))
        return
    if not args.rust:
        parser.error("--rust: name an interpreter that has sglang_router (pip install sglang-router)")
    before = os.getloadavg()[:1]
    result = uvloop.run(compare(args))
    words = ["PYTHON" if word == args.rust else word for word in sys.argv]
    facts = {
        **record("measured", seed=0, command=command_line("python", words), took_part=("aiohttp", "uvloop")),
        "workers": "fake" if args.tree is None else f"real: {args.tree.name}",
        "prompt_tokens": args.prompt_tokens,
        "cpus": os.cpu_count(),
        "load_average": [round(load, 1) for load in (*before, os.getloadavg()[0])],
    }
    print(json.dumps(facts | result, indent=1))
    if args.result:
        manifest.write(args.result, facts | result)


if __name__ == "__main__":
    main()
