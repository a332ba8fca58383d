"""Faults on real SGLang servers behind the gateway: what requests come to, and what the servers hold afterwards.

    PYTHONPATH=. .venv-sglang/bin/python benchmarks/faults.py --tree .venv-sglang/sglang-0.5.16 [--faults 1000]
        [--kills 0] [--seed 1] [--result faults-0.5.16]

Two dual-role instances of one version on the CPU with a tiny model (`make test-sglang` installs them), a unified server
that says what is right, and `pdplugins gateway` in a process of its own. `--faults` are spread over the kinds below by
their shares, in batches whose order the seed decides, all on the same server processes; a fault of the first five kinds
hits one request, one of the others all in flight. `--kills` of a server, each with a restart of about 20 s, come
after them. What every process holds is counted before, at each quarter and at the end, with all queues empty and prefix
caches flushed. Exits 1 when a request was wrong or hung, or when anything but memory grew.
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
from benchmarks.rig.faults import FAULTS, Came, Tally, all_is_well
from benchmarks.rig.stage import GROWS, grown, stage
from pdplugins.provenance import record

SHARES = {
    "gateway is killed": 0.015,
    "client leaves": 0.617,
    "bootstrap never answers": 0.08,
    "bootstrap refuses": 0.08,
    "other half never comes": 0.08,
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
    "garbage at the ports": 10,
    "foreign message": 10,
    "client leaves": 32,
}
"""Faults of one batch, where not 20."""
PROCESSES = ("a", "b", "gateway")


def batches(shares: dict[str, float], faults: int, dice: random.Random) -> list[tuple[str, int]]:
    """Return kinds and numbers of faults. The gateway's deaths come first: what it holds is counted after them."""
    found: list[tuple[str, int]] = []
    for kind, share in shares.items():
        left = round(share * faults)
        while left > 0:
            found.append((kind, min(left, TOGETHER.get(kind, 20))))
            left -= found[-1][1]
    dice.shuffle(found)
    return sorted(found, key=lambda batch: batch[0] != "gateway is killed")


async def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    dice = random.Random(args.seed)  # noqa: S311 - not for secrets
    plan = batches(SHARES, args.faults, dice) + [("side is killed", 1)] * args.kills
    if args.only:
        plan = [batch for batch in plan if batch[0] in args.only] or [(kind, args.faults) for kind in args.only]
    tallies = {kind: Tally() for kind, _ in plan}
    total = sum(count for _, count in plan)
    async with stage(args.tree, folder) as it:
        warm = [await all_is_well(it, dice, 24) for _ in range(2)]
        held = [{"faults": 0, **await it.held()}]
        print(f"{servers.version_of(args.tree)}: {total} faults on {held[0]}", flush=True)
        done, began = 0, time.monotonic()
        for number, (kind, count) in enumerate(plan):
            await FAULTS[kind](it, dice, count, tallies[kind])
            done += count
            print(f"{time.monotonic() - began:6.0f} s {done:5d}  {kind}: {dict(tallies[kind].requests)}", flush=True)
            gateway_lives_on = kind == "gateway is killed" and plan[number + 1 : number + 2] != [(kind, count)]
            if done * 4 // total > held[-1]["faults"] * 4 // total or done == total or gateway_lives_on:
                held.append({"faults": done, **await it.held()})
                print(held[-1], flush=True)
        after = await all_is_well(it, dice, 32)
        held.append({"faults": done, **await it.held()})
        complaints = it.complaints()
    return {
        "kinds": {kind: shown(tally) for kind, tally in tallies.items()},
        "without faults": {"before": shown(warm[-1]), "after": shown(after)},
        "held": held,
        "complaints": complaints,
        "seconds": round(time.monotonic() - began),
    }


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
    for process in PROCESSES:
        first = next(held for held in result["held"] if held["faults"] or process != "gateway")
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
    parser.add_argument("--kills", type=int, default=0, help="of a server, after the faults")
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
        f"--faults {args.faults} --kills {args.kills} --seed {args.seed}"
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
