"""Real SGLang servers on this machine's CPU, and what the simulator says of the same requests.

    PYTHONPATH=. .venv-sglang/bin/python benchmarks/sglang_simulated.py --tree .venv-sglang/sglang-0.5.23

Three layouts of two servers behind our gateway, with a small random Llama whose prefill is mostly compute:

* unified: stock servers that do all of a request, in turn;
* PD: dual-role servers, of which one only prefills and the other only decodes. Stock ones keep both cores busy while
  they poll for transfers, so that nothing would be left to compute with;
* dual: the same servers, of which Arrow decides.

What the simulator is told is measured while nothing else runs, one request or one batch at a time:

* step times: `pdplugins profile from-endpoint` on one stock server;
* what a request costs outside of the engine: what the TTFT of a prompt of one token has more than a decode step;
* the KV transfer: what the TTFT through the pair has more than that through the unified servers.

Then each layout gets Poisson traffic at three shares of its own capacity. Layouts and rates take turns. The simulator
gets the same requests at the same times, with the engine's settings. Nothing is fitted to the runs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import manifest
import yaml
from fusion_live import SHAPE, TOKENS, say
from kv_overlap import make_model

from benchmarks.rig import load, servers
from benchmarks.rig.load import Ask, Heard, Slo
from benchmarks.rig.servers import Server
from benchmarks.rig.sides import Place, Side
from pdplugins.config import find, parse
from pdplugins.provenance import command_line, record
from pdplugins.sim.run.simulate import simulate
from pdplugins.workloads.trace import TraceRequest

PROMPTS, BATCHES, CONTEXTS = (1, 64, 128, 256, 512, 1024, 1536), (1, 2, 4, 8, 16), (64, 512, 1024)
"""What the profile is measured at, in tokens and requests."""
ENDS = (1, 64, 1536)
"""Prompts whose TTFT is taken through the gateway: the first for what a request costs, the others for a transfer."""
SHARES = (0.15, 0.3, 0.45)
"""Of a layout's capacity: with more, servers, gateway and client wait for each other's cores."""
REPEATS = 15
AT_ONCE = 32
PATIENCE = Slo(1e3, 1e3)
"""No request is cut off."""
IN_TURN = "--disable-overlap-schedule"
"""On a CPU a step blocks the scheduler, so there is nothing to overlap: each token would only come one step late."""
CHUNK = 256
"""Tokens of a step: `servers.FLAGS`."""
MANY = 1000
"""Prefill steps in a row of a dual-role server while requests decode: it prefills first, as stock servers do."""
DICE = random.Random(0)  # noqa: S311 - prompts, not secrets
BARS = {"ttft": 0.20, "tpot": 0.10}
"""How far the prediction of a mean may be off."""


@dataclass(frozen=True)
class Layout:
    """One way to use two servers."""

    name: str
    shipped: str
    """Config that it starts from."""
    own: dict[str, Any]
    dual_role: bool = True

    def config(self, profile: Path, outside_s: float) -> dict[str, Any]:
        """Return the config file's content, for the gateway and the simulator."""
        one = {"replicas": 1, "tp": 1}
        settings = {"order": "prefill_first", "step_tokens": CHUNK, "frontend_s": outside_s}
        settings |= {"first_token": "transfer", "overlap": False}
        found = yaml.safe_load(find(self.shipped).read_text())
        deployment = {"profile": str(profile), "gpu_budget": 2, "prefill": one, "decode": one}
        simulation = found.get("simulation", {}) | settings
        return {**found, "deployment": deployment, "simulation": simulation, **self.own}


LAYOUTS = (
    Layout("unified", "stock-round-robin", {"router": {"name": "round-robin", "colocated": True}}, dual_role=False),
    Layout("PD", "stock-round-robin", {"sglang": {"dual_role": True}}),
    Layout("dual", "arrow", {"slo": {"ttft_s": 1.0, "tpot_s": 0.08}}),
)
NAMES = [layout.name for layout in LAYOUTS]


def started(place: Place, layout: Layout) -> list[Server]:
    """Start the servers of a layout."""
    if not layout.dual_role:
        return place.servers("unified", [IN_TURN], [IN_TURN])
    config = place.folder / "servers.yaml"
    config.write_text(yaml.safe_dump({"sglang": {"dual_role": True, "prefill_burst": MANY}}))
    return place.servers("dual", *[[*servers.DUAL, IN_TURN]] * 2, config=config)


# --- what the simulator is told ---------------------------------------------------------------------------------------


def cpu_s(pair: Sequence[Server]) -> tuple[float, float]:
    """Return the seconds that the threads of servers have run, and that they waited for a core although they could."""
    sessions, run, waited = {server.process.pid for server in pair}, 0, 0
    for path in Path("/proc").glob("[0-9]*/task/*/schedstat"):
        with suppress(OSError):  # it has ended meanwhile
            if os.getsid(int(path.parts[2])) in sessions:
                mine = path.read_text().split()
                run, waited = run + int(mine[0]), waited + int(mine[1])
    return run / 1e9, waited / 1e9


async def ttft_s(url: str, tokens: int) -> float:
    """Return the median TTFT of prompts of so many tokens, one at a time."""
    ask, found = Ask(0.0, tokens, 2), []
    async with load.session() as client:
        for _ in range(REPEATS):
            heard = await load.send(client, url, ask, load.body(ask, DICE))
            assert heard.ttft_s is not None, "a request failed"
            found.append(heard.ttft_s)
    return statistics.median(found)


def measured_profile(url: str, model: Path, out: Path) -> dict[str, Any]:
    """Return what `pdplugins profile from-endpoint` says of an idle server."""
    axes = {"--prompts": PROMPTS, "--concurrency": BATCHES, "--contexts": CONTEXTS}
    words = [word for name, values in axes.items() for word in (name, ",".join(map(str, values)))]
    program = str(Path(sys.executable).with_name("pdplugins"))
    command = [program, "profile", "from-endpoint", url, "--model", str(model), "--gpu", "h100", "--out", str(out)]
    subprocess.run([*command, "--shape", str(model / "config.json"), "--force", *words], check=True)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@dataclass(frozen=True)
class Idle:
    """What was measured of servers that nobody else used."""

    raw: dict[str, Any]
    """The profile of one server, as its client feels it."""
    unified_s: Sequence[float]
    """TTFT of the prompts of `ENDS` through the gateway, of a unified server."""
    pair_s: Sequence[float]
    """The same through a prefill and a decode server."""

    @property
    def step_ms(self) -> float:
        """A decode step of one request."""
        found: float = self.tables()["decode"]["raw_ms"][0][0]
        return found

    def tables(self) -> dict[str, Any]:
        """Return the prefill and the decode table as they were measured."""
        return {name: next(iter(self.raw[name].values())) for name in ("prefill", "decode")}

    @property
    def outside_s(self) -> float:
        """What a request costs outside of the engine: a prompt of one token takes the engine a decode step."""
        return max(self.unified_s[0] - self.step_ms / 1e3, 0.0)

    @property
    def transfer(self) -> tuple[float, float]:
        """Latency, and time per token."""
        short, long = (both - one for both, one in zip(self.pair_s[1:], self.unified_s[1:], strict=True))
        per_token_s = max((long - short) / (ENDS[2] - ENDS[1]), 1e-7)
        return max(short - ENDS[1] * per_token_s, 1e-4), per_token_s

    def profile(self) -> dict[str, Any]:
        """Return the profile of the engine alone.

        The simulator cuts prompts into chunks itself, and each chunk takes what a step takes at least. So the prompts
        of several chunks lose that of all but one.
        """
        table = self.tables()["prefill"]
        outside_ms = table["raw_ms"][0] - self.step_ms
        more = [(tokens - 1) // CHUNK * self.step_ms for tokens in table["tokens"]]
        engine = [ms - outside_ms - less for ms, less in zip(table["raw_ms"], more, strict=True)]
        rising = [round(max(engine[: index + 1]), 3) for index in range(len(engine))]
        here, gib = "this server", 2.0**30
        memory = {
            "gpu_bytes": gib + TOKENS * SHAPE.kv_bytes, "reserved_bytes": 0, "model_bytes": gib,
            "kv_bytes_per_token": SHAPE.kv_bytes, "source": here,
        }  # fmt: skip
        latency_s, per_token_s = self.transfer
        link = {"latency_s": latency_s, "bytes_per_s": SHAPE.kv_bytes / per_token_s, "source": here}
        prefill = {"1": table | {"raw_ms": rising}}
        return self.raw | {"memory": memory, "transfer": link, "prefill": prefill}

    def facts(self) -> dict[str, Any]:
        """Return it for the result."""
        latency_s, per_token_s = self.transfer
        return {
            "outside_ms": round(1e3 * self.outside_s, 3),
            "transfer_ms": round(1e3 * latency_s, 3),
            "transfer_us_per_token": round(1e6 * per_token_s, 3),
            "unified_ms": dict(zip(ENDS, [round(1e3 * one, 3) for one in self.unified_s], strict=True)),
            "pair_ms": dict(zip(ENDS, [round(1e3 * one, 3) for one in self.pair_s], strict=True)),
            **self.tables(),
        }


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One run of a layout."""

    asks: list[Ask]
    heard: list[Heard]
    waited: float
    """Share of the time in which the threads of its servers could have run that they waited for a core."""

    def means(self) -> dict[str, float]:
        """Return what clients heard."""
        return means([one.ttft_s for one in self.heard], [one.tpot_s for one in self.heard])


class Stand:
    """All layouts; the servers of one run at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._pairs: dict[bool, list[Server]] = {}
        """Servers, by whether they are dual-role ones."""
        self._sides: dict[str, Side] = {}
        self.configs: dict[str, Path] = {}
        """What the simulator is told, by layout."""

    async def start(self, layouts: Sequence[Layout]) -> Idle:
        """Start everything; return what was measured of idle servers."""
        unified, pair, _ = LAYOUTS
        measured, engine = self._place.folder / "endpoint.json", self._place.folder / "engine.json"
        server, _ = await self._servers(unified)
        raw = await asyncio.to_thread(measured_profile, server.url, self._place.model, measured)
        idle = Idle(raw, *[await self._ends(layout, measured) for layout in (unified, pair)])
        engine.write_text(json.dumps(idle.profile()))
        for layout in layouts:
            self.configs[layout.name] = self._written(layout, engine, idle.outside_s, "simulated")
            if layout.name not in self._sides:
                await self._ends(layout, engine)
        return idle

    async def _servers(self, layout: Layout) -> list[Server]:
        if (pair := self._pairs.get(layout.dual_role)) is None:
            pair = self._pairs[layout.dual_role] = started(self._place, layout)
            for server in pair:
                await asyncio.to_thread(server.wait)
        return pair

    async def _ends(self, layout: Layout, profile: Path) -> list[float]:
        """Start a layout, stop it where it is, and return the TTFT of the prompts of `ENDS`."""
        pair = await self._servers(layout)
        for server in pair:
            server.signal(signal.SIGCONT)
        front, _ = self._place.gateway(self._written(layout, profile, 0.0, "live"), pair)
        self._sides[layout.name] = Side(layout.name, pair, {layout.name: front})
        async with self._running(layout.name) as url:
            return [await ttft_s(url, tokens) for tokens in ENDS]

    def _written(self, layout: Layout, profile: Path, outside_s: float, name: str) -> Path:
        path = self._place.folder / f"{layout.name}-{name}.yaml"
        path.write_text(yaml.safe_dump(layout.config(profile, outside_s)))
        return path

    @asynccontextmanager
    async def _running(self, name: str) -> AsyncIterator[str]:
        side = self._sides[name]
        await side.resume(side.fronts[name])
        yield side.fronts[name].url
        await side.idle()
        side.pause()

    async def capacity(self, name: str, seconds: float) -> float:
        """Return the requests/s of a layout under as many clients as it takes."""
        async with self._running(name) as url:
            return await load.saturate(url, seconds, AT_ONCE, seed=NAMES.index(name))

    async def offered(self, name: str, asks: list[Ask], seed: int) -> Run:
        """Return what clients of a layout heard, and how long its servers waited for a core."""
        async with self._running(name) as url:
            before = cpu_s(self._sides[name].pair)
            heard = await load.offer(url, asks, PATIENCE, seed)
            after = cpu_s(self._sides[name].pair)
        run_s, waited_s = (now - then for now, then in zip(after, before, strict=True))
        return Run(asks, heard, waited_s / (run_s + waited_s))

    def stop(self) -> None:
        """End all of it."""
        pairs = [server for pair in self._pairs.values() for server in pair]
        Side("all", pairs, {name: side.fronts[name] for name, side in self._sides.items()}).stop()


def predicted(config: Path, asks: list[Ask]) -> dict[str, float]:
    """Return what the simulator says of the same requests."""
    trace = [TraceRequest(ask.arrival_s, ask.prompt_tokens, ask.output_tokens) for ask in asks]
    settings = parse(yaml.safe_load(config.read_text()), config.name)
    _, outcome = simulate(settings, trace, trace_name="live", command="live", seed=0)
    done = [one for one in outcome.records if one.ttft_s is not None]
    return means([one.ttft_s for one in done], [one.tpot_s for one in done])


def means(ttfts: Sequence[float | None], tpots: Sequence[float | None]) -> dict[str, float]:
    """Return means in milliseconds, and how many requests they are of."""
    firsts, later = [one for one in ttfts if one is not None], [one for one in tpots if one is not None]
    return {
        "ttft_ms": round(1e3 * statistics.fmean(firsts), 2),
        "tpot_ms": round(1e3 * statistics.fmean(later), 2),
        "requests": len(firsts),
    }


async def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure everything."""
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)  # as Ctrl-C does: nothing stays
    tree = args.tree.resolve()
    stand = Stand(Place(tree, make_model(folder / "model", SHAPE), folder, "", TOKENS))
    try:
        idle = (await stand.start([layout for layout in LAYOUTS if layout.name in args.layouts])).facts()
        say(f"idle: {idle}")
        capacities = {name: round(await stand.capacity(name, args.seconds), 3) for name in args.layouts}
        say(f"capacities: {capacities}")
        runs = await rounds(args, stand, capacities)
        cells = [{"layout": name, "share": share, "runs": [*map(asdict, all_)]} for (name, share), all_ in runs.items()]
        (folder / "runs.json").write_text(json.dumps(cells))
        rows = [row(name, share, cells, stand.configs[name]) for (name, share), cells in runs.items()]
    finally:
        stand.stop()
    return {"sglang": tree.name, "idle": idle, "capacity": capacities, "bars": BARS, "rows": rows}


async def rounds(
    args: argparse.Namespace, stand: Stand, capacities: dict[str, float]
) -> dict[tuple[str, float], list[Run]]:
    """Return the runs of each layout at each share of its capacity."""
    runs: dict[tuple[str, float], list[Run]] = {}
    fresh = itertools.count(100)  # of prompts, so that no run finds those of another one in a cache
    for number in range(args.rounds):
        for share in args.shares:
            for name, capacity in capacities.items():
                asks = load.poisson(share * capacity, args.seconds, args.seed + number)
                runs.setdefault((name, share), []).append(await stand.offered(name, asks, next(fresh)))
                say(f"{name} at {share}: {runs[name, share][-1].means()}")
    return runs


def row(name: str, share: float, runs: list[Run], config: Path) -> dict[str, Any]:
    """Return the medians over rounds of the means of a run, measured and predicted, and by how much they differ."""
    live, simulated = [run.means() for run in runs], [predicted(config, run.asks) for run in runs]
    found: dict[str, Any] = {"layout": name, "share": share, "requests": sum(one["requests"] for one in live)}
    found["failed"] = sum(len(run.asks) for run in runs) - found["requests"]
    found["waited"] = round(statistics.median(run.waited for run in runs), 4)
    for what in BARS:
        both = [(one[f"{what}_ms"], two[f"{what}_ms"]) for one, two in zip(live, simulated, strict=True)]
        found[what] = {
            "live_ms": statistics.median(one for one, _ in both),
            "simulated_ms": statistics.median(two for _, two in both),
            "off": round(statistics.median(two / one - 1 for one, two in both), 4),
            "off_rounds": [round(two / one - 1, 4) for one, two in both],
        }
    say(json.dumps(found))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="a folder that holds one version of SGLang")
    parser.add_argument("--layouts", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="rates, of a layout's capacity")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=25, help="of traffic, for each layout at each rate in a round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="keep logs, profiles and every request in this folder")
    parser.add_argument("--result", help="write results/RESULT.json")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(compare(args, args.logs or Path(folder)))
    facts = {
        **record("measured", seed=args.seed, command=command_line("python", sys.argv), took_part=("aiohttp",)),
        "cpus": os.cpu_count(),
        "load_average": [round(share, 1) for share in (before, os.getloadavg()[0])],
    }
    print(json.dumps(facts | found, indent=1))
    if args.result:
        manifest.write(args.result, facts | found)


if __name__ == "__main__":
    main()
