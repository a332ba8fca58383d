"""RAPID live: a gateway, mock engines on stand-in GPUs, and the daemon that moves their watts and roles, in real time.

The workload has two phases, prompts and then answers. Each system runs live and in the simulator. Decode steps are made
longer and answers shorter by the same factor, so that the load is the same and a Python gateway carries its tokens.

usage: PYTHONPATH=.:benchmarks python benchmarks/rapid/live.py [--seed N] [--only-simulated] both 5:650:516 ... >> FILE
       PYTHONPATH=.:benchmarks python benchmarks/rapid/live.py --rows FILE --result rapid-live
"""

from __future__ import annotations

import argparse
import calendar
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import manifest
import node as rapid
import yaml
from measure import command, run, workload

from benchmarks.rig.gpus import nodes
from pdplugins.provenance import record
from pdplugins.types import TraceRequest

ROOT = Path(__file__).resolve().parents[2]
FACTOR = 32.0
"""Decode steps take so many times as long, and answers have so many times fewer tokens."""
SLO = (1.0, 0.008 * FACTOR)
GPUS = 8
PHASE_S = 60.0
RATES = (17.0, 50.0)
TOKENS = ((8000, 2), (500, 25))
NOTES = (
    "live: mock engines in real time on stand-in GPUs, a real gateway and the real daemon; nothing ran on a GPU",
    f"profile mi300x/llama-3.1-8b (modelled), decode steps {FACTOR:g} times as long and answers as many times shorter",
    "attainment: live; simulated: the same config and requests in the simulator",
)
WATTS, ROLES = ("lowered_s", "raised_s"), ("flips_s",)
CLI = "from pdplugins.cli import main; main()"


def profile(folder: Path) -> Path:
    """Write the profile of the mock engines."""
    data = json.loads(Path(rapid.profile(0.0)).read_text())
    for row in data["decode"]["1"]["raw_ms"]:
        row[:] = [FACTOR * ms for ms in row]
    path = folder / "profile.json"
    path.write_text(json.dumps(data))
    return path


def trace(seed: int) -> list[TraceRequest]:
    """Return the workload: one phase of long prompts, one of many answers."""
    found: list[TraceRequest] = []
    for number, (rate, (isl, osl)) in enumerate(zip(RATES, TOKENS, strict=True)):
        part = workload(
            seed=seed + 50 * number, requests=int(rate * PHASE_S), arrivals={"kind": "poisson", "rate": rate},
            isl_tokens=isl, osl_tokens=osl,
        )  # fmt: skip
        found += [replace(one, arrival_s=one.arrival_s + number * PHASE_S) for one in part]
    return found


def config(split: rapid.Split, move: str, path: Path) -> dict[str, Any]:
    """Return the config of a system, for the simulator and for the live processes."""
    data = rapid.node(*split, move=move, slo=SLO)
    data["deployment"]["profile"] = str(path)
    data["simulation"] = {"first_token": "transfer", "flip": "label"}
    data["sglang"] = {"dual_role": True}
    return data


def attainment(rows: list[tuple[float, float]], requests: int) -> float:
    """Return the share of requests inside both SLOs; a row is TTFT and TPOT of one that ended well."""
    return sum(ttft_s <= SLO[0] and tpot_s <= SLO[1] for ttft_s, tpot_s in rows) / requests


def simulated(data: dict[str, Any], requests: list[TraceRequest]) -> float:
    """Return the attainment in the simulator."""
    _, outcome = run({key: value for key, value in data.items() if key != "node"}, requests)
    done = [(one.ttft_s, one.tpot_s) for one in outcome.records if one.error is None]
    return attainment([(a, b) for a, b in done if a is not None and b is not None], len(requests))


# --- live -------------------------------------------------------------------------------------------------------------


def free_ports(count: int) -> int:
    """Return the first of some free ports in a row."""
    for first in range(21000, 60000, 500):
        try:
            with ExitStack() as stack:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
        return first
    raise OSError("no free ports")


def get(url: str) -> str:
    """Read a page."""
    with urlopen(url, timeout=5) as answer:  # noqa: S310 - our own processes
        return str(answer.read().decode())


def wait(what: str, condition: Any, seconds: float = 60.0) -> None:
    """Wait until something holds."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError(what)


class Live:
    """All processes of one run."""

    def __init__(self, folder: Path, library: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.standin = nodes.standin(library, folder / "gpus")
        for gpu in self.standin.node.gpu[:GPUS]:
            gpu.max_mw = gpu.default_mw = gpu.limit_mw = 750_000
            gpu.kept_w = 750.0
        self.standin.node.tau_s = 0.08
        self.environment = {**self.standin.environment, "PYTHONPATH": f"{ROOT}:{os.environ['PYTHONPATH']}"}

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process that ends with the run."""
        log = self._stack.enter_context((self.folder / f"{len(list(self.folder.iterdir()))}.log").open("wb"))
        process = subprocess.Popen([sys.executable, *command], env=self.environment, stdout=log, stderr=log)

        def end() -> None:
            process.terminate()
            process.wait(60)

        self._stack.callback(end)
        return process


def serve(live: Live, data: dict[str, Any], move: str) -> tuple[str, str]:
    """Start engines, gateway and daemon; return the address of the gateway, and of its admin listener."""
    first = free_ports(210)
    path = data["deployment"]["profile"]
    live.start("-m", "benchmarks.rig.gpus.engines", str(live.folder / "gpus"), path, str(first), str(GPUS))
    wait("engines", lambda: all(get(f"http://127.0.0.1:{first + gpu}/server_info") for gpu in range(GPUS)))
    split = data["deployment"]["prefill"]["replicas"]
    names = [f"127.0.0.1:{first + gpu}" for gpu in range(GPUS)]
    roles = ["prefill" if gpu < split else "decode" for gpu in range(GPUS)]
    url, admin = f"http://127.0.0.1:{first + 200}", f"http://127.0.0.1:{first + 201}"
    base = live.standin.node.base
    uuids = [f"GPU-57a4d1f0-{base:04x}-0000-0000-{gpu:012d}" for gpu in range(GPUS)]
    data["node"] = {
        "beside": "gateway", "url": admin, "state": str(live.folder / "state"),
        "workers": [{"worker": w, "gpus": [u], "role": r} for w, u, r in zip(names, uuids, roles, strict=True)],
    }  # fmt: skip
    file = live.folder / "node.yaml"
    file.write_text(yaml.safe_dump(data))
    workers = [word for n, r in zip(names, roles, strict=True) for word in ("--worker", f"http://{n},role={r}")]
    live.start("-c", CLI, "gateway", "--config", str(file), "--port", str(first + 200), *workers)
    wait("gateway", lambda: len([one for one in json.loads(get(admin + "/workers")) if one["alive"]]) == GPUS)
    if move == "nothing":
        power = data["power"]
        for gpu, role in zip(live.standin.node.gpu, roles, strict=False):
            gpu.limit_mw = int(1000 * power[f"{role}_w"])
            gpu.kept_w = gpu.limit_mw / 1e3
    else:
        log = str(live.folder / "decisions.jsonl")
        live.start("-c", CLI, "power", "run", "--config", str(file), "--decision-log", log)
        wait("daemon", lambda: sum(live.standin.node.limits_w()) <= rapid.BUDGET_W)
        time.sleep(2.0)
    return url, admin


def watch(live: Live, admin: str, client: subprocess.Popen[bytes]) -> Iterator[tuple[float, dict[str, str]]]:
    """Yield the roles ten times a second while the client runs."""
    while client.poll() is None:
        yield time.time(), {one["id"]: one["role"] for one in json.loads(get(admin + "/workers"))}
        time.sleep(0.1)


def measured(data: dict[str, Any], move: str, requests: list[TraceRequest], library: Path) -> dict[str, Any]:
    """Run one system live."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        live = Live(folder, library, stack)
        url, admin = serve(live, json.loads(json.dumps(data)), move)
        file = folder / "trace.jsonl"
        file.write_text(
            "".join(
                json.dumps(
                    {"timestamp": 1000 * r.arrival_s, "input_length": r.isl_tokens, "output_length": r.osl_tokens}
                )
                + "\n"
                for r in requests
            )
        )
        out = folder / "out.jsonl"
        client = live.start(
            "-m", "pdplugins.workloads.client", "--url", url, "--model", "mock", "--trace", str(file), "--out", str(out)
        )
        offset_s = time.time() - time.monotonic()
        roles = list(watch(live, admin, client))
        rows, failed = read(out)
        log = folder / "decisions.jsonl"
        decisions = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        sums_w = list(live.standin.node.sums_w([750.0] * GPUS))
        within = next((n for n, watts in enumerate(sums_w) if watts <= rapid.BUDGET_W), len(sums_w))
        return {
            "attainment": attainment(rows, len(requests)),
            "failed": failed,
            **moves(decisions, live.standin.node, roles, offset_s),
            "highest_sum_w": max(sums_w[within:], default=None),
        }


def read(out: Path) -> tuple[list[tuple[float, float]], int]:
    """Return TTFT and TPOT of every request that ended well, and how many did not."""
    rows, failed = [], 0
    for line in out.read_text().splitlines():
        one = json.loads(line)
        if "request" not in one:
            continue
        times = one["token_times_s"]
        if one["error"] or not times:
            failed += 1
            continue
        rows.append((times[0] - one["arrival_s"], (times[-1] - times[0]) / max(len(times) - 1, 1)))
    return rows, failed


def moves(
    decisions: list[dict[str, Any]], node: nodes.Node, roles: list[tuple[float, dict[str, str]]], offset_s: float
) -> dict[str, Any]:
    """Return how long it took from each decision to its first lower cap, first higher cap and new roles, in seconds.

    None: a later decision came first.
    """
    lowered, raised, flips = [], [], []
    before: dict[str, float] = {}
    writes = [(w.at_s + offset_s, w.gpu, w.mw / 1e3) for w in node.trace[: node.writes] if w.result == 0]
    for one in decisions:
        if one.get("kind") != "power" or not one.get("answer"):
            continue
        at_s, answer = stamp(one["at"]), one["answer"]
        wanted = {str(gpu): float(watts) for gpu, watts in answer["caps_w"].items()}
        for sign, took in ((-1, lowered), (1, raised)):
            changed = {int(gpu): w for gpu, w in wanted.items() if sign * (w - before.get(gpu, w)) > 0}
            if changed:
                took.append(
                    next(
                        (at - at_s for at, gpu, w in writes if at >= at_s - 0.01 and abs(changed.get(gpu, 0) - w) < 1),
                        None,
                    )
                )
        before = wanted
        for flip in answer["flips"]:
            worker = sorted(roles[0][1])[flip["gpu"]]
            flips.append(next((at - at_s for at, seen in roles if at >= at_s and seen[worker] == flip["role"]), None))
    return {"lowered_s": lowered, "raised_s": raised, "flips_s": flips}


def stamp(text: str) -> float:
    """Return the seconds since the epoch of a decision log's time."""
    return calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) + float(text[19:-1])


def told(row: dict[str, Any]) -> dict[str, Any]:
    """Return a printed row with its slowest moves in seconds, and with what live and simulated are apart in points."""
    watts, roles = ([at for key in keys for at in row[key] if at is not None] for keys in (WATTS, ROLES))
    apart = 100 * (row["attainment"] - row["simulated"])
    return row | {"watts_s": max(watts, default=0.0), "roles_s": max(roles, default=0.0), "apart_points": apart}


def main() -> None:
    """Run the systems that are named, live and simulated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-simulated", action="store_true")
    parser.add_argument("--rows", type=Path, help="lines that runs have printed, for --result")
    parser.add_argument("--result", help="name of the result file; nothing is run then")
    parser.add_argument("systems", nargs="*", help="both, gpus, power, or PREFILL:PREFILL_W:DECODE_W")
    options = parser.parse_args()
    if options.result:
        rows = [told(json.loads(line)) for line in options.rows.read_text().splitlines()]
        facts = record("measured", seed=options.seed, command=command(), took_part=("aiohttp", "nvidia-ml-py"))
        manifest.write(options.result, {**facts, "notes": NOTES, "rows": rows})
        return
    requests = trace(options.seed)
    with tempfile.TemporaryDirectory() as name:
        path, library = profile(Path(name)), nodes.nvml_library(Path(name) / "nvml")
        for system in options.systems:
            move = system if system in ("both", "gpus", "power") else "nothing"
            words = system.split(":")
            split = (
                rapid.Split(4, 600.0, 600.0)
                if move != "nothing"
                else rapid.Split(int(words[0]), *map(float, words[1:]))
            )
            data = config(split, move, path)
            row: dict[str, Any] = {"system": system, "seed": options.seed, "simulated": simulated(data, requests)}
            if not options.only_simulated:
                row |= measured(data, move, requests, library)
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
