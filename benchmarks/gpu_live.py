"""A real SGLang server on a GPU under open-loop load: SGLang's own chunks against steps that our schedulers size.

    PYTHONPATH=. python benchmarks/gpu_live.py --out live.json      with SGLang 0.5.16 and a GPU of 80 GB
    PYTHONPATH=. python benchmarks/gpu_live.py --publish live.json  in a checkout: write it as the result gpu-live
                                                                    (--join: with cells that had no time in that run)

The model has the shape of Llama-3.1-8B and random weights; prompts are token ids, and SGLang runs without a tokenizer.
One server takes the settings of one side after the other (`benchmarks/rig/switch.py`), each time while it is idle. So
all sides have the same process, weights, KV cache, CUDA graphs and client, and no minute of the GPU goes into starts.
`--apart` starts a server for each side instead, as its user would: without the switch, with SGLang's own options, and
with pdplugins installed by PDPLUGINS_CONFIG where a batch scheduler of ours is on.

A cell is one side at one rate: `--seconds` of Poisson arrivals, the same ones for each side, then as long as a request
may still be in time, `--drain-s` at most. What is left is aborted, and was not in time. Lengths are log-normal: prompts
of about 3,000 tokens, 16,000 at most; answers of about 150, 400 at most, and always as long as asked for. Rates are
shares of the requests/s that the simulator says one such worker serves at the most (`CAPACITY`).

Of each cell the result says which share of requests was in time (TTFT, and the mean time between its tokens),
percentiles of both over the requests that came whole, and what the engine's steps were: how many, how many had prompt
tokens and decodes, and how long those took that requests which decode had to wait for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from mixed_steps_gpu import LLAMA_8B, TINY, Watch, arguments, publish, versions

from benchmarks.rig import load, servers, switch
from benchmarks.rig.load import Ask, Heard, Slo
from pdplugins.processes.ports import free_ports
from pdplugins.processes.process import python
from pdplugins.resources import CONFIG_VARIABLE, DECISION_LOG_VARIABLE

ROOT = Path(__file__).parents[1]

RESULT = "gpu-live"
PROFILE = "h100-measured/llama-3.1-8b"
SLO = Slo(ttft_s=2.0, tpot_s=0.02)
CAPACITY = 10.0
"""Requests/s that one worker with this profile serves of this traffic, however late, in the simulator: 9.8 to 10.5 with
chunks of 512 to 8,192 tokens, when more than that are offered."""
LOADS = (0.9, 1.2, 0.6, 1.5)
"""Offered rate over CAPACITY: the most telling ones first, for when time runs out."""


@dataclass(frozen=True)
class Side:
    """How steps are composed."""

    chunk: int
    """SGLang's --chunked-prefill-size; with a policy, the most prompt tokens that it may give a step."""
    mixed: bool = False
    """SGLang's --enable-mixed-chunk."""
    policy: str | None = None
    """Name in POLICIES; None for SGLang alone."""


SIDES = {
    "chunk 8192": Side(8192),
    "chunk 512, mixed": Side(512, mixed=True),
    "fusion": Side(8192, mixed=True, policy="fusion"),
    "chunk 2048": Side(2048),
    "dynaserve": Side(8192, mixed=True, policy="dynaserve"),
}
"""The first one is SGLang's default on this GPU."""
POLICIES: dict[str, dict[str, Any]] = {
    "fusion": {"bundle": {"name": "fusion"}},
    "dynaserve": {"batch_scheduler": {"name": "dynaserve"}},
}


@dataclass(frozen=True)
class Scale:
    """What differs between a GPU and a CPU, which runs a tiny model."""

    model: dict[str, Any]
    options: tuple[str, ...]
    """More options of the server."""
    shrink: int = 1
    """Prompts and answers are so many times as short."""
    capacity: float = CAPACITY
    slo: Slo = SLO


GPU = Scale(LLAMA_8B, ("--mem-fraction-static", "0.83"))
CPU = Scale(
    {**TINY, "torch_dtype": "float32"},
    ("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--dtype", "float32",
     "--max-total-tokens", "65536", "--sleep-on-idle"),
    shrink=10, capacity=4.0, slo=Slo(ttft_s=2.0, tpot_s=0.1),
)  # fmt: skip
OPTIONS = (
    "--load-format", "dummy", "--skip-tokenizer-init", "--skip-server-warmup", "--disable-radix-cache",
    "--grammar-backend", "none", "--host", "127.0.0.1", "--max-prefill-tokens", "16384",
    "--max-running-requests", "512",
)  # fmt: skip
"""Of every server. No prompt repeats another, so a radix cache would only cost."""
START_S = 150.0
"""After which a server is given up that does not serve."""
DECISIONS = {"sample": 10, "most_per_s": 1000}
"""Of a batch scheduler's decisions one in ten is logged, and each fault."""


# --- traffic ----------------------------------------------------------------------------------------------------------


def lengths(dice: random.Random, shrink: int) -> tuple[int, int]:
    """Return prompt and output tokens of a request."""
    prompt = min(max(int(dice.lognormvariate(7.687, 0.8)), 64), 16_000)  # a median of 2,180, a mean of 3,000
    output = min(max(int(dice.lognormvariate(4.883, 0.5)), 8), 400)  # 132 and 150
    return max(prompt // shrink, 4), max(output // shrink, 4)


def poisson(rate: float, seconds: float, seed: int, shrink: int) -> list[Ask]:
    """Return what comes in `seconds` at `rate` requests a second."""
    dice, asks, now_s = random.Random(seed), list[Ask](), 0.0  # noqa: S311 - traffic, no secret
    while (now_s := now_s + dice.expovariate(rate)) < seconds:
        asks.append(Ask(now_s, *lengths(dice, shrink)))
    return asks


async def offer(url: str, asks: Sequence[Ask], seed: int, drain_s: float) -> tuple[list[Heard], float]:
    """Send each request when it is due, and cut off what is left `drain_s` after the last one.

    Also return by how much the latest one was sent too late. A TTFT counts from when its request was due.
    """
    dice, late = random.Random(seed), [0.0]  # noqa: S311 - prompts, no secrets
    bodies = [load.body(ask, dice) for ask in asks]
    began = time.perf_counter() + 0.1

    async def one(ask: Ask, data: bytes) -> Heard:
        await asyncio.sleep(began + ask.arrival_s - time.perf_counter())
        late.append(time.perf_counter() - began - ask.arrival_s)
        mine = late[-1]
        heard = await load.send(client, url, ask, data)
        return heard if heard.ttft_s is None else replace(heard, ttft_s=heard.ttft_s + mine)

    async with load.session() as client:
        tasks = [asyncio.create_task(one(ask, data)) for ask, data in zip(asks, bodies, strict=True)]
        await asyncio.wait(tasks, timeout=asks[-1].arrival_s + drain_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    heard = [Heard(ask) if task.cancelled() else task.result() for ask, task in zip(asks, tasks, strict=True)]
    return heard, max(late)


def scores(heard: Sequence[Heard], slo: Slo, seconds: float) -> dict[str, Any]:
    """Return shares of all requests that were in time, percentiles of those that came whole, and output tokens/s."""
    found = {**load.scores(heard, slo), "output_tokens": sum(one.ask.output_tokens for one in heard if one.ttft_s)}
    for name, values in (("ttft", [one.ttft_s for one in heard]), ("tpot", [one.tpot_s for one in heard])):
        times = sorted(value for value in values if value is not None)
        found |= {f"{name}_p{at}_s": round(percentile(times, at), 4) if times else None for at in (50, 90, 99)}
    return {**found, "output_tokens_per_s": round(found["output_tokens"] / seconds, 1)}


def percentile(ordered: Sequence[float], at: int) -> float:
    """Return the value that `at` hundredths of the ordered ones do not exceed."""
    return ordered[min(len(ordered) * at // 100, len(ordered) - 1)]


# --- the server -------------------------------------------------------------------------------------------------------


@dataclass
class Engine(servers.Server):
    """An SGLang server on the device of a scale; `options` holds all of its options, `env` all of its environment."""

    def start(self) -> servers.Server:
        """Start it; `wait` tells when it serves."""
        options = ["--model-path", str(self.model), "--port", str(self.port), "--nccl-port", str(free_ports(1)[0])]
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                python("sglang.launch_server", *options, *self.options),
                env=dict(self.env), stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return self


class Stand:
    """A folder with the model, the configs and the switch, and the server that runs now."""

    def __init__(self, folder: Path, scale: Scale, options: argparse.Namespace) -> None:
        self.folder, self.scale, self._more, self._tiny = folder, scale, options.set, options.tiny
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(scale.model))
        self.configs = {name: self._config(name) for name in POLICIES}
        self.engine: servers.Server | None = None
        self._plugin()

    def _config(self, name: str) -> Path:
        """Write the config of a batch scheduler; return where."""
        one = {"replicas": 1, "tp": 1}
        slo = {"ttft_s": self.scale.slo.ttft_s, "tpot_s": self.scale.slo.tpot_s}
        deployment = {"profile": PROFILE, "gpu_budget": 2, "prefill": one, "decode": one}
        config = {"slo": slo, "deployment": deployment, "decision_log": DECISIONS, **POLICIES[name]}
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def _plugin(self) -> None:
        """Make the switch a plugin that SGLang finds."""
        info = self.folder / "plugin" / "rig_switch-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rig-switch\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nrig_switch = benchmarks.rig.switch:register\n")

    @property
    def url(self) -> str:
        """Where the server is."""
        assert self.engine is not None
        return self.engine.url

    async def start(self, side: Side | None, log: str) -> None:
        """Start a server in place of the one that runs: for one side, or with the switch for all of them."""
        self.stop()
        at = side or Side(max(one.chunk for one in SIDES.values()), mixed=True)
        options = [*OPTIONS, *self.scale.options, "--chunked-prefill-size", str(at.chunk)]
        options += ["--enable-mixed-chunk"] if at.mixed else []
        options += [str(word) for word in self._more.get("options", [])]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PDPLUGINS", "RIG"))}
        paths = [str(ROOT), env.get("PYTHONPATH", "")]
        if self._tiny:
            env |= {name: value for name, value in servers.on_cpu(self.folder).items() if name != "PYTHONPATH"}
            paths.insert(0, str(servers.HERE / "stubs"))
        env[DECISION_LOG_VARIABLE] = str(self.folder / "engine.jsonl")
        if side is None:
            env[switch.VARIABLE] = str(self.folder / "switch.json")
            paths.insert(0, str(self.folder / "plugin"))
        elif side.policy is not None:
            env[CONFIG_VARIABLE] = str(self.configs[side.policy])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self.engine = Engine(ROOT, self.model, self.folder / log, options, env=env).start()
        await ready(self.engine)

    def turn(self, side: Side, name: str) -> Path:
        """Give the idle server with the switch the settings of a side; return the file that its steps will be in."""
        steps = self.folder / f"steps-{name}.jsonl"
        config = None if side.policy is None else str(self.configs[side.policy])
        on = {"chunk": side.chunk, "mixed": side.mixed, "config": config, "steps": str(steps)}
        fresh = self.folder / "switch.new"
        fresh.write_text(json.dumps(on))
        fresh.replace(self.folder / "switch.json")
        return steps

    def stop(self) -> None:
        """End the server."""
        if self.engine is not None:
            servers.stop(self.engine)
            self.engine = None


async def ready(engine: servers.Server) -> None:
    """Return once a server serves. Raises RuntimeError where it ends, or takes too long."""
    deadline = time.monotonic() + START_S
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
        while engine.runs and time.monotonic() < deadline:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with client.get(engine.url + "/v1/models") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.2)
    raise RuntimeError(f"no server: it {'is not there yet' if engine.runs else 'has ended'}")


async def idle(url: str, within_s: float = 30.0) -> None:
    """Abort what a server still has; return once it says twice that it has nothing: an aborted one may have a step."""
    deadline, was_quiet = time.monotonic() + within_s, False
    async with aiohttp.ClientSession() as client:
        while time.monotonic() < deadline:
            async with client.post(url + "/abort_request", json={"abort_all": True, "rid": ""}) as answer:
                await answer.read()
            async with client.get(url + "/v1/loads") as answer:
                loads = (await answer.json())["loads"]
            quiet = not any(one["num_running_reqs"] or one["num_waiting_reqs"] for one in loads)
            if quiet and was_quiet:
                return
            was_quiet = quiet
            await asyncio.sleep(0.2)
    raise TimeoutError(f"requests are left after {within_s:.0f} s")


# --- what the engine did ----------------------------------------------------------------------------------------------


def steps_of(path: Path, slo: Slo) -> dict[str, Any]:
    """Return what the steps of a cell were, by kind; times in ms."""
    if not path.exists():
        return {}
    steps = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("]")]
    prefills, mixed = [step for step in steps if step[0]], [step for step in steps if step[0] and step[1]]
    found: dict[str, Any] = {"steps": len(steps), "prefill_steps": len(prefills), "mixed_steps": len(mixed)}
    for name, some in (("prefill", prefills), ("mixed", mixed), ("decode", [step for step in steps if not step[0]])):
        if some:
            took, tokens = sorted(step[2] for step in some), sorted(step[0] for step in some)
            found |= {f"{name}_ms_p{at}": round(percentile(took, at), 2) for at in (50, 90, 99)}
            found[f"{name}_over_tpot"] = round(sum(ms > 1e3 * slo.tpot_s for ms in took) / len(took), 4)
            if tokens[-1]:
                found |= {f"{name}_tokens_p{at}": percentile(tokens, at) for at in (50, 90)}
    batch = sorted(step[1] for step in steps if step[1])
    if batch:
        found |= {"decodes_p50": percentile(batch, 50), "decodes_most": batch[-1]}
    return found


class Decisions:
    """Reads what the batch scheduler has logged since it was last asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> dict[str, Any]:
        """Return the number of the last logged decision, how many were faults, and how long the policy took."""
        count, last, faults, took_us = 0, 0, 0, list[float]()
        for path in sorted(self._folder.glob("engine-*.jsonl")):
            with path.open("rb") as log:
                log.seek(self._read.get(path, 0))
                lines = log.read().splitlines()
                self._read[path] = log.tell()
            for line in lines:
                said = json.loads(line)
                if said.get("kind") != "batch_scheduler":  # the header: a journal that counts anew
                    count, last = count + last, 0
                    continue
                last = said["n"]
                faults += said["fault"] is not None
                took_us.append(1e6 * said["step_s"])
        if not count + last:
            return {}
        return {"decisions": count + last, "faults": faults, "decision_us": round(statistics.median(took_us), 1)}


# --- the run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One side at one rate."""

    side: str
    load: float
    round: int


def cells(options: argparse.Namespace) -> list[Cell]:
    """Return the cells in the order in which they run: all sides of a rate one after the other, in a random order."""
    dice, found = random.Random(options.seed), list[Cell]()  # noqa: S311 - an order, no secret
    for number in range(options.rounds):
        for share in options.loads:
            names = list(options.sides)
            dice.shuffle(names)
            found += [Cell(name, share, number) for name in names]
    return sorted(found, key=lambda cell: cell.side) if options.apart else found


async def warm(url: str, scale: Scale, seed: int) -> None:
    """Send a few requests of each length at once, for what is compiled or chosen at first use."""
    asks = [
        Ask(0.2 * index, max(size // scale.shrink, 4), 16) for index, size in enumerate((16, 900, 5000, 16_000) * 2)
    ]
    heard, _ = await offer(url, asks, seed, 60.0)
    if lost := sum(one.ttft_s is None for one in heard):
        raise RuntimeError(f"{lost} of {len(heard)} requests of the warm-up failed")
    await idle(url)


async def run(stand: Stand, options: argparse.Namespace, begun: float, record: dict[str, Any]) -> None:
    """Run the cells, and write the result after each one."""
    decisions, watch = Decisions(stand.folder), Watch(not options.tiny)
    record |= {"gpu_before": watch.read(), "rows": [], "warmed_s": {}}
    running: str | None = None
    for number, cell in enumerate(todo := cells(options)):
        if time.monotonic() - begun + options.seconds + options.drain_s + 4 > options.limit_s:
            say(begun, f"{len(todo) - number} of {len(todo)} cells are left out: no time")
            break
        side, name = SIDES[cell.side], f"{number}-{cell.side.replace(', ', '-').replace(' ', '-')}"
        if fresh := stand.engine is None or (options.apart and running != cell.side):
            await stand.start(side if options.apart else None, f"server-{number}.log")
            say(begun, f"server serves: {stand.url}")
        if fresh or cell.side not in record["warmed_s"]:
            stand.turn(side, f"{name}-warm")
            before = time.monotonic()
            await warm(stand.url, stand.scale, options.seed)
            record["warmed_s"][cell.side] = round(time.monotonic() - before, 2)
            decisions.new()
        steps = stand.turn(side, name)
        running = cell.side
        record["rows"].append(await measured(stand, cell, steps, options, decisions, watch))
        say(begun, told(record["rows"][-1]))
        record |= {
            "gpu_after": watch.read(),
            "planned": len(todo),
            "seconds_in_all": round(time.monotonic() - begun, 1),
        }
        options.out.write_text(json.dumps(record, indent=1))


async def measured(
    stand: Stand, cell: Cell, steps: Path, options: argparse.Namespace, decisions: Decisions, watch: Watch
) -> dict[str, Any]:
    """Run one cell; return its row."""
    scale = stand.scale
    rate, seed = cell.load * scale.capacity, 1000 * options.seed + round(100 * cell.load) + cell.round
    asks = poisson(rate, options.seconds, seed, scale.shrink)
    before, began = os.times(), time.monotonic()
    heard, late_s = await offer(stand.url, asks, seed, options.drain_s)
    took_s, after, clock = time.monotonic() - began, os.times(), watch.clock_mhz()
    await idle(stand.url)
    return {
        "side": cell.side, "load": cell.load, "rate": round(rate, 3), "round": cell.round, "took_s": round(took_s, 2),
        "prompt_tokens": sum(ask.prompt_tokens for ask in asks), **scores(heard, scale.slo, took_s),
        "late_s": round(late_s, 4), "client_cpu_s": round(after.user + after.system - before.user - before.system, 2),
        "sm_mhz": clock, "held_back": watch.held_back(), "engine": {**steps_of(steps, scale.slo), **decisions.new()},
    }  # fmt: skip


def told(row: dict[str, Any]) -> str:
    """Return a line about a cell."""
    engine = row["engine"]
    ours = f", {engine['decisions']} decisions, {engine['faults']} faults" if "decisions" in engine else ""
    share = row["attainment"]
    late = f"TTFT {row['ttft_p50_s']}/{row['ttft_p99_s']} s, TPOT {row['tpot_p50_s']}/{row['tpot_p99_s']} s"
    kept = f"TTFT {row['ttft_attainment']:.1%}, TPOT {row['tpot_attainment']:.1%}"
    mixed = f"mixed p50 {engine.get('mixed_ms_p50')} ms of {engine.get('mixed_tokens_p50')} tokens"
    return (
        f"{row['side']:>16} at {row['rate']:5.2f}/s: {share:.1%} in time ({kept}) "
        f"of {row['requests']}, {row['whole']} whole; {late}, {row['output_tokens_per_s']} tokens/s; "
        f"{engine.get('steps', '?')} steps, {mixed}{ours}"
    )


def say(begun: float, line: str) -> None:
    """Print at once."""
    print(f"[{time.monotonic() - begun:.0f} s] {line}", flush=True)


def measure(options: argparse.Namespace, begun: float) -> None:
    """Start the server, run all cells, and end the server, whatever happens."""
    scale = CPU if options.tiny else GPU
    with kept(options.logs) as folder:
        stand = Stand(folder, scale, options)
        record = {
            "seed": options.seed, "versions": versions(), "profile": PROFILE, "model": scale.model,
            "apart": options.apart, "slo": {"ttft_s": scale.slo.ttft_s, "tpot_s": scale.slo.tpot_s},
            "capacity": scale.capacity, "seconds": options.seconds, "drain_s": options.drain_s,
            "options": [*OPTIONS, *scale.options], "more": options.set,
            "sides": {name: vars(SIDES[name]) for name in options.sides},
        }  # fmt: skip
        try:
            asyncio.run(run(stand, options, begun, record))
        except BaseException:
            if stand.engine is not None:
                print(stand.engine.tail(60), flush=True)
            raise
        finally:
            stand.stop()
    say(begun, f"{len(record['rows'])} cells")


@contextlib.contextmanager
def kept(logs: Path | None) -> Iterator[Path]:
    """Yield a fresh folder; afterwards its logs are in `logs`."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield Path(folder)
        finally:
            if logs is not None:
                logs.mkdir(parents=True, exist_ok=True)
                for path in (*Path(folder).glob("*.log"), *Path(folder).glob("*.jsonl")):
                    shutil.copy(path, logs)


def joined(found: dict[str, Any], more: Path | None) -> dict[str, Any]:
    """Add the cells of another run in which nothing else differs; rows say on which server.

    Return the summary, and the command line that measures the cells again.
    """
    runs = [found["rows"], [] if more is None else json.loads(more.read_text(encoding="utf-8"))["rows"]]
    rows = [{"server": number, **row} for number, run in enumerate(runs) for row in run]
    found["rows"][:] = sorted(rows, key=lambda row: (row["load"], list(SIDES).index(row["side"]), row["round"]))
    sides = ";".join(found["sides"])
    words = f"python benchmarks/gpu_live.py --out live.json --seconds {found['seconds']:g} --sides"
    return {"summary": summary(found["rows"]), "command": f"PYTHONPATH=. {words} {shlex.quote(sides)}"}


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean attainment of each side at each rate, and that over the best side of SGLang alone."""
    by: dict[float, dict[str, list[float]]] = {}
    for row in rows:
        by.setdefault(row["load"], {}).setdefault(row["side"], []).append(row["attainment"])
    found = []
    for share, sides in sorted(by.items()):
        means = {name: round(statistics.fmean(values), 4) for name, values in sides.items()}
        alone = [mean for name, mean in means.items() if SIDES[name].policy is None]
        found.append({"load": share, "attainment": means, "best_alone": max(alone, default=None)})
    return found


def main() -> None:
    """Measure, or publish what was measured."""
    begun = time.monotonic()
    parser = arguments(__doc__, RESULT)
    parser.add_argument("--rounds", type=int, default=1, help="times that all cells run, each with traffic of its own")
    parser.add_argument("--seconds", type=float, default=25.0, help="of arrivals in a cell")
    parser.add_argument("--drain-s", type=float, default=10.0, help="most seconds after the last arrival")
    parser.add_argument("--loads", type=lambda text: [float(word) for word in text.split(",")], default=list(LOADS))
    parser.add_argument(
        "--sides", type=lambda text: text.split(";"), default=list(SIDES), help="separated by semicolons"
    )
    parser.add_argument("--apart", action="store_true", help="a server for each side, without the switch")
    parser.add_argument("--join", type=Path, help="with --publish: another run, on a server of its own, of other cells")
    parser.add_argument("--logs", type=Path, help="keep the logs of servers, steps and decisions in this folder")
    options = parser.parse_args()
    if options.publish is not None:
        publish(RESULT, "gpu_live.py", options, lambda found: joined(found, options.join))
        return
    measure(options, begun)


if __name__ == "__main__":
    main()
