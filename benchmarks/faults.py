"""Faults on real SGLang servers behind the gateway: what requests come to, and what the servers hold afterwards.

    PYTHONPATH=. .venv-sglang/bin/python benchmarks/faults.py --tree .venv-sglang/sglang-0.5.16 [--faults 1000]
        [--kills 10] [--controls 8] [--seed 1] [--result faults-0.5.16]

Two dual-role instances of one version on the CPU with a tiny model (`make test-sglang` installs them), a unified server
that says what is right, and `pdplugins gateway` in a process of its own. `--faults` are spread over the kinds below by
their shares, in batches whose order the seed decides; a fault of the first five kinds hits one request, one of the
others all in flight. `--kills` of a server, each with a restart of about 20 s, lie among the first half of the batches,
so that the second half hits the same processes all the time. What every process holds is counted before, after the last
death, at each quarter and at the end, with all queues empty and prefix caches flushed.

The negative control: two servers that free the KV cache of an aborted transfer at once, while it may still be written
to, as SGLang 0.5.16 does. `--controls` times a client leaves in mid transfer; the answers must come out wrong.

Exits 1 when a request was wrong or hung, when anything but memory grew, or when the control was not noticed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import manifest

from benchmarks.rig import servers
from benchmarks.rig.faults import FAULTS, Came, Tally, all_is_well, left_kv_is_taken
from benchmarks.rig.stage import DEADLINE_S, FREED_AT_ONCE, GROWS, Stage, grown, stage
from pdplugins.provenance import record

SHARES = {
    "gateway is killed": 0.015,
    "client leaves": 0.605,
    "bootstrap never answers": 0.08,
    "bootstrap refuses": 0.08,
    "other half never comes": 0.08,
    "left KV cache is taken": 0.012,
    "garbage at the ports": 0.09,
    "foreign message": 0.02,
    "side stops for 1-4 s": 0.014,
    "side stops for 15-20 s": 0.004,
}
TOGETHER = {
    "gateway is killed": 1,
    "side stops for 1-4 s": 1,
    "side stops for 15-20 s": 1,
    "side is killed": 1,
    "left KV cache is taken": 6,
    "garbage at the ports": 10,
    "foreign message": 10,
    "client leaves": 32,
}
"""Faults of one batch, where not 20."""
DEATHS = {"gateway is killed": ("gateway",), "side is killed": ("a", "b")}
"""Processes that begin anew, and hold nothing of what was before."""
PROCESSES = ("a", "b", "gateway")
Batch = tuple[str, int]


def batches(shares: dict[str, float], faults: int, kills: int, dice: random.Random) -> list[Batch]:
    """Return kinds and numbers of faults.

    The gateway's deaths come first and those of servers in the first half: what they hold is counted after them.
    """
    found: list[Batch] = []
    for kind, share in shares.items():
        left = round(share * faults)
        while left > 0:
            found.append((kind, min(left, TOGETHER.get(kind, 20))))
            left -= found[-1][1]
    dice.shuffle(found)
    found.sort(key=lambda batch: batch[0] != "gateway is killed")
    first = sum(kind == "gateway is killed" for kind, _ in found)
    half = (first + len(found)) // 2
    for _ in range(kills):
        found.insert(dice.randint(first, half), ("side is killed", 1))
        half += 1
    return found


async def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    dice = random.Random(args.seed)  # noqa: S311 - not for secrets
    plan = batches(SHARES, args.faults, args.kills, dice)
    if args.only:
        plan = [batch for batch in plan if batch[0] in args.only] or [(kind, args.faults) for kind in args.only]
    began = time.monotonic()
    controlled = {"control": await control(args, folder / "control")} if args.controls else {}
    async with stage(args.tree, folder) as it:
        soaked = await Soak(it, dice, plan).run()
    return soaked | controlled | {"seconds": round(time.monotonic() - began)}


class Soak:
    """Faults on one pair of servers, and what every process holds. :param plan: batches, in their order."""

    def __init__(self, stage: Stage, dice: random.Random, plan: list[Batch]) -> None:
        self._stage = stage
        self._dice = dice
        self._plan = plan
        self._tallies = {kind: Tally() for kind, _ in plan}
        self._well: dict[str, Tally] = {}
        self._held: list[dict[str, Any]] = []
        self._since = dict.fromkeys(PROCESSES, 0)
        self._began = time.monotonic()

    async def run(self) -> dict[str, Any]:
        total, done = sum(count for _, count in self._plan), 0
        last_death = {self._last(kind): processes for kind, processes in DEATHS.items() if kind in self._tallies}
        await self._look("before", done)
        print(f"{servers.version_of(self._stage.a.tree)}: {total} faults on {self._held[0]}", flush=True)
        for number, (kind, count) in enumerate(self._plan):
            tally = self._tallies[kind]
            await FAULTS[kind](self._stage, self._dice, count, tally)
            done += count
            took_s = time.monotonic() - self._began
            print(f"{took_s:6.0f} s {done:5d}  {kind}: {dict(tally.requests)}", flush=True)
            if number in last_death:
                self._since |= dict.fromkeys(last_death[number], len(self._held))
                await self._look(f"after the last time that {kind}", done)
            elif done * 4 // total > self._held[-1]["faults"] * 4 // total or done == total:
                await self._hold(done)
        await self._look("after", done)
        return {
            "kinds": {kind: shown(tally) for kind, tally in self._tallies.items()},
            "without faults": {when: shown(tally) for when, tally in self._well.items()},
            "held": self._held,
            "compared from": self._since,
            "complaints": self._stage.complaints(),
        }

    def _last(self, kind: str) -> int:
        return max(number for number, batch in enumerate(self._plan) if batch[0] == kind)

    async def _look(self, when: str, done: int) -> None:
        """Ask with nothing wrong until all that a process ever starts has been started; then count what it holds."""
        tally = self._well[when] = Tally()
        for _ in range(2):
            await all_is_well(self._stage, self._dice, 24, tally)
        await self._hold(done)

    async def _hold(self, done: int) -> None:
        self._held.append({"faults": done, **await self._stage.held()})
        print(self._held[-1], flush=True)


async def control(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make a fault that the servers are not protected against; what does not notice it would notice nothing."""
    kind, tally = "left KV cache is taken", Tally()
    async with stage(args.tree, folder, FREED_AT_ONCE) as it:
        dice = random.Random(args.seed)  # noqa: S311 - not for secrets
        await left_kv_is_taken(it, dice, args.controls, tally, most_s=DEADLINE_S)
    print(f"control: {dict(tally.requests)}", flush=True)
    return {"kind": kind, "noticed": tally.requests[Came.WRONG] > 0, **shown(tally)}


def shown(tally: Tally) -> dict[str, Any]:
    requests = {str(came): tally.requests[came] for came in Came}
    said = dict(tally.said.most_common())
    return {"faults": tally.faults, "requests": requests, "longest_s": round(tally.longest_s, 1), "said": said}


def defects(result: dict[str, Any]) -> list[str]:
    """Return what no fault may bring about."""
    found = list(result["complaints"])
    rows = result["kinds"] | {f"without faults, {when}": row for when, row in result["without faults"].items()}
    for kind, row in rows.items():
        bad = {came: row["requests"][came] for came in (Came.WRONG, Came.HUNG) if row["requests"][came]}
        if "without" in kind and row["requests"][Came.ERROR]:
            bad[Came.ERROR] = row["requests"][Came.ERROR]
        found += [f"{kind}: {count} {came}" for came, count in bad.items()]
    if not result.get("control", {"noticed": True})["noticed"]:
        found.append("control: nobody noticed KV cache that was written over")
    for process in PROCESSES:
        first = result["held"][result["compared from"][process]]
        more = grown(first[process], result["held"][-1][process])
        found += [f"{process}: {name} grew from {how}" for name, how in more.items()]
    return found


def table(result: dict[str, Any]) -> str:
    heads = ["kind", "faults", "requests", *(str(came) for came in Came), "longest s"]
    rows = [heads, ["---"] * len(heads)]
    for kind, row in result["kinds"].items():
        counts = [row["requests"][came] for came in Came]
        rows.append([kind, row["faults"], sum(counts), *counts, row["longest_s"]])
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    for process in PROCESSES:
        for name in (*GROWS, "rss_mib"):
            if name in result["held"][0][process]:
                lines.append(f"{process} {name}: " + " ".join(str(held[process][name]) for held in result["held"]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="a folder that holds one version of SGLang")
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=10, help="of a server, among the faults")
    parser.add_argument("--controls", type=int, default=8, help="faults of the negative control; 0: no control")
    parser.add_argument("--only", nargs="*", choices=list(FAULTS), help="these kinds alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", help="write results/RESULT.json")
    parser.add_argument("--logs", type=Path, help="keep the logs of all processes in this folder")
    args = parser.parse_args()
    if not list(args.tree.glob("sglang-*.dist-info")):
        parser.error(
            f"--tree {args.tree}: no SGLang there; make test-sglang installs it into .venv-sglang/sglang-VERSION"
        )
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run(args, (args.logs or Path(folder)).absolute()))
    version = servers.version_of(args.tree)
    command = (
        f"PYTHONPATH=. .venv-sglang/bin/python benchmarks/faults.py --tree .venv-sglang/sglang-{version} "
        f"--faults {args.faults} --kills {args.kills} --controls {args.controls} --seed {args.seed}"
    )
    facts = {
        **record("measured", seed=args.seed, command=command),
        "sglang": version,
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
    }
    found = defects(result)
    print(table(result), "", *(found or ["no defect"]), sep="\n")
    if args.result:
        manifest.write(args.result, facts | result | {"defects": found})
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
