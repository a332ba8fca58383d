"""Soak: `dynamo serve --router … --planner …` on live mocker workers, at a busy rate, for a long time.

    python benchmarks/soak.py [--seconds 1800] [--seed 1] [--rate 12] [--cache-mib 2] [--result soak]

The rate swings once a minute, so that the planner adds and removes workers and the router moves them between phases.
Once a minute a worker is killed. A client that is refused (503) comes back. Dynamo's frontend caches the token ids of
chats, up to 64 MiB as it comes, which takes hours to fill at this rate and looks like a leak. Here the cache has
`--cache-mib`, so that it is full when the warm-up ends. What must hold, or the exit status is 1:

* No request is lost. One that was on the killed worker and is served by another one counts as served; one that fails
  within `AT_A_KILL_S` of a kill is counted apart.
* After the warm-up (a quarter of the time; half of five minutes), launcher, router and frontend do not grow: neither in
  memory, over all samples, nor, without requests in flight, in open files, threads and asyncio tasks, over the quiet
  moments: both by the low end of the slope's 95 % confidence interval (Theil and Sen), so that what swings with the
  pools is no growth.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import manifest
import uvloop
from prometheus_client.parser import text_string_to_metric_families
from scipy.stats import theilslopes

from pdplugins.provenance import command_line, record

SERVE = [sys.executable, "-P", "-c", "from pdplugins.cli import dynamo_main; dynamo_main()", "serve"]
STACK = ("--port", "0", "--metrics-port", "0", "--status", "json-lines", "--prefill", "2", "--decode", "2")
PLANNER = ("planner.interval_s=2", "planner.hold_s=10", "planner.predictor=last-value")
EAGER = {"arrow": ("router.ttft_share=0.02", "router.tpot_share=0.3", "router.slow_s=0", "router.idle_s=0.2")}
"""By router: settings with which it moves workers often."""
NATIVE = "native"
"""In place of a router: Dynamo's frontend routes by itself, and our router is not there."""
ISL, OSL = (200, 1500), (4, 40)
"""Shortest and longest prompt and output, in tokens."""
SWING_S, KILL_S, QUIET_S = 60.0, 60.0, 6.0
"""The rate goes up and down once in so long; a worker is killed so often; nothing is sent for so long in each swing."""
LOW = 0.15
"""Share of the highest rate that is the lowest one."""
DEADLINE_S, COMES_BACK = 60.0, 20
"""Within which a request is served, and how often a client that is refused comes back."""
AT_A_KILL_S = 10.0
LAST_WORDS = 20_000
"""Characters of the router's log that are shown where a request has failed."""
SAMPLE_S = 2.0
WARM, WARM_S = 0.25, 150.0
"""Share of the run that is warm-up; in a short one so many seconds, but at most half of it."""
GROWTH_MIB_PER_H, GROWTH_MIB = 32.0, 12.0
"""Memory grows where the low end of the slope's interval is above the first, and all that came above the second."""
FEW = 3
"""Moments of which one, just after a stall, may hold more by itself."""
SPARE = {"files": 8, "threads": 4, "tasks": 8}
"""By which these may grow from the first quiet moment to the last one: idle connections come and go."""
CACHE_MIB = 2
PROBE = """
import asyncio, os, threading, time
def tell():
    path = os.path.join(os.environ["SOAK_TASKS"], str(os.getpid()))
    while True:
        time.sleep(1)
        try:
            count = sum(not task.done() for task in list(asyncio.tasks._all_tasks))
        except RuntimeError:  # it changed meanwhile
            continue
        with open(path + ".part", "w") as file:
            file.write(str(count))
        os.replace(path + ".part", path)
if "SOAK_TASKS" in os.environ:
    os.environ["DYN_TOKENIZER_CACHE_BYTES"] = os.environ["SOAK_CACHE_BYTES"]
    threading.Thread(target=tell, daemon=True).start()
"""
"""Python runs it at the start of each process of the stack; it notes how many asyncio tasks there are.

`dynamo serve` keeps from its processes what users have set for Dynamo, so the size of the cache comes this way."""


@dataclass
class Stack:
    """A running ``dynamo serve``, and what it says of itself."""

    process: asyncio.subprocess.Process
    tasks: Path
    ready: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)

    async def follow(self) -> None:
        """Read what it says, until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            said = json.loads(line)
            if said["event"] == "ready":
                self.ready = said
            elif said["event"] == "status":
                changed = said["changed"]
                pools = (
                    None if changed is None else f"{changed['prefill']}P{changed['decode']}D at {changed['at_s']:.1f}"
                )
                if pools is not None and pools not in self.changes[-1:]:
                    self.changes.append(pools)
                self.status = said

    async def until_ready(self) -> None:
        async with asyncio.timeout(180):
            while not self.ready or not self.settled:
                assert self.process.returncode is None, "dynamo serve ended"
                await asyncio.sleep(0.1)

    @property
    def settled(self) -> bool:
        pools = [self.status[role] for role in ("prefill", "decode")] if self.status else []
        return bool(pools) and all(one["ready"] == one["wanted"] and not one["starting"] for one in pools)

    def workers(self) -> dict[str, int]:
        return {one["name"]: one["pid"] for one in self.status["workers"] if one["phase"] == "ready"}

    def processes(self) -> dict[str, int]:
        """Process ids of what lasts: launcher, router and frontend."""
        found = {"launcher": self.process.pid}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1]) == self.process.pid:
                    words = folder.joinpath("cmdline").read_bytes()
                    for name, mark in (("router", b"pdplugins.hosts.dynamo.router"), ("frontend", b"dynamo.frontend")):
                        if mark in words:
                            found[name] = int(folder.name)
        return found

    def held(self, pid: int) -> dict[str, float]:
        """Return what a process holds."""
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        tasks = self.tasks / str(pid)
        return {
            "rss_mib": int(fields["VmRSS"].split()[0]) / 1024,
            "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
            "threads": int(fields["Threads"]),
            **({"tasks": int(tasks.read_text())} if tasks.exists() else {}),
        }


@contextlib.asynccontextmanager
async def serving(args: argparse.Namespace, folder: Path) -> AsyncIterator[Stack]:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(PROBE)
    (folder / "tasks").mkdir()
    path = os.pathsep.join([str(folder / "site"), str(manifest.ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    words = [*STACK, "--planner", args.planner, "--gpus", str(args.gpus)]
    words += [] if args.router == NATIVE else ["--router", args.router]
    words += [word for setting in (*PLANNER, *EAGER.get(args.router, ())) for word in ("--set", setting)]
    with (folder / "stderr").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *SERVE,
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=2**22,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "SOAK_TASKS": str(folder / "tasks"),
                "SOAK_CACHE_BYTES": str(args.cache_mib * 2**20),
                "TMPDIR": str(folder),
            },
        )
    stack = Stack(process, folder / "tasks")
    following = asyncio.create_task(stack.follow())
    try:
        await stack.until_ready()
        yield stack
    except BaseException:
        sys.stderr.write((folder / "stderr").read_text(errors="replace")[-3000:])
        raise
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
        await following


class Clients:
    """Requests, as they come, and what came of them."""

    def __init__(self, stack: Stack, rate: float, dice: random.Random) -> None:
        self._stack, self._rate, self._dice = stack, rate, dice
        self._session = self._connected()
        self._tasks: set[asyncio.Task[None]] = set()
        self.came: Counter[str] = Counter()
        self.failures: list[tuple[float, str]] = []
        """When (monotonic), and what was said."""
        self.ttft_s: list[float] = []

    async def send(self, until_s: float) -> None:
        """Send requests until then; the rate swings."""
        began_s = time.monotonic()
        while (now_s := time.monotonic()) < until_s:
            swing = 0.5 - 0.5 * math.cos(2 * math.pi * (now_s - began_s) / (SWING_S - QUIET_S))
            rate = self._rate * (LOW + (1 - LOW) * swing)
            await asyncio.sleep(self._dice.expovariate(rate))
            task = asyncio.create_task(self._one(self._dice.randint(*ISL), self._dice.randint(*OSL)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _connected() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0)
        return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(DEADLINE_S))

    async def quiet(self) -> None:
        """Return when nothing is in flight, and no connection is open: idle ones count as files of the frontend."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._session.close()
        self._session = self._connected()

    async def _one(self, isl: int, osl: int) -> None:
        messages = [{"role": "user", "content": "".join(self._dice.choices("abcdefgh", k=2 * isl))}]
        body = {"model": self._stack.ready["model"], "messages": messages, "max_tokens": osl, "ignore_eos": True}
        ended, said = "failed", ""
        for attempt in range(COMES_BACK):
            try:
                async with self._session.post(f"{self._stack.ready['url']}/v1/chat/completions", json=body) as answer:
                    data = await answer.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                said = f"{type(error).__name__}: {error}"
                break
            if answer.status in (429, 503):
                ended, said = "refused", f"{answer.status} {data[-200:]!r}"
                await asyncio.sleep(min(float(answer.headers.get("Retry-After", 1)), 2.0))
                continue
            right = answer.status == 200 and json.loads(data)["usage"]["completion_tokens"] == osl
            ended, said = ("served" if right else "failed"), f"{answer.status} {data[-200:]!r}"
            self.came["came back"] += bool(right and attempt)
            break
        self.came[ended] += 1
        if ended != "served":
            self.failures.append((time.monotonic(), said))

    async def close(self) -> None:
        await self._session.close()


@dataclass
class Kill:
    """One worker that was killed."""

    at_s: float
    """Monotonic."""
    worker: str
    recovered_s: float | None = None
    """Seconds until as many workers served as the planner wanted."""


async def kill(stack: Stack, dice: random.Random, kills: list[Kill]) -> None:
    """Kill a worker within the next half a minute, and time its recovery."""
    await asyncio.sleep(dice.uniform(5.0, KILL_S / 2))
    while True:
        workers = stack.workers()
        name = dice.choice(sorted(workers))
        with contextlib.suppress(ProcessLookupError):  # the status is a moment old
            os.kill(workers[name], signal.SIGKILL)
            break
        await asyncio.sleep(1.0)
    kills.append(Kill(time.monotonic(), name))
    while name in stack.workers():
        await asyncio.sleep(0.1)
    while not stack.settled:
        await asyncio.sleep(0.1)
    kills[-1].recovered_s = round(time.monotonic() - kills[-1].at_s, 1)


async def sample(stack: Stack, rows: list[dict[str, Any]]) -> None:
    """Note what the processes hold, for ever."""
    processes, began_s = stack.processes(), time.monotonic()
    while True:
        for name, pid in processes.items():
            rows.append({"at_s": time.monotonic() - began_s, "process": name, **stack.held(pid)})
        await asyncio.sleep(SAMPLE_S)


async def flips(stack: Stack) -> dict[str, int]:
    """Return how often a worker's role has changed, by who wanted it."""
    if (port := stack.ready["router_metrics_port"]) is None:
        return {}
    url = f"http://127.0.0.1:{port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        page = await answer.text()
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for one in family.samples:
            if one.name.endswith("role_changes_total") and one.labels.get("stage") == "done":
                found[one.labels["by"]] += int(one.value)
    return dict(found)


async def soak(args: argparse.Namespace) -> dict[str, Any]:
    dice = random.Random(args.seed)  # noqa: S311 - not for secrets
    rows: list[dict[str, Any]] = []
    quiet: list[dict[str, dict[str, float]]] = []
    kills: list[Kill] = []
    with tempfile.TemporaryDirectory() as name:
        async with serving(args, Path(name)) as stack:
            clients, processes = Clients(stack, args.rate, dice), stack.processes()
            sampling = asyncio.create_task(sample(stack, rows))
            began_s = time.monotonic()
            while time.monotonic() - began_s < args.seconds:
                killing = asyncio.create_task(kill(stack, random.Random(dice.random()), kills))  # noqa: S311
                await clients.send(time.monotonic() + SWING_S - QUIET_S)
                await asyncio.wait_for(killing, 120)
                await clients.quiet()
                await asyncio.sleep(QUIET_S / 2)
                quiet.append({name: stack.held(pid) for name, pid in processes.items()})
                sys.stderr.write(f"{time.monotonic() - began_s:6.0f} s {dict(clients.came)} {kills[-1]}\n")
                assert not sampling.done(), "a process that is sampled ended"
            sampling.cancel()
            if clients.failures and args.router != NATIVE:
                log = Path(stack.ready["logs"], "router.log").read_text(errors="replace")
                sys.stderr.write(f"the router said last:\n{log[-LAST_WORDS:]}\n")
            flipped = await flips(stack)
            await clients.close()
            same = processes == stack.processes()
    return {
        "seconds": round(time.monotonic() - began_s),
        "requests": requests(clients, kills),
        "kills": len(kills),
        "recovery_s": spread([one.recovered_s for one in kills if one.recovered_s is not None]),
        "changes_of_pools": len(stack.changes),
        "flips": flipped,
        "same_processes": same,
        "memory": [memory(rows, name, args.seconds) for name in processes],
        "held": list(held(quiet)),
        "quiet_mib": {name: [round(one[name]["rss_mib"], 1) for one in quiet] for name in processes},
    }


def requests(clients: Clients, kills: list[Kill]) -> dict[str, Any]:
    """Return what came of the requests; `lost` are those that failed away from any kill."""
    near = [since(at_s, kills) <= AT_A_KILL_S for at_s, _ in clients.failures]
    lost = [
        f"{since(at_s, kills):.0f} s after a kill: {said}"
        for (at_s, said), close in zip(clients.failures, near, strict=True)
        if not close
    ]
    return {
        "sent": sum(clients.came[end] for end in ("served", "refused", "failed")),
        "served": clients.came["served"],
        "served_after_coming_back": clients.came["came back"],
        "failed_at_a_kill": sum(near),
        "lost": len(lost),
        "said": lost[:5],
    }


def since(at_s: float, kills: list[Kill]) -> float:
    """Return the seconds since the last kill; infinity before the first one."""
    return min((at_s - one.at_s for one in kills if one.at_s <= at_s), default=math.inf)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "longest": max(values)} if values else {}


def warm(seconds: float) -> float:
    """Return the share of a run of so many seconds that is warm-up."""
    return max(WARM, min(WARM_S / seconds, 0.5))


def memory(rows: list[dict[str, Any]], name: str, seconds: float) -> dict[str, Any]:
    """Return the slope of a process' memory after the warm-up, with its interval."""
    begin_s = warm(seconds) * seconds
    mine = [(row["at_s"], row["rss_mib"]) for row in rows if row["process"] == name and row["at_s"] >= begin_s]
    times, sizes = zip(*mine, strict=True)
    slope, _, low, high = (3600 * float(one) for one in theilslopes(sizes, times))
    whole = slope / 3600 * (times[-1] - times[0])
    return {
        "process": name,
        "samples": len(mine),
        "first_mib": round(statistics.median(sizes[:10]), 1),
        "last_mib": round(statistics.median(sizes[-10:]), 1),
        "slope_mib_per_h": round(slope, 1),
        "low": round(low, 1),
        "high": round(high, 1),
        "grows": low > GROWTH_MIB_PER_H and whole > GROWTH_MIB,
    }


def held(quiet: list[dict[str, dict[str, float]]]) -> Iterator[dict[str, Any]]:
    """Yield what each process held in the quiet moments after the warm-up, and by how much that grew at least."""
    after = quiet[min(math.ceil(WARM * len(quiet)), len(quiet) - 1) :]
    for name in after[0]:
        for of, spare in SPARE.items():
            if of in after[0][name]:
                counts = [one[name][of] for one in after]
                low = float(theilslopes(counts)[2]) * (len(counts) - 1) if len(counts) > 1 else 0.0
                yield {
                    "process": name,
                    "of": of,
                    "first": counts[0],
                    "last": counts[-1],
                    "low": round(low, 1),
                    "grows": low > (spare if len(counts) > FEW else FEW * spare),
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--rate", type=float, default=12, help="highest arrivals/s")
    parser.add_argument("--router", default="arrow", help=f"{NATIVE}: Dynamo's frontend routes, and we do not")
    parser.add_argument("--cache-mib", type=int, default=CACHE_MIB, help="the frontend's cache; Dynamo's own has 64")
    parser.add_argument("--planner", default="dopd")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", help="write results/RESULT.json")
    args = parser.parse_args()
    if args.result:
        manifest.check_script(sys.argv[0])
    before = os.getloadavg()[0]
    result = uvloop.run(soak(args))
    facts = {
        **record(
            "measured", seed=args.seed, command=command_line("python", sys.argv), took_part=("ai-dynamo", "aiohttp")
        ),
        "cpus": os.cpu_count(),
        "load_average": [round(load, 1) for load in (before, os.getloadavg()[0])],
        "router": args.router,
        "planner": args.planner,
        "highest_rate": args.rate,
        "cache_mib": args.cache_mib,
    }
    print(json.dumps(facts | result, indent=1))
    if args.result:
        manifest.write(args.result, facts | result)
    grown = [row for row in (*result["memory"], *result["held"]) if row["grows"]]
    if grown or result["requests"]["lost"] or not result["same_processes"]:
        sys.exit(f"soak: {result['requests']['lost']} requests lost; grown: {json.dumps(grown)}")


if __name__ == "__main__":
    main()
