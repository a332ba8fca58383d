"""Real SGLang servers on this machine's CPU, and what the simulator says of the same requests.

    PYTHONPATH=. .venv-sglang/bin/python benchmarks/sglang_simulated.py --tree .venv-sglang/sglang-0.5.23

Three layouts of two servers behind our gateway, with a small random Llama whose prefill is mostly compute:

* unified: stock servers that do all of a request, in turn;
* PD: dual-role servers, of which one only prefills and the other only decodes. Stock ones keep both cores busy while
  they poll for transfers, so that nothing would be left to compute with;
* dual: the same servers, of which Arrow decides.

Each server has a core of its own.

Each layout gets Poisson traffic at three shares of its own capacity. Layouts and rates take turns. The simulator gets
the same requests at the same times, with the engine's settings. What else it is told is measured in the same round,
one request or one batch at a time, and nothing is fitted to the traffic:

* step times: `pdplugins profile from-endpoint` on one idle stock server;
* three factors for them, one of prefill and two of decode: how much slower than that a server of the layout is in the
  mean while the other one beside it gets half of the layout's requests/s, and it is idle between its own as with the
  other half. The profile has medians, which pass over a machine's slow spells. All of it runs on the same cores, and a
  dual-role server looks for hand-overs in each step. The first decode steps after a pause take longer than later ones:
  a batch of one has the factor of a short answer after a pause, and larger batches have that of the tokens that a long
  answer has more. Unified servers get requests in turn, so while one has a request the other one is busy more often
  than else: so are they when their factors are measured. A virtual machine is now faster, now slower, so fixed pieces
  of work are timed on each core all the while. The factors are those of all rounds, in such pieces, at the speed that
  the machine has during the traffic;
* what a request costs outside of the gateway and of steps, which takes the engine's core: what the TTFT of a prompt of
  one token has more than a decode step;
* the hand-over: what the TTFT through the two servers of PD has more than that through the unified ones. Arrow chooses
  the decode server after prefill, so its hand-over is asked for late, with a request of its own and a step. What the
  first server computes longer for that than with PD is that step; what it takes longer still is the request's way.
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
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import manifest
import yaml
from fusion_live import SHAPE, say
from idle_server import (
    CHUNK,
    ENDS,
    REPEATS,
    SOME_TRANSFER,
    TOKENS,
    TURNS,
    Besides,
    Engine,
    Idle,
    Late,
    Pace,
    Slower,
    measured_profile,
    ttfts_s,
)
from kv_overlap import make_model

from benchmarks.rig import load, servers
from benchmarks.rig.load import Ask, Heard, Slo
from benchmarks.rig.servers import Server
from benchmarks.rig.sides import Place, Side
from benchmarks.rig.speed import Clock, Pieces, Speed
from pdplugins.config import Config, find, parse
from pdplugins.provenance import command_line, record
from pdplugins.sim.run.simulate import simulate
from pdplugins.workloads.trace import TraceRequest

SHARES = (0.15, 0.3, 0.45)
"""Of a layout's capacity: with more, servers, gateway and client wait for each other's cores."""
LONGEST_FULL_S = 12.0
"""For so long the capacity of a layout is measured at most."""
AT_ONCE = 32
PATIENCE = Slo(1e3, 1e3)
"""No request is cut off."""
OPTIONS = ("--disable-overlap-schedule", "--stream-interval", "8")
"""Of every server. On a CPU a step blocks the scheduler, so there is nothing to overlap: each token would only come one
step late. Eight tokens travel at once, because the processes that pass them on take the cores of the engines."""
MANY = 1000
"""Prefill steps in a row of a dual-role server while requests decode: it prefills first, as stock servers do."""
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
    late: bool = False
    """Whether its router chooses the decode server after prefill."""

    def config(self, profile: Path, besides: Besides, late: Late | None = None) -> dict[str, Any]:
        """Return the config file's content, for the gateway and the simulator."""
        one = {"replicas": 1, "tp": 1}
        settings = {"order": "prefill_first", "step_tokens": CHUNK} | besides._asdict()
        settings |= {"first_token": "transfer", "overlap": False, "polled_handoff": True}
        settings |= late._asdict() if late else {}
        found = yaml.safe_load(find(self.shipped).read_text())
        deployment = {"profile": str(profile), "gpu_budget": 2, "prefill": one, "decode": one}
        simulation = found.get("simulation", {}) | settings
        return {**found, "deployment": deployment, "simulation": simulation, **self.own}


LAYOUTS = (
    Layout("unified", "stock-round-robin", {"router": {"name": "round-robin", "colocated": True}}, dual_role=False),
    Layout("PD", "stock-round-robin", {"sglang": {"dual_role": True}}),
    Layout("dual", "arrow", {"slo": {"ttft_s": 1.0, "tpot_s": 0.08}}, late=True),
)
NAMES = [layout.name for layout in LAYOUTS]


def started(place: Place, layout: Layout) -> list[Server]:
    """Start the servers of a layout, each on a core of its own."""
    name, options, more = "unified", list(OPTIONS), dict[str, Any]()
    if layout.dual_role:
        name, options, more = "dual", [*servers.DUAL, *OPTIONS], {"config": place.folder / "servers.yaml"}
        more["config"].write_text(yaml.safe_dump({"sglang": {"dual_role": True, "prefill_burst": MANY}}))
    cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
    return [
        server
        for number, core in zip(range(2), cores, strict=False)
        for server in _on(core, place, f"{name}-{number}", options, **more)
    ]


def _on(core: int, place: Place, name: str, options: Sequence[str], **more: Any) -> list[Server]:
    """Start a server on one core: else the engines of two are on the same one now and then, for some steps."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # which what is started inherits
    try:
        return place.servers(name, options, **more)
    finally:
        os.sched_setaffinity(0, before)


def cpu_s(pair: Sequence[Server]) -> tuple[float, float]:
    """Return the seconds that the threads of servers have run, and that they waited for a core although they could."""
    sessions, run, waited = {server.process.pid for server in pair}, 0, 0
    for path in Path("/proc").glob("[0-9]*/task/*/schedstat"):
        with suppress(OSError):  # it has ended meanwhile
            if os.getsid(int(path.parts[2])) in sessions:
                mine = path.read_text().split()
                run, waited = run + int(mine[0]), waited + int(mine[1])
    return run / 1e9, waited / 1e9


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One run of a layout."""

    asks: list[Ask]
    heard: list[Heard]
    speed: Speed
    """Of the machine meanwhile."""
    clocks: tuple[Clock, Clock]
    """For prefill and for decode."""
    pace: Pace
    """Of a server with a busy neighbour, in pieces of work."""
    idle: Idle
    """What was measured in the same round."""
    waited: float
    """Share of the time in which the threads of its servers could have run that they waited for a core."""

    def means(self) -> dict[str, float]:
        """Return what clients heard."""
        return means([one.ttft_s for one in self.heard], [one.tpot_s for one in self.heard])

    def slower(self, paces: Sequence[Pace]) -> Slower:
        """Return by how much its servers were slower meanwhile than the profile says.

        :param paces: of all runs of the layout at this rate.
        """
        return Pace.mean(paces).at(self.speed).slower_than(self.idle.engine.pace)


class Stand:
    """All layouts; the servers of one run at a time.

    :param repeats: of each point of the profile.
    :param pieces: are worked on all the while.
    """

    def __init__(self, place: Place, repeats: int, pieces: Pieces) -> None:
        self._place = place
        self._repeats = repeats
        self._pieces = pieces
        self._pairs: dict[bool, list[Server]] = {}
        """Servers, by whether they are dual-role ones."""
        self._sides: dict[str, Side] = {}
        self._numbers = itertools.count()

    async def start(self, layouts: Sequence[str]) -> None:
        """Start those of `layouts`, and what they are measured against; stop them where they are."""
        engine = await self._profiled(1)  # for Arrow's own predictions, and to warm the server up
        against = {"unified", "PD"} if "dual" in layouts else {"unified"}
        for layout in (one for one in LAYOUTS if one.name in against | set(layouts)):
            path = self._written(layout, engine.profile(SOME_TRANSFER), Besides(), "live")
            pair = await self._servers(layout)
            front, _ = self._place.gateway(path, pair)
            self._sides[layout.name] = side = Side(layout.name, pair, {layout.name: front})
            await side.resume(front)
            side.pause()

    async def idle(self) -> Idle:
        """Measure servers that nobody else uses."""
        ends: dict[str, list[list[float]]] = {name: [[] for _ in ENDS] for name in self._sides}
        busy: dict[str, list[list[float]]] = {name: [[] for _ in ENDS] for name in self._sides}
        direct: list[float] = []
        for _, (name, side), (index, tokens) in itertools.product(range(TURNS), self._sides.items(), enumerate(ENDS)):
            async with self._running(name) as url:
                took_part = side.pair[: 2 if name == "unified" else 1]  # those get requests in turn
                before_s, _ = cpu_s(took_part)
                ends[name][index].extend(await ttfts_s(url, tokens))
                busy[name][index].append((cpu_s(took_part)[0] - before_s) / REPEATS)
                if name == "unified" and not index:
                    direct.extend(await ttfts_s(side.pair[0].url, tokens))
        async with self._running("unified"):
            engine = await self._profiled(self._repeats)
        medians, busy_s = (
            {name: [*map(statistics.median, columns)] for name, columns in found.items()} for found in (ends, busy)
        )
        return Idle(engine, medians, busy_s, statistics.median(direct))

    async def beside(self, name: str, rate: float) -> Pace:
        """Measure a server of a layout while the one beside it gets its half of `rate` requests a second.

        Return it in pieces of work.
        """
        dice = random.Random(50)  # noqa: S311 - traffic, not secrets
        in_turn, asked = name == "unified", asyncio.Event()

        def gap_s() -> float:
            return dice.expovariate(rate) + dice.expovariate(rate) if in_turn else dice.expovariate(rate / 2)

        async def pause() -> None:
            """Wait for the next request of Poisson traffic, of which the other server has just got one, or not."""
            if in_turn:
                asked.clear()
                await asked.wait()
            await asyncio.sleep(dice.expovariate(rate if in_turn else rate / 2))

        async with self._running(name):
            server, other = self._sides[name].pair
            traffic = asyncio.create_task(_busy(other.url, gap_s, asked))
            try:
                began_s = time.monotonic()
                pace = await Pace.now_and_then(server.url, pause)
                if traffic.done():
                    traffic.result()  # it has failed, and the server had no neighbour
                return pace.per(self._pieces.speed(began_s, time.monotonic()))
            finally:
                traffic.cancel()
                await asyncio.gather(traffic, return_exceptions=True)

    def told(self, name: str, idle: Idle, slower: Slower) -> Path:
        """Write the config of the simulator for a layout."""
        layout = LAYOUTS[NAMES.index(name)]
        transfer = SOME_TRANSFER if layout.name == "unified" else idle.transfer("PD")
        late = idle.late("PD", layout.name) if layout.late else None
        profile = idle.engine.profile(transfer, slower)
        return self._written(layout, profile, idle.besides, f"simulated-{next(self._numbers)}", late)

    async def _profiled(self, repeats: int) -> Engine:
        server, _ = await self._servers(LAYOUTS[0])
        out = self._place.folder / "endpoint.json"
        return Engine(await asyncio.to_thread(measured_profile, server.url, self._place.model, out, repeats))

    async def _servers(self, layout: Layout) -> list[Server]:
        if (pair := self._pairs.get(layout.dual_role)) is None:
            pair = self._pairs[layout.dual_role] = started(self._place, layout)
            for server in pair:
                await asyncio.to_thread(server.wait)
        return pair

    def _written(
        self, layout: Layout, profile: dict[str, Any], besides: Besides, name: str, late: Late | None = None
    ) -> Path:
        path = self._place.folder / f"{layout.name}-{name}.yaml"
        engine = path.with_suffix(".json")
        engine.write_text(json.dumps(profile))
        path.write_text(yaml.safe_dump(layout.config(engine, besides, late)))
        return path

    @asynccontextmanager
    async def _running(self, name: str) -> AsyncIterator[str]:
        side = self._sides[name]
        await side.resume(side.fronts[name])
        await side.idle()
        await side.flush()
        yield side.fronts[name].url
        await side.idle()
        side.pause()

    @property
    def names(self) -> list[str]:
        """The layouts that were started."""
        return list(self._sides)

    async def capacity(self, name: str, seconds: float) -> float:
        """Return the requests/s of a layout under as many clients as it takes."""
        async with self._running(name) as url:
            return await load.saturate(url, seconds, AT_ONCE, seed=NAMES.index(name), sampled=True)

    async def run(self, name: str, rate: float, seconds: float, idle: Idle, seeds: Iterator[int]) -> Run:
        """Measure how fast a server of a layout is beside others, then offer traffic to both."""
        pace = await self.beside(name, rate)
        asks, pair = load.poisson(rate, seconds, next(seeds)), self._sides[name].pair
        async with self._running(name) as url:
            before, began_s = cpu_s(pair), time.monotonic()
            heard = await load.offer(url, asks, PATIENCE, next(seeds), sampled=True)
            after, ended_s = cpu_s(pair), time.monotonic()
        ran_s, waited_s = after[0] - before[0], after[1] - before[1]
        speed, clocks = self._pieces.speed(began_s, ended_s), self._pieces.clocks(began_s, ended_s)
        return Run(asks, heard, speed, clocks, pace, idle, waited_s / (ran_s + waited_s))

    def foretold(self, name: str, runs: Sequence[Run]) -> list[dict[str, float]]:
        """Return what the simulator says of runs of a layout at one rate."""
        paces = [run.pace for run in runs]
        return [predicted(self.told(name, run.idle, run.slower(paces)), run.asks, run.clocks) for run in runs]

    def stop(self) -> None:
        """End all of it."""
        pairs = [server for pair in self._pairs.values() for server in pair]
        Side("all", pairs, {name: side.fronts[name] for name, side in self._sides.items()}).stop()


async def _busy(url: str, gap_s: Callable[[], float], asked: asyncio.Event) -> None:
    """Send traffic to a server until this is cancelled; set `asked` with each request."""
    dice, due_s = random.Random(51), time.perf_counter()  # noqa: S311 - traffic, not secrets
    async with load.session() as client, asyncio.TaskGroup() as group:
        while True:
            due_s += gap_s()
            await asyncio.sleep(due_s - time.perf_counter())
            ask = Ask(0.0, *load.lengths(dice))
            group.create_task(load.send(client, url, ask, load.body(ask, dice, sampled=True)))
            asked.set()


def predicted(config: Path, asks: Sequence[Ask], clocks: tuple[Clock, Clock]) -> dict[str, float]:
    """Return what the simulator says of the same requests.

    It knows machines of one speed. So requests come when the clock of prefill, or that of decode, says, and what it
    answers is read off the same clock.
    """
    settings = parse(yaml.safe_load(config.read_text()), config.name)
    (ttfts, _), (_, tpots) = (latencies(settings, asks, clock) for clock in clocks)
    return means(ttfts, tpots)


def latencies(settings: Config, asks: Sequence[Ask], clock: Clock) -> tuple[list[float], list[float]]:
    """Return the TTFT and the TPOT of all requests that have an answer."""
    trace = [TraceRequest(clock.own_s(ask.arrival_s), ask.prompt_tokens, ask.output_tokens) for ask in asks]
    _, outcome = simulate(settings, trace, trace_name="live", command="live", seed=0)
    ttfts, tpots = list[float](), list[float]()
    for one in outcome.records:
        if one.ttft_s is None or one.tpot_s is None:
            continue
        first, gaps = one.arrival_s + one.ttft_s, one.osl_tokens - 1
        times = [clock.real_s(s) for s in (one.arrival_s, first, first + gaps * one.tpot_s)]
        ttfts.append(times[1] - times[0])
        tpots.append((times[2] - times[1]) / max(gaps, 1))
    return ttfts, tpots


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
    place = Place(tree, make_model(folder / "model", SHAPE), folder, "", TOKENS)
    with Pieces(folder) as pieces:
        return {"sglang": tree.name, "bars": BARS, **await measured(args, Stand(place, args.repeats, pieces), folder)}


async def measured(args: argparse.Namespace, stand: Stand, folder: Path) -> dict[str, Any]:
    """Return the capacities, the rows, and what the simulator was told; keep each request."""
    try:
        await stand.start(args.layouts)
        full_s = min(args.seconds, LONGEST_FULL_S)
        capacities = {name: round(await stand.capacity(name, full_s), 3) for name in stand.names}
        say(f"capacities: {capacities}")
        runs, told = await rounds(args, stand, capacities)
        kept = [{"layout": name, "share": share, "runs": [*map(asdict, all_)]} for (name, share), all_ in runs.items()]
        (folder / "runs.json").write_text(json.dumps(kept, default=str))
        rows = [row(name, share, cells, stand.foretold(name, cells)) for (name, share), cells in runs.items()]
    finally:
        stand.stop()
    return {"capacity": capacities, "rows": rows, "told": told}


async def rounds(
    args: argparse.Namespace, stand: Stand, capacities: dict[str, float]
) -> tuple[dict[tuple[str, float], list[Run]], list[dict[str, Any]]]:
    """Return the runs of each layout at each share of its capacity, and what was measured for them in each round."""
    runs: dict[tuple[str, float], list[Run]] = {}
    told: list[dict[str, Any]] = []
    seeds = itertools.count(1000 * args.seed)  # other prompts in each run, so that none finds its own in a cache
    for _ in range(args.rounds):
        idle = await stand.idle()
        told.append(idle.facts())
        say(f"idle: {told[-1]}")
        for share in args.shares:
            for name in args.layouts:
                run = await stand.run(name, share * capacities[name], args.seconds, idle, seeds)
                cells = runs.setdefault((name, share), [])
                cells.append(run)
                slower = {what: round(one, 3) for what, one in run.slower([run.pace])._asdict().items()}
                told[-1][f"{name} at {share:.0%}: slower"] = slower
                told[-1][f"{name} at {share:.0%}: speed"] = asdict(run.speed)
                said = stand.foretold(name, cells)[-1]
                say(f"{name} at {share:.0%}, slower by {slower}: {run.means()}, simulated so far: {said}")
    return runs, told


def row(name: str, share: float, runs: Sequence[Run], simulated: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the medians over rounds of the means of a run, measured and predicted, and by how much they differ."""
    live = [run.means() for run in runs]
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
    parser.add_argument("--seconds", type=float, default=24, help="of traffic, for each layout at each rate in a round")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of each point of the profile")
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
