"""What one gateway holds, over three fake workers on this machine: requests, streams, idle connections, bursts.

    python benchmarks/load_held.py [--result load-held]

* requests: 32 clients, one request after the other each, whole answers; requests/s and the CPU of the gateway.
* streams: so many at once, one token each half second; how many came whole.
* idle: 1,010 connections that say nothing, in a process that may have 1,024 open files; good requests meanwhile.
* burst: 700 streams, then 900 more at once, in such a process, and in one with the limit of this machine; how many came
  whole, and how many were refused with ``Retry-After``. Nothing else may come of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import manifest
import uvloop
from aiohttp import web
from gateway import cpu_s, free_port, process

from pdplugins.provenance import record

HOST = "127.0.0.1"
WORKERS = 3
FEW = 1024
"""Open files of a process, where the system's default is not raised."""
CLIENTS, REQUESTS = 32, 3000
STREAMS, TOKENS, TOKEN_S = 1000, 8, 0.5
META = {"id": "x", "finish_reason": None, "prompt_tokens": 100, "completion_tokens": 1}
EVENT = json.dumps({"text": "hello", "output_ids": [1], "meta_info": META}).encode()


def worker(port: int) -> None:
    """Serve as one fake SGLang server; streams have a token each half second."""

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        if request.path == "/v1/loads":
            return web.json_response({"loads": [{"num_running_reqs": 0, "max_total_num_tokens": 100_000}]})
        if request.path != "/generate":
            return web.json_response({"disaggregation_mode": "null"})
        if b'"stream": true' not in body:
            return web.Response(body=EVENT, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(TOKENS):
            await asyncio.sleep(TOKEN_S)
            await response.write(b"data: " + EVENT + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def run() -> None:
        runner = web.ServerRunner(web.Server(serve, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, HOST, port, backlog=4096).start()
        await asyncio.Event().wait()

    uvloop.run(run())


@contextlib.asynccontextmanager
async def gateway(folder: Path, *, descriptors: int | None = None) -> AsyncIterator[tuple[str, int]]:
    """A gateway over fake workers: its URL and its process id."""
    with contextlib.ExitStack() as stack:
        ports = [free_port() for _ in range(WORKERS)]
        for port in ports:
            stack.enter_context(
                process([sys.executable, str(Path(__file__)), "--serve", str(port)], folder / f"{port}.log")
            )
        command = [str(Path(sys.executable).with_name("pdplugins")), "gateway", "--port", "0", "--admin-port", "0"]
        for port in ports:
            command += ["--worker", f"http://{HOST}:{port}"]
        log = folder / "gateway.log"
        child = stack.enter_context(process(command, log))
        if descriptors is not None:  # long before Python has started
            resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
        for _ in range(600):
            await asyncio.sleep(0.1)
            if (found := re.search(rb"gateway on (http://[\d.:]+)", log.read_bytes())) is not None:
                break
        else:
            raise TimeoutError(log.read_text())
        url = found[1].decode()
        await ready(url)
        yield url, child.pid


async def ready(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(600):
            async with session.get(url + "/health") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)
    raise TimeoutError(url)


async def ask(session: aiohttp.ClientSession, url: str, *, stream: bool) -> str:
    """Send one request; return whole, refused, or what else came."""
    body = {"input_ids": list(range(100)), "sampling_params": {"max_new_tokens": TOKENS}, "stream": stream}
    try:
        async with session.post(url + "/generate", json=body) as answer:
            data = await answer.read()
            if answer.status == 503 and "Retry-After" in answer.headers:
                return "refused"
            whole = (
                answer.status == 200 and (not stream or data.endswith(b"data: [DONE]\n\n")) and b'"error"' not in data
            )
            return "whole" if whole else f"status {answer.status}"
    except (aiohttp.ClientError, OSError) as error:
        return type(error).__name__


async def requests(folder: Path) -> dict[str, Any]:
    async with gateway(folder) as (url, pid), unlimited() as session:
        await asyncio.gather(*(ask(session, url, stream=False) for _ in range(CLIENTS)))
        left = iter(range(REQUESTS))
        came: Counter[str] = Counter()

        async def client() -> None:
            for _ in left:
                came[await ask(session, url, stream=False)] += 1

        cpu, began_s = cpu_s(pid), time.perf_counter()
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        took_s = time.perf_counter() - began_s
        ms = 1e3 * (cpu_s(pid) - cpu) / REQUESTS
        return {"clients": CLIENTS, **came, "per_s": round(REQUESTS / took_s), "cpu_ms": round(ms, 2)}


async def streams(folder: Path) -> dict[str, Any]:
    async with gateway(folder) as (url, pid), unlimited() as session:
        cpu = cpu_s(pid)
        came = Counter(await asyncio.gather(*(ask(session, url, stream=True) for _ in range(STREAMS))))
        return {"streams": STREAMS, **came, "cpu_s": round(cpu_s(pid) - cpu, 1)}


async def idle(folder: Path) -> dict[str, Any]:
    async with gateway(folder, descriptors=FEW) as (url, _), unlimited() as session:
        host, port = url.removeprefix("http://").split(":")
        opened = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(1010)]
        await asyncio.sleep(1)  # one that is younger than 0.25 s makes no way: its request may be here already
        came = Counter([await ask(session, url, stream=False) for _ in range(200)])
        for writer in opened:
            writer.close()
        return {"connections": len(opened), "open_files": FEW, **came}


async def burst(folder: Path, descriptors: int | None) -> dict[str, Any]:
    async with gateway(folder, descriptors=descriptors) as (url, _), unlimited() as session:
        first = [asyncio.create_task(ask(session, url, stream=True)) for _ in range(700)]
        await asyncio.sleep(2)
        second = [asyncio.create_task(ask(session, url, stream=True)) for _ in range(900)]
        before, came = Counter(await asyncio.gather(*first)), Counter(await asyncio.gather(*second))
        after = Counter([await ask(session, url, stream=False) for _ in range(100)])
        files = descriptors or resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return {"open_files": files, "streams": before, "burst": came, "afterwards": after}


def unlimited() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=180))


async def measured(folder: Path) -> dict[str, Any]:
    works = {"requests": requests, "streams": streams, "idle": idle}
    found: dict[str, Any] = {}
    for name, work in works.items():
        (part := folder / name).mkdir()
        found[name] = await work(part)
        print(name, found[name], flush=True)
    found["bursts"] = []
    for number, descriptors in enumerate((FEW, None)):
        (part := folder / f"burst{number}").mkdir()
        found["bursts"].append(await burst(part, descriptors))
        print("burst", found["bursts"][-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", metavar="PORT", type=int)
    parser.add_argument("--result", help="write results/RESULT.json")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if args.serve:
        worker(args.serve)
        return
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        result = uvloop.run(measured(Path(folder)))
    command = "python benchmarks/load_held.py --result load-held"
    facts = {
        **record("measured", seed=None, command=command, took_part=("aiohttp", "uvloop")),
        "cpus": os.cpu_count(),
        "load_average": [round(load, 1) for load in (before, os.getloadavg()[0])],
    }
    print(json.dumps(facts | result, indent=1))
    if args.result:
        manifest.write(args.result, facts | result)


if __name__ == "__main__":
    main()
