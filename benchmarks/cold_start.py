"""The first minutes from a cold 1P1D: `dynamo serve --planner dopd --trace TRACE`, live, beside the simulator.

    python benchmarks/cold_start.py --traces DIR [--rounds 3] [--minutes 2] [--result cold-start]

`dynamo serve` starts one prefill and one decode worker of `configs/dopd.yaml`, and replays the trace as it comes, from
its first request. A worker that the planner adds serves after `STARTUP_S`. For each minute, of the requests that
arrived in it: the share that met both SLOs, and the mean TTFT. The prediction is the simulator's for the same requests,
config and start-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import manifest
from soak import SERVE

from pdplugins.contracts.request import Slo
from pdplugins.hosts.dynamo.local.commands import LEAST_STARTUP_S as STARTUP_S
from pdplugins.hosts.dynamo.local.options import pick_config
from pdplugins.metrics import attainment, inside
from pdplugins.provenance import command_line, record
from pdplugins.results import RequestRecord, Scaling
from pdplugins.sim.run.simulate import simulate
from pdplugins.workloads import traces, transform

TRACE = "AzureLLMInferenceTrace_conv.csv"
MINUTE_S = 60.0
COLD = ("--planner", "dopd", "--prefill", "1", "--decode", "1", "--startup", str(STARTUP_S))
CONFIG = pick_config("dopd", None, 1, 1, STARTUP_S)
SLO = Slo(CONFIG.slo.ttft_s, CONFIG.slo.tpot_s)
Felt = tuple[float, bool, float | None]
"""When a request arrived, whether it met both SLOs, and its TTFT in seconds; None where no token came."""


def by_minute(requests: Iterable[Felt], minutes: int) -> list[dict[str, Any]]:
    """Return for each minute what the requests that arrived in it felt."""
    found = list(requests)
    rows = []
    for number in range(minutes):
        here = [(good, ttft_s) for arrival_s, good, ttft_s in found if number <= arrival_s / MINUTE_S < number + 1]
        ttft_s = [ttft_s for _, ttft_s in here if ttft_s is not None]
        share = attainment(sum(good for good, _ in here), len(here))
        mean_ms = round(1e3 * statistics.fmean(ttft_s), 1) if ttft_s else None
        rows.append({"minute": number + 1, "requests": len(here), "attainment": share, "ttft_ms": mean_ms})
    return rows


def changes(scaling: Sequence[Scaling]) -> list[str]:
    """Return the pools that were wanted, and since when."""
    return [f"{one.prefill}P{one.decode}D at {one.at_s:.0f} s" for one in scaling]


def predicted(trace: Path, minutes: int) -> dict[str, Any]:
    """Return what the simulator says of the run."""
    requests = transform.clip(traces.read(trace), minutes * MINUTE_S)
    result, outcome = simulate(CONFIG, requests, trace_name=trace.name, command="cold", seed=0)
    felt = [
        (one.arrival_s, one.error is None and bool(inside(one.ttft_s, one.tpot_s, SLO)), one.ttft_s)
        for one in outcome.records
    ]
    return {"minutes": by_minute(felt, minutes), "pools": changes(result.scaling)}


def measured(trace: Path, minutes: int) -> dict[str, Any]:
    """Return what clients felt of one run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records, report = folder / "records.jsonl", folder / "result.json"
        words = [*SERVE, *COLD, "--port", "0", "--status", "plain", "--json", str(report)]
        words += ["--trace", str(trace), "--clip-s", str(minutes * MINUTE_S)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "TMPDIR": name})
            try:
                while process.poll() is None:
                    keep(folder, records)
                    time.sleep(0.5)
            finally:
                process.terminate()
                process.wait()
        if process.returncode or not records.exists():
            sys.exit((folder / "log").read_text(errors="replace")[-3000:])
        felt = [(one.arrival_s, one.inside(SLO), one.ttft_s if one.ok else None) for one in read(records)]
        result = json.loads(report.read_text())
    assert len(felt) == result["requests"]["total"]
    scaling = [Scaling.model_validate(one) for one in result["scaling"]]
    return {"minutes": by_minute(felt, minutes), "pools": changes(scaling), "failed": result["requests"]["failed"]}


def keep(folder: Path, records: Path) -> None:
    """Give the client's file a second name, so that it outlives the folder of the stack."""
    for path in [] if records.exists() else folder.glob("*/requests.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            os.link(path, records)


def read(records: Path) -> list[RequestRecord]:
    """Return what the client wrote of each request."""
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    keys = ("arrival_s", "isl_tokens", "osl_tokens", "error")
    return [
        RequestRecord(token_times_s=tuple(row["token_times_s"]), **{key: row[key] for key in keys})
        for row in rows
        if "request" in row
    ]


def summary(runs: Sequence[dict[str, Any]], prediction: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each minute: the median, least and most of the rounds, and the prediction."""
    rows = []
    for number, simulated in enumerate(prediction["minutes"]):
        row = dict(simulated)
        for key in ("attainment", "ttft_ms"):
            live = [run["minutes"][number][key] for run in runs]
            spread = {"live": statistics.median(live), "least": min(live), "most": max(live)}
            row[key] = {**spread, "simulated": simulated[key]}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder that holds the traces")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=int, default=2)
    parser.add_argument("--result", help="write results/RESULT.json")
    args = parser.parse_args()
    trace = manifest.place(TRACE, args.traces)
    if trace is None:
        parser.error(f"no {TRACE} under {args.traces}")
    facts = record("measured", seed=0, command=command_line("python", sys.argv), took_part=("ai-dynamo",))
    prediction, runs, load = predicted(trace, args.minutes), [], []
    print(json.dumps(prediction), flush=True)
    for _ in range(args.rounds):
        load.append(round(os.getloadavg()[0], 1))
        runs.append(measured(trace, args.minutes))
        print(json.dumps(runs[-1]), flush=True)
    result = {
        **facts,
        "cpus": os.cpu_count(),
        "load_average": load,
        "trace": TRACE,
        "startup_s": STARTUP_S,
        "rounds": args.rounds,
        "failed": sum(run["failed"] for run in runs),
        "rows": summary(runs, prediction),
        "simulated": prediction,
        "runs": runs,
    }
    print(json.dumps(result, indent=1))
    if args.result:
        manifest.write(args.result, result)


if __name__ == "__main__":
    main()
