"""fusion on two real SGLang servers, against SGLang's own router on as many, at more than they can serve.

    PYTHONPATH=. .venv-sglang/bin/python benchmarks/fusion_live.py --tree .venv-sglang/sglang-0.5.23 --rust PYTHON

Three systems of two servers each, on this machine's CPU, with a small random Llama whose prefill is mostly compute:

* fusion: dual-role servers behind the gateway, all parts of the bundle as shipped (`configs/fusion.yaml`), told that
  these servers never mix prefill and decode in one step;
* co-located: stock servers that do all of a request, behind SGLang's router (Rust);
* PD: a stock prefill and a stock decode server, behind the same router.

One system runs at a time; the processes of the others are stopped, so that they take no cores. First, on one idle
stock server: the latency of prompts and batches, which become the profile that fusion plans with, and the SLOs,
`--scale` times the TTFT of the mean prompt and the TPOT of one request alone. Then the capacity: the most requests/s
that any of the three completes for 32 clients that always wait for an answer. Then a run of each of the router's
policies on traffic of its own; the best one stands in the rounds. Each round offers the same Poisson traffic to all,
`--load` times the capacity; systems take turns in going first. A request that fails, or is not done when it could no
longer be in time, was not in time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import manifest
import yaml
from kv_overlap import Shape, make_model

from benchmarks.rig import load, sides
from benchmarks.rig.load import Ask, Slo
from benchmarks.rig.servers import Server
from benchmarks.rig.sides import Place, Side
from pdplugins.config import find
from pdplugins.provenance import command_line, record

RESULT = "fusion-live"
SHAPE = Shape(hidden=512, intermediate=2048, layers=2, heads=4, head_dim=64)
TOKENS = 32_768
"""KV cache of a server."""
PROMPTS = (16, 128, 256, 512, 1024, 1536)
BATCHES, CONTEXTS = (1, 8, 24), (64, 512)
"""What the profile is measured at, in tokens and requests."""
REPEATS = 5
STEPS = 24
"""Tokens of a decode that is timed."""
MEAN = Ask(0.0, 408, 20)
"""The mean request of `load.lengths`."""
AT_ONCE = 32
POLICIES = ("cache_aware", "power_of_two", "round_robin")
TUNING = 1000
"""Seed of the traffic on which the router's policy is chosen; those of the rounds follow it."""
WINNER = "chosen"
DICE = random.Random(0)  # noqa: S311 - prompts, not secrets


# --- what the servers can do -----------------------------------------------------------------------------------------


async def ttft_s(client: aiohttp.ClientSession, url: str, tokens: int) -> float:
    """Return the median TTFT of prompts of so many tokens, one at a time."""
    ask, found = Ask(0.0, tokens, 2), []
    for _ in range(REPEATS):
        heard = await load.send(client, url, ask, load.body(ask, DICE))
        assert heard.ttft_s is not None, "a request failed"
        found.append(heard.ttft_s)
    return statistics.median(found)


async def tpot_s(client: aiohttp.ClientSession, url: str, batch: int, context: int) -> float:
    """Return the time between tokens of `batch` requests that decode together: of the least disturbed quarter."""
    ask, found = Ask(0.0, context, STEPS), []
    for _ in range(2):
        heard = await asyncio.gather(*(load.send(client, url, ask, load.body(ask, DICE)) for _ in range(batch)))
        found += [one.tpot_s for one in heard if one.tpot_s is not None]
    return sorted(found)[len(found) // 4]


async def measured(server: Server) -> dict[str, Any]:
    """Return the tables of a profile in ms, of an idle server."""
    async with load.session() as client:
        await ttft_s(client, server.url, PROMPTS[-1])
        prefill = [round(1e3 * await ttft_s(client, server.url, tokens), 3) for tokens in PROMPTS]
        decode = [[round(1e3 * await tpot_s(client, server.url, n, c), 3) for c in CONTEXTS] for n in BATCHES]
        mean_s = await ttft_s(client, server.url, MEAN.prompt_tokens)
    rising = [max(prefill[: index + 1]) for index in range(len(prefill))]
    return {"prefill": rising, "decode": decode, "mean_ttft_s": round(mean_s, 4), "tpot_s": decode[0][1] / 1e3}


def profile(found: dict[str, Any]) -> dict[str, Any]:
    """Return the profile file of such a server."""
    here = "measured by benchmarks/fusion_live.py"
    gib = 2.0**30
    return {
        "schema": 1, "gpu": "CPU", "model": "random Llama", "kind": "measured",
        "provenance": {"source": here, "command": "benchmarks/fusion_live.py"},
        "memory": {
            "gpu_bytes": gib + TOKENS * SHAPE.kv_bytes, "reserved_bytes": 0, "model_bytes": gib,
            "kv_bytes_per_token": SHAPE.kv_bytes, "source": here,
        },
        "bandwidth": {"bytes_per_s": 1e10, "utilisation": 1.0, "source": "assumed"},
        "transfer": {"latency_s": 0.01, "bytes_per_s": 1e9, "source": "assumed"},
        "scale": {"prefill": 1.0, "decode": 1.0, "source": here},
        "prefill": {"1": {"tokens": PROMPTS, "raw_ms": found["prefill"]}},
        "decode": {"1": {"batch": BATCHES, "context_tokens": CONTEXTS, "raw_ms": found["decode"]}},
    }  # fmt: skip


def config(folder: Path, found: dict[str, Any], slo: Slo) -> Path:
    """Write the shipped config for these servers and objectives."""
    (folder / "cpu.json").write_text(json.dumps(profile(found)))
    shipped = yaml.safe_load(find("fusion").read_text())
    one = {"replicas": 1, "tp": 1}
    cpu = {"profile": str(folder / "cpu.json"), "gpu_budget": 2, "prefill": one, "decode": one, "mixed_steps": False}
    own = {
        "slo": {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s},
        "deployment": cpu,
    }
    path = folder / "fusion.yaml"
    path.write_text(yaml.safe_dump({**shipped, **own}))
    return path


# --- the systems ------------------------------------------------------------------------------------------------------


class Stand:
    """All systems; each is started once, and stopped where it is while another one runs."""

    def __init__(self, place: Place, scale: float) -> None:
        self._place, self._scale = place, scale
        self.sides: list[Side] = []
        self.idle: dict[str, Any] = {}

    async def start(self) -> Slo:
        """Start everything; return the objectives."""
        stock, split = sides.colocated(self._place), sides.disaggregated(self._place)
        self.sides += [stock, split]
        for server in (*stock.pair, *split.pair):
            await asyncio.to_thread(server.wait)
        split.pause()
        self.idle = await measured(stock.pair[0])
        say(f"idle: {self.idle}")
        slo = Slo(round(self._scale * self.idle["mean_ttft_s"], 3), round(self._scale * self.idle["tpot_s"], 4))
        urls = [server.url for server in stock.pair]
        for policy in POLICIES:
            stock.fronts[policy] = self._place.router(policy, "--policy", policy, "--worker-urls", *urls)
        for front in stock.fronts.values():
            await sides.up(front.url)
        stock.pause()
        await self._start_pd(split)
        await self._start_fusion(slo)
        return slo

    async def _start_pd(self, side: Side) -> None:
        prefill, decode = side.pair
        for server in side.pair:
            server.signal(signal.SIGCONT)
        legs = ("--prefill", prefill.url, str(prefill.bootstrap_port), "--decode", decode.url)
        side.fronts[WINNER] = self._place.router("pd", "--pd-disaggregation", "--policy", "round_robin", *legs)
        await sides.up(side.fronts[WINNER].url)
        side.pause()

    async def _start_fusion(self, slo: Slo) -> None:
        path = config(self._place.folder, self.idle, slo)
        side = sides.fused(self._place, path)
        self.sides.append(side)
        for server in side.pair:
            await asyncio.to_thread(server.wait)
        side.fronts[WINNER], side.admin_url = self._place.gateway(path, side.pair)
        await sides.up(side.fronts[WINNER].url)
        side.pause()

    @contextmanager
    def _only(self, side: Side) -> Iterator[None]:
        try:
            yield
        finally:
            side.pause()

    async def capacities(self, seconds: float) -> dict[str, float]:
        """Return the requests/s of each system under as many clients as a server takes."""
        found = {}
        for side in self.sides:
            front = next(iter(side.fronts.values()))
            with self._only(side):
                await side.resume(front)
                found[side.name] = round(await load.saturate(front.url, seconds, AT_ONCE, seed=1), 3)
                await side.idle()
        return found

    async def offered(self, side: Side, front: str, asks: list[Ask], slo: Slo, seed: int) -> dict[str, Any]:
        """Return how one system served some traffic."""
        with self._only(side):
            await side.resume(side.fronts[front])
            before = os.times()
            heard = await load.offer(side.fronts[front].url, asks, slo, seed)
            spent = os.times()
            await side.idle()
        client_s = spent.user + spent.system - before.user - before.system
        return {"system": side.name, **load.scores(heard, slo), "client_cpu_s": round(client_s, 2)}

    async def choose(self, asks: list[Ask], slo: Slo) -> dict[str, float]:
        """Choose the best policy of SGLang's router; return what each attained."""
        stock, found = self.sides[0], {}
        for policy in POLICIES:
            found[policy] = (await self.offered(stock, policy, asks, slo, TUNING))["attainment"]
        stock.fronts[WINNER] = stock.fronts.pop(max(found, key=lambda name: found[name]))
        return found

    async def faults(self) -> dict[str, float]:
        """Return what the gateway has counted as faults, by kind."""
        side = self.sides[-1]
        with self._only(side):
            await side.resume(side.fronts[WINNER])
            async with aiohttp.ClientSession() as client, client.get(f"{side.admin_url}/metrics") as answer:
                lines = (await answer.text()).splitlines()
        counts = (line.rpartition(" ") for line in lines if line.startswith("pdplugins_gateway_faults_total{"))
        return {name.partition('"')[2].rstrip('"}'): float(count) for name, _, count in counts if float(count)}

    def stop(self) -> None:
        """End all of it."""
        for side in self.sides:
            side.stop()


async def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure everything."""
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)  # as Ctrl-C does: nothing stays
    tree = args.tree.resolve()
    stand = Stand(Place(tree, make_model(folder / "model", SHAPE), folder, args.rust, TOKENS), args.scale)
    try:
        slo = await stand.start()
        say(f"SLOs: {slo}")
        capacities = await stand.capacities(args.seconds)
        rate = args.load * max(capacities.values())
        say(f"capacities: {capacities} requests/s; offered: {rate:.2f}")
        tried = await stand.choose(load.poisson(rate, args.seconds, TUNING), slo)
        say(f"policies of SGLang's router, tried: {tried}")
        rows = await rounds(args, stand, rate, slo)
        faults = await stand.faults()
    finally:
        stand.stop()
    return {
        "sglang": tree.name,
        "slo": {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s, "scale": args.scale},
        "idle": stand.idle,
        "capacity": capacities,
        "rate": round(rate, 3),
        "policies": tried,
        "rows": rows,
        "summary": summary(rows),
        "gateway_faults": faults,
    }


async def rounds(args: argparse.Namespace, stand: Stand, rate: float, slo: Slo) -> list[dict[str, Any]]:
    """Return a row for each system in each round."""
    rows = []
    for number in range(args.rounds):
        asks = load.poisson(rate, args.seconds, TUNING + 1 + number)
        turn = number % len(stand.sides)
        for side in stand.sides[turn:] + stand.sides[:turn]:
            row = await stand.offered(side, WINNER, asks, slo, 10 * number + stand.sides.index(side))
            rows.append({"round": number + 1, **row})
            say(json.dumps(rows[-1]))
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean and the spread of each system's attainment, and of fusion's over the better of the others."""
    by_round: dict[int, dict[str, float]] = {}
    for row in rows:
        by_round.setdefault(row["round"], {})[row["system"]] = row["attainment"]
    found = {name: spread([one[name] for one in by_round.values()]) for name in next(iter(by_round.values()))}
    ratios = []
    for one in by_round.values():
        best = max(share for name, share in one.items() if name != "fusion")
        ratios.append(one["fusion"] / max(best, 1e-3))
    return {"attainment": found, "over_best": spread(ratios)}


def spread(values: list[float]) -> dict[str, float]:
    """Return mean, least and most."""
    return {"mean": round(statistics.fmean(values), 4), "least": min(values), "most": max(values)}


def say(line: str) -> None:
    """Print at once."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="a folder that holds one version of SGLang")
    parser.add_argument("--rust", required=True, help="an interpreter that has sglang_router")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30, help="of traffic, for each system in each round")
    parser.add_argument("--load", type=float, default=1.5, help="offered rate over the capacity")
    parser.add_argument("--scale", type=float, default=5, help="SLOs over the latencies of an idle server")
    parser.add_argument("--logs", type=Path, help="keep the logs in this folder")
    parser.add_argument("--result", help="write results/RESULT.json")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(compare(args, args.logs or Path(folder)))
    words = ["PYTHON" if word == args.rust else word for word in sys.argv]
    facts = {
        **record("measured", seed=TUNING, command=command_line("python", words), took_part=("aiohttp",)),
        "cpus": os.cpu_count(),
        "load_average": [round(share, 1) for share in (before, os.getloadavg()[0])],
    }
    print(json.dumps(facts | found, indent=1))
    if args.result:
        manifest.write(args.result, facts | found)


if __name__ == "__main__":
    main()
