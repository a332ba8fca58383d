"""Every router on live mocker workers, Dynamo's own modes and ours, and what the simulator says of the same run.

    python benchmarks/live_routers.py run --cells FILE [--rounds 3] [--rate 4] [--most 4] [--only 'arrow' …]
    python benchmarks/live_routers.py report --cells FILE [--result live-routers]

One cell is one router in one round: two prefill and two decode workers (or four that do both) start, the same
requests come at the same times to all of them, and everything ends. Rounds differ by the seed of the traffic. Routers
take turns within a round, so that what else the machine does hits all of them. Cells are added to FILE one by one;
`run` goes on where it was stopped, and stops by itself after `--most` of them.

`report` compares: the mean TTFT and ITL of a router's rounds with those that the simulator gives for the same requests,
workers and router, without batch schedulers of ours, which Dynamo's engines do not ask. `live` minus `simulated` of
Dynamo's own round robin is what the machine, the frontend and the mocker cost; the rest of a difference is the router.
`as_slow` is the simulator's TTFT where every step takes as much longer as the ITL was longer than predicted: mockers
sleep for a step and wake late, and where prompts queue, a step that is 2 % longer makes the mean TTFT some 10 % longer.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import manifest
import uvloop
from gateway import cpu_s, free_port

from pdplugins.config import Config, find, load, parse
from pdplugins.contracts.request import Slo
from pdplugins.contracts.workers import Role
from pdplugins.hosts.dynamo.local.broker import Broker
from pdplugins.hosts.dynamo.local.engine import Mocker
from pdplugins.hosts.dynamo.local.registrations import Registrations
from pdplugins.hosts.dynamo.mocker import BATCHED_TOKENS, Engines
from pdplugins.processes.process import Process, python, stop_all
from pdplugins.provenance import command_line, record
from pdplugins.results import RequestRecord, summarise
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.run.simulate import simulate
from pdplugins.workloads import jsonl, traces
from pdplugins.workloads.trace import TraceRequest
from pdplugins.workloads.transform import Transform

HOST, MODEL = "127.0.0.1", "tiny"
NATIVE = {
    "round-robin": "round-robin",
    "kv": "cache-aware",
    "power-of-two": "power-of-two",
    "least-loaded": "least-loaded",
}
"""Modes of Dynamo's frontend, and the stock router that is the simulator's word for each."""
OURS = ("arrow", "ampd", "dynaserve", "dopd", "fusion")
STOCK = ("round-robin", "power-of-two", "least-loaded", "cache-aware", "random")
POOLS = {"replicas": 2, "tp": 2}
ENGINES = {"step_tokens": BATCHED_TOKENS, "order": "decode_first", "overlap": False}
"""What a config may say otherwise of the engines, and mockers do like this whatever it says."""
NEAR = 0.10
"""A prediction within this share is one."""
GOOD, PATIENCE_S = 20, 180.0
"""So many requests are answered one after the other before a cell begins."""
LATER = "a mocker worker that serves a request alone hands it over to itself: the first token comes a decode step later"
OWN_COST = "the router is a process of its own in Python: every request and chunk passes it"
FASTER = "a mocker worker that does both phases computes them at the same time, so it is faster than one GPU"
COMPOSED = "two live workers prefill only, where all simulated ones do both (the router's decision log)"
SLOWER = "steps take longer than the mockers are told, which queues multiply"
DICE = "the live dice are not the simulator's"
WHY = {
    "dynamo kv": "the frontend weighs overlap and load by a cost of its own; cache-aware is only near it",
    "ampd": f"{FASTER}; {OWN_COST}",
    "dynaserve": f"no mocker engine serves a part of a phase, so prefill and decode are split instead; {LATER}",
    "dopd": "a stock decode worker does not prefill, so ultra-short prompts go to a prefill worker",
    "dynamo power-of-two": f"two random workers are compared, and {DICE}",
    "stock random": f"workers are drawn, and {DICE}",
    "fusion": f"ITL: {FASTER}; TTFT: {COMPOSED}",
}
"""Known reasons for a difference from the simulator, by way."""


@dataclass(frozen=True)
class Way:
    """One router in the path of requests."""

    name: str
    router: str
    native: bool

    def config(self) -> Config:
        """Return what serves: two workers of each role, the router, and nothing that Dynamo does not ask."""
        data = load(find(self.router if self.router in OURS else "stock-least-loaded")).model_dump(mode="json")
        if data["bundle"] is not None:  # by its parts, without its batch scheduler
            data["router"] = data["flow"] = data["bundle"]
        elif self.router not in OURS:
            data["router"] = {"name": NATIVE[self.router] if self.native else self.router}
        data |= dict.fromkeys(("planner", "bundle", "batch_scheduler", "power"))
        data["simulation"] |= ENGINES
        data["deployment"] |= {"gpu_budget": 8, "prefill": POOLS, "decode": POOLS}
        return Engines().told(parse(data, self.name))


WAYS = [
    *(Way(f"dynamo {name}", name, True) for name in NATIVE),
    *(Way(name, name, False) for name in OURS),
    *(Way(f"stock {name}", name, False) for name in STOCK),
]


def traffic(args: argparse.Namespace, turn: int) -> list[TraceRequest]:
    """Return the requests of a round. None begins like another, so that caches of former rounds do not matter."""
    changes = Transform.of(rate=args.rate, clip_s=args.clip_s)
    return changes.apply(traces.read(f"{args.trace}:seed={args.seed + turn}"))


# --- one cell ---------------------------------------------------------------------------------------------------------


class Stand:
    """The workers of one cell, and the way to them."""

    def __init__(self, way: Way, folder: Path) -> None:
        self._way, self._folder, self._config = way, folder, way.config()
        self.url = f"http://{HOST}:{free_port()}"
        self._mocker = Mocker(folder, MODEL, build_deployment(self._config), 0.0, Broker().url)
        self._mocker.prepare()
        self._processes: list[Process] = []
        self.cores: dict[str, float] = {}
        """CPU cores that each process kept busy in the mean while it replayed."""

    def _start(self, name: str, command: list[str]) -> Process:
        environment = self._mocker.environment(name)
        process = Process.start(name, command, env=environment, log=self._folder / f"{name}.log")
        self._processes.append(process)
        return process

    async def start(self) -> None:
        """Return when all workers are known and answer."""
        both = self._config.any_role and not self._way.native
        for role in Role:
            for number in range(POOLS["replicas"]):
                self._start(f"{role}-{number + 1}", self._mocker.worker(role, at_once=True, both=both))
        port = int(self.url.rpartition(":")[2])
        frontend = self._mocker.frontend(HOST, port, routed=not self._way.native)
        if self._way.native:
            frontend[frontend.index("--router-mode") + 1] = self._way.router
        self._start("frontend", frontend)
        if not self._way.native:
            path = self._folder / "router.yaml"
            path.write_text(json.dumps(self._config.model_dump(mode="json")))
            options = ("--config", str(path), *self._mocker.model_options)
            self._start("router", python("pdplugins.hosts.dynamo.router", *options))
        known, wanted = Registrations(self._mocker.discovery), 2 * POOLS["replicas"] + (not self._way.native)
        async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
            while len(known.serving()) < wanted:
                await asyncio.sleep(0.1)
            good = 0
            while good < GOOD:
                good = good + 1 if await self._answers(session) else 0
                await asyncio.sleep(0.0 if good else 0.1)

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        body = {"model": MODEL, "prompt": list(range(300, 332)), "max_tokens": 1, "ignore_eos": True}
        try:
            async with session.post(f"{self.url}/v1/completions", json=body) as answer:
                await answer.read()
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def replay(self, requests: list[TraceRequest], seed: int) -> list[RequestRecord]:
        """Send the requests from a process of its own; return what came of them."""
        trace, out = self._folder / "trace.jsonl", self._folder / "requests.jsonl"
        jsonl.write(requests, trace)
        where = ("--url", self.url, "--model", MODEL, "--trace", str(trace), "--seed", str(seed), "--out", str(out))
        before, began_s, client_s = self._cpu_s(), time.monotonic(), ended_s()
        client = self._start("client", python("pdplugins.workloads.client", *where))
        await client.exited.wait()
        took_s, after = time.monotonic() - began_s, self._cpu_s()
        spent = {"client": ended_s() - client_s, **{name: after[name] - before[name] for name in before}}
        self.cores = {name: round(used_s / took_s, 3) for name, used_s in spent.items()}
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        keys = ("arrival_s", "isl_tokens", "osl_tokens", "error")
        return [
            RequestRecord(token_times_s=tuple(row["token_times_s"]), **{key: row[key] for key in keys})
            for row in rows
            if "request" in row
        ]

    def _cpu_s(self) -> dict[str, float]:
        return {process.name: cpu_s(process.pid) for process in self._processes if process.returncode is None}

    async def stop(self) -> None:
        await stop_all(self._processes, 5.0)


def ended_s() -> float:
    """Return the CPU seconds of the processes of this one that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def measured(way: Way, requests: list[TraceRequest], seed: int) -> dict[str, Any]:
    """Return what clients felt of one cell."""
    with tempfile.TemporaryDirectory() as name:
        stand = Stand(way, Path(name))
        try:
            await stand.start()
            records = await stand.replay(requests, seed)
        except BaseException:
            for log in Path(name).glob("*.log"):
                sys.stderr.write(f"{log.name}: {log.read_text(errors='replace')[-500:]}\n")
            raise
        finally:
            await stand.stop()
    slo = way.config().slo
    ended, times = summarise(records, Slo(slo.ttft_s, slo.tpot_s), requests[-1].arrival_s, 0.0)
    return {
        "requests": ended.total,
        "failed": ended.failed,
        "ttft_ms": milliseconds(times.ttft_s.mean),
        "ttft_p90_ms": milliseconds(times.ttft_s.p90),
        "itl_ms": milliseconds(times.tbt_s.mean),
        "attainment": times.slo_attainment,
        "cores": stand.cores,
    }


def predicted(way: Way, requests: list[TraceRequest], seed: int, slower: float = 1.0) -> dict[str, Any]:
    """Return what the simulator says of the same cell.

    :param slower: every step takes so many times as long. To say so, arrivals come that much closer, and all times
        found are stretched again.
    """
    closer = [replace(request, arrival_s=request.arrival_s / slower) for request in requests]
    result, _ = simulate(way.config(), closer, trace_name="live", command="live", seed=seed)
    times = result.metrics
    return {
        "ttft_ms": milliseconds(times.ttft_s.mean, slower),
        "ttft_p90_ms": milliseconds(times.ttft_s.p90, slower),
        "itl_ms": milliseconds(times.tbt_s.mean, slower),
        "attainment": times.slo_attainment if slower == 1.0 else None,
    }


def milliseconds(value: float | None, slower: float = 1.0) -> float | None:
    return None if value is None else round(1e3 * value * slower, 3)


# --- all cells --------------------------------------------------------------------------------------------------------


def read_cells(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(args: argparse.Namespace) -> None:
    """Measure the cells that are missing, at most so many."""
    done = {(cell["way"], cell["round"]) for cell in read_cells(args.cells)}
    wanted = [way for way in WAYS if not args.only or any(fnmatch.fnmatch(way.name, one) for one in args.only)]
    missing = [(turn, way) for turn in range(args.rounds) for way in rotated(wanted, turn)]
    missing = [(turn, way) for turn, way in missing if (way.name, turn) not in done]
    facts = record(
        "measured", seed=args.seed, command=command_line("python", sys.argv), took_part=("ai-dynamo", "aiohttp")
    )
    for turn, way in missing[: args.most]:
        before, began_s = os.getloadavg()[0], time.monotonic()
        requests = traffic(args, turn)
        cell = {"way": way.name, "round": turn, "live": uvloop.run(measured(way, requests, args.seed + turn))}
        cell["commit"] = facts["commit"]
        cell |= {
            "load": [round(before, 1), round(os.getloadavg()[0], 1)],
            "wall_s": round(time.monotonic() - began_s, 1),
        }
        cell |= {"rate": args.rate, "clip_s": args.clip_s, "trace": args.trace, "seed": args.seed}
        with args.cells.open("a") as file:
            file.write(json.dumps(cell) + "\n")
        print(json.dumps(cell), flush=True)
    print(f"{max(len(missing) - args.most, 0)} cells are missing", flush=True)


def rotated(ways: list[Way], turn: int) -> list[Way]:
    """Return the ways in the order of a round: each comes first once."""
    start = turn * 5 % max(len(ways), 1)
    return ways[start:] + ways[:start]


def simulated(way: Way, cell: dict[str, Any]) -> dict[str, Any]:
    """Return what the simulator says of a cell, and what it says where steps are as much longer as the ITL was."""
    requests, seed = traffic(argparse.Namespace(**cell), cell["round"]), cell["seed"] + cell["round"]
    told = predicted(way, requests, seed)
    slower = max(cell["live"]["itl_ms"] / told["itl_ms"], 1.0)
    return {"simulated": told, "slower": round(slower, 4), "as_slow": predicted(way, requests, seed, slower)}


def report(args: argparse.Namespace) -> None:
    ways = {way.name: way for way in WAYS}
    cells = [cell | simulated(ways[cell["way"]], cell) for cell in read_cells(args.cells)]
    rows = [row for way in WAYS for row in summary(way, [cell for cell in cells if cell["way"] == way.name])]
    commits = sorted({cell["commit"] for cell in cells})
    facts = record(
        "measured", seed=cells[0]["seed"], command=command_line("python", sys.argv), took_part=("ai-dynamo",)
    )
    result = {
        **facts,
        "cpus": os.cpu_count(),
        "commits": commits,
        "trace": {key: cells[0][key] for key in ("trace", "rate", "clip_s")},
        "load_average": [min(cell["load"][0] for cell in cells), max(cell["load"][1] for cell in cells)],
        "rows": rows,
    }
    print(json.dumps(result, indent=1))
    if args.result:
        manifest.write(args.result, result)


def summary(way: Way, cells: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the row of a router: medians over its rounds, and of the ratio within each.

    `cores` is what all processes of a cell kept busy in the mean, the client's included: less than the machine has.
    """
    if not cells:
        return
    row: dict[str, Any] = {
        "way": way.name,
        "rounds": len(cells),
        "failed": sum(cell["live"]["failed"] for cell in cells),
    }
    for key in ("ttft_ms", "ttft_p90_ms", "itl_ms"):
        both = [(cell["live"][key], cell["simulated"][key]) for cell in cells]
        row[key] = {
            "live": round(statistics.median(live for live, _ in both), 2),
            "simulated": round(statistics.median(simulated for _, simulated in both), 2),
            "ratio": round(statistics.median(live / simulated for live, simulated in both), 3),
        }
    slow = [cell["as_slow"]["ttft_ms"] for cell in cells]
    row["slower"] = round(statistics.median(cell["slower"] for cell in cells), 3)
    row["ttft_ms"] |= {
        "as_slow": round(statistics.median(slow), 2),
        "ratio_as_slow": round(
            statistics.median(cell["live"]["ttft_ms"] / ms for cell, ms in zip(cells, slow, strict=True)), 3
        ),
    }
    cores = [cell["live"]["cores"] for cell in cells]
    row["cores"] = round(statistics.median(sum(each.values()) for each in cores), 2)
    row["router_cores"] = round(statistics.median(each.get("router", 0.0) for each in cores), 2)
    near = all(abs(row[key]["ratio"] - 1) <= NEAR for key in ("ttft_ms", "itl_ms"))
    yield row | {"near": near, "why": "" if near else why(way, row)}


def why(way: Way, row: dict[str, Any]) -> str:
    """Return the reason for which a router's row is not near its prediction."""
    if all(abs(ratio - 1) <= NEAR for ratio in (row["ttft_ms"]["ratio_as_slow"], row["itl_ms"]["ratio"])):
        return SLOWER
    return WHY.get(way.name, "" if way.native else OWN_COST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=1000)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--trace", default="azure-like")
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--clip-s", type=float, default=25.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", help="write results/RESULT.json")
    args = parser.parse_args()
    if args.what == "run":
        run(args)
    else:
        report(args)


if __name__ == "__main__":
    main()
