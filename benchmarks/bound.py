"""How much could any scaler gain on a trace, when a worker serves 30 s after the decision? See README.md.

python benchmarks/bound.py --traces DIR      replay the fixed pools, write results/bound.json and README.md
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("DYN_LOG", "error")  # before Dynamo is imported

import numpy as np
import planners_report
from experiment import command, save
from planners import TRACES, Trace

from pdplugins.hosts.dynamo.mocker import Engines, bind
from pdplugins.hosts.dynamo.offline import report
from pdplugins.hosts.dynamo.offline.commands import configured
from pdplugins.hosts.dynamo.offline.scaling import Fixed
from pdplugins.provenance import record
from pdplugins.runtime.assembly import build_deployment
from pdplugins.types import Deployment
from pdplugins.workloads import jsonl, traces
from pdplugins.workloads.transform import since

WINDOW_S = 15
"""Pools and load are looked at in windows this long."""
GROUPS = 4
"""A rule may know the load as one of this many classes; more would only learn this one trace by heart."""
PRICES = np.geomspace(0.05, 30, 60)
"""What a worker-window may cost in missed requests: sweeps the trade-off between attainment and GPU-hours."""
LEVELS = {
    "azure-conversation": (90.0, 95.0, 99.0),
    "azure-code": (80.0, 90.0, 95.0),
    "mooncake-conversation": (45.0, 50.0, 54.0),
}
"""Attainments, in percent, to look at. Far below them, queues carry over from window to window."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Windows:
    """A trace in windows, as fixed pools of every size saw it."""

    pools: Array
    """GPUs of the prefill workers of each pool."""
    misses: Array
    """Requests outside an SLO: a row per pool, a column per window (of arrival)."""
    load: Array
    """Prefill work that arrives, in busy workers."""
    requests: int
    decode_gpus: int

    def gpu_hours(self, pools: Array) -> float:
        """GPU-hours of one pool size per window; start-up is not billed."""
        return float((pools + self.decode_gpus).sum() * WINDOW_S / 3600)

    def attainment(self, chosen: Array) -> float:
        """Percent inside both SLOs with the pool of this row in each window; queues do not carry over."""
        return 100 * float(1 - self.misses[chosen, np.arange(self.misses.shape[1])].sum() / self.requests)

    def front(self, gpu_hours: float) -> float:
        """Attainment of fixed pools that cost `gpu_hours`, in the same accounting."""
        costs, attainments = self._fixed()
        return float(np.interp(gpu_hours, costs, attainments))

    def cost(self, attainment: float) -> float:
        """GPU-hours of fixed pools that attain `attainment` percent."""
        costs, attainments = self._fixed()
        return float(np.interp(attainment, attainments, costs))

    def _fixed(self) -> tuple[Array, Array]:
        everywhere = np.ones(self.misses.shape[1], dtype=int)
        points = [(self.gpu_hours(p * everywhere), self.attainment(i * everywhere)) for i, p in enumerate(self.pools)]
        costs, attainments = np.array(points).T
        return costs, attainments


def measure(trace: Trace, path: Path) -> Windows:
    """Replay the fixed pools of the sweep that have the same decode workers."""
    whole = traces.read(path)
    requests = since(whole, round(whole[-1].arrival_s / 3))  # what planners.py reports
    deployment = build_deployment(configured(None, {("deployment", "prefill", "tp"): trace.prefill_gpus}))
    count = int(requests[-1].arrival_s // WINDOW_S) + 1
    misses = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        jsonl.write_mooncake(requests, scratch / "trace.jsonl")
        run = bind(deployment, Engines(None), scratch)
        for prefill in trace.prefill:
            run(scratch / "trace.jsonl", Fixed(), prefill, trace.decode, scratch / "rows.jsonl")
            late = [
                row["arrival_time_ms"] / 1e3 for row in report.rows(scratch / "rows.jsonl") if _missed(row, deployment)
            ]
            misses.append(_per_window(late, count))
    work_s = [deployment.perf.prefill_s(r.isl_tokens, deployment.prefill_tp) for r in requests]
    load = _per_window([r.arrival_s for r in requests], count, work_s) / WINDOW_S
    decode_gpus = trace.decode * deployment.decode_tp
    pools = np.array(trace.prefill) * trace.prefill_gpus
    return Windows(pools, np.array(misses), load, len(requests), decode_gpus)


def _missed(row: Any, deployment: Deployment) -> bool:
    slo = deployment.slo
    return bool(row["ttft_ms"] > 1e3 * slo.ttft_s or report.row_tpot_s(row) > slo.tpot_s)


def _per_window(times_s: list[float], count: int, weights: list[float] | None = None) -> Array:
    return np.bincount([int(t // WINDOW_S) for t in times_s], weights=weights, minlength=count)


# --- what a rule may know ------------------------------------------------------------------------------------------


def lagged(load: Array, seconds: int) -> Array:
    """The load of the last full window that ended `seconds` before a window begins."""
    steps = 1 + seconds // WINDOW_S
    return np.concatenate([np.full(steps, load[0]), load[:-steps]])


def smoothed(load: Array, seconds: int) -> Array:
    """Mean load of the last `seconds`."""
    steps = seconds // WINDOW_S
    return np.convolve(load, np.ones(steps) / steps)[: len(load)]


def gains(windows: Windows, classes: Array, levels: tuple[float, ...]) -> list[dict[str, float]]:
    """Hold the best map from `classes` to pool sizes against fixed pools, where it attains `levels` percent.

    The map is fitted to the answer itself, so no rule that has to learn it can do better with the same knowledge.
    Returns points above the front at the same GPU-hours, and percent of GPU-hours saved at the same attainment.
    """
    points = []
    for price in PRICES:
        chosen = np.zeros(len(classes), dtype=int)
        for one in np.unique(classes):
            inside = classes == one
            chosen[inside] = (windows.misses[:, inside].sum(1) + price * windows.pools * inside.sum()).argmin()
        attainment, gpu_hours = windows.attainment(chosen), windows.gpu_hours(windows.pools[chosen])
        points.append((attainment, gpu_hours))
    attainments, costs = np.array(sorted(points)).T
    found = []
    for level in levels:
        cost = float(np.interp(level, attainments, costs))
        saved = 100 * (1 - cost / windows.cost(level))
        found.append({"above": round(level - windows.front(cost), 1), "saved": round(saved, 1)})
    return found


def quantiles(known: Array) -> Array:
    """Return the class of each window: which quarter of all values `known` is in."""
    edges = np.unique(np.quantile(known, np.linspace(0, 1, GROUPS + 1)[1:-1]))
    return np.searchsorted(edges, known, side="right")


KNOWN: dict[str, Callable[[Array], Array]] = {
    "load of 15 s, 30 s ago": lambda load: lagged(load, 30),
    "mean load of 60 s, 30 s ago": lambda load: lagged(smoothed(load, 60), 30),
    "mean load of 120 s, 30 s ago": lambda load: lagged(smoothed(load, 120), 30),
    "mean load of 300 s, 30 s ago": lambda load: lagged(smoothed(load, 300), 30),
    "load of the last 15 s, start-up 0 s": lambda load: lagged(load, 0),
    "load of the coming 15 s": lambda load: load,
}


def examine(windows: Windows, levels: tuple[float, ...]) -> dict[str, Any]:
    """Return everything that README.md tells about one trace."""
    deviation = windows.load - windows.load.mean()
    lags = {
        seconds: round(float((deviation[steps:] * deviation[:-steps]).mean() / deviation.var()), 2)
        for seconds, steps in ((s, s // WINDOW_S) for s in (15, 30, 45, 60, 120))
    }
    above = {name: gains(windows, quantiles(of(windows.load)), levels) for name, of in KNOWN.items()}
    above["the misses of every pool in the coming 15 s"] = gains(windows, np.arange(len(windows.load)), levels)
    return {"autocorrelation": lags, "levels": levels, "above_front": above}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder that holds the traces")
    options = parser.parse_args()
    found = {}
    for trace in TRACES:
        if (path := trace.find(options.traces)) is None:
            print(f"{trace.key}: skipped, no {trace.file} under {options.traces}")
            continue
        found[trace.key] = examine(measure(trace, path), LEVELS[trace.key])
        print(trace.key, json.dumps(found[trace.key], indent=1), flush=True)
    made = record("simulated", seed=None, command=command(), took_part=("ai-dynamo", "numpy"))
    save("bound", {**made, "traces": found})
    planners_report.write()


if __name__ == "__main__":
    main()
