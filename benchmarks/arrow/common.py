"""What the experiments of Arrow share: the paper's workloads and SLOs, the systems, and the search for a maximum rate.

Everything is simulated: `pdplugins.sim` on the profile ``h800/llama-3.1-8b`` (modelled), eight GPUs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import experiment

from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.arrow.config import ArrowSettings
from pdplugins.policies.arrow.router import ArrowRouter
from pdplugins.policies.stock.routers import LeastLoaded, RoundRobin, RouterSettings
from pdplugins.provenance import record
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.run.simulate import summarise
from pdplugins.types import Deployment, Router, Slo, TraceRequest
from pdplugins.workloads import traces
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic
from pdplugins.workloads.transform import clip, scale

ROOT = Path(__file__).resolve().parents[2]
PROFILE = ROOT / "profiles" / "h800" / "llama-3.1-8b.json"
TARGET = 0.9
"""SLO attainment of the paper's headline."""
MAX_BATCH = 256
"""Default of vLLM: max_num_seqs."""
CHUNK = 2048
"""Default of vLLM 0.7 with chunked prefill: max_num_batched_tokens."""


# --- workloads -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workload:
    """One trace of the paper's Table 1, and what stands for it where the file is missing."""

    title: str
    slo: Slo
    file: str | None
    clip_s: float | None
    synthetic: dict[str, Any]


def lognormal(median: float, sigma: float, high: int) -> dict[str, Any]:
    return {"kind": "lognormal", "median": median, "sigma": sigma, "high": high}


def mmpp(rate: float, burst_rate: float, calm_s: float, burst_s: float) -> dict[str, Any]:
    return {"kind": "mmpp", "rate": rate, "burst_rate": burst_rate, "calm_s": calm_s, "burst_s": burst_s}


WORKLOADS = {
    "azure-code": Workload(
        "Azure Code", Slo(3.0, 0.1), "AzureLLMInferenceTrace_code.csv", None,
        {"seed": 0, "duration_s": 3436, "arrivals": mmpp(0.8, 16, 60, 8),
         "isl_tokens": lognormal(1450, 0.95, 7437), "osl_tokens": lognormal(15, 0.85, 1899)},
    ),
    "azure-conversation": Workload(
        "Azure Conversation", Slo(2.0, 0.15), "AzureLLMInferenceTrace_conv.csv", None,
        {"seed": 0, "duration_s": 2180, "arrivals": mmpp(5, 8, 160, 80),
         "isl_tokens": lognormal(950, 0.75, 14050), "osl_tokens": lognormal(130, 0.95, 1000)},
    ),
    "burstgpt-like": Workload(
        "BurstGPT-like (synthetic)", Slo(0.25, 0.075), None, None,
        {"seed": 1, "duration_s": 3600, "arrivals": mmpp(0.5, 6.5, 240, 60),
         "isl_tokens": lognormal(350, 1.0, 4000), "osl_tokens": lognormal(120, 1.0, 1000)},
    ),
    "mooncake-conversation": Workload(
        "Mooncake Conversation, first 10 minutes", Slo(30.0, 0.1), "conversation_trace.jsonl", 600.0,
        {"seed": 0, "duration_s": 600, "arrivals": {"kind": "poisson", "rate": 2.9},
         "isl_tokens": lognormal(8000, 1.05, 123_000), "osl_tokens": lognormal(250, 0.9, 2000)},
    ),
}  # fmt: skip


def read(workload: Workload, folder: Path | None) -> tuple[list[TraceRequest], str]:
    """Return the requests and where they come from. Blocks are not passed on: no system here reuses prefixes."""
    found = sorted(folder.rglob(workload.file)) if folder and workload.file else []
    if found:
        requests = traces.read(found[0])
        return (clip(requests, workload.clip_s) if workload.clip_s else requests), str(workload.file)
    return list(synthetic(SyntheticSettings.model_validate(workload.synthetic))), "synthetic"


# --- systems -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class System:
    """Workers of given sizes behind a router."""

    name: str
    prefill: int
    decode: int
    tp: tuple[int, int]
    router: Callable[[Deployment], Router]
    chunk: int = CHUNK

    @property
    def gpus(self) -> int:
        return self.prefill * self.tp[0] + self.decode * self.tp[1]


def colocated(name: str, workers: int, tp: int, chunk: int = CHUNK) -> System:
    router = partial(LeastLoaded, RouterSettings(seed=0, colocated=True))
    return System(name, workers, 0, (tp, tp), router, chunk)


def static(name: str, prefill: int, decode: int, tp: int = 1) -> System:
    return System(name, prefill, decode, (tp, tp), partial(LeastLoaded, RouterSettings(seed=0, colocated=False)))


def round_robin(name: str, prefill: int, decode: int) -> System:
    return System(name, prefill, decode, (1, 1), partial(RoundRobin, RouterSettings(seed=0, colocated=False)))


def arrow(name: str, prefill: int, decode: int, **settings: Any) -> System:
    return System(name, prefill, decode, (1, 1), partial(ArrowRouter, ArrowSettings(**settings)))


@dataclass(frozen=True, slots=True)
class Point:
    """One run: what the clients got at one request rate."""

    rate: float
    attainment: float
    ttft_p90_s: float | None
    tpot_p90_s: float | None
    flips: int
    faults: int


def run(system: System, requests: Sequence[TraceRequest], rate: float, slo: Slo, perf: TableModel) -> Point:
    """Replay `requests` at `rate` requests a second: the paper multiplies all timestamps with a constant too."""
    deployment = Deployment(slo, perf, system.gpus, *system.tp, startup_s=0.0, max_batch=MAX_BATCH)
    engine = EngineSettings(step_tokens=system.chunk, max_batch=MAX_BATCH)
    settings = SimSettings(prefill=system.prefill, decode=system.decode, engine=engine, flip="label")
    faster = scale(requests, rate * requests[-1].arrival_s / len(requests))
    simulation = Simulation(deployment, settings, system.router(deployment))
    outcome = simulation.run(Arrival(r.arrival_s, r.isl_tokens, r.osl_tokens) for r in faster)
    _, metrics = summarise(outcome, slo)
    faults = sum(outcome.policies.faults.values())
    attainment = metrics.slo_attainment or 0.0
    return Point(
        round(rate, 3), round(attainment, 4), metrics.ttft_s.p90, metrics.tpot_s.p90, len(outcome.scaling), faults
    )


# --- the maximum rate ----------------------------------------------------------------------------------------------

STEP, PRECISION = 1.5, 1.02
LOWEST = 0.02
"""Requests a second below which a system counts as unable to serve the workload."""


def max_rate(
    measure: Callable[[float], Point], start: float, precision: float = PRECISION
) -> tuple[float, list[Point]]:
    """Search the highest rate with `TARGET` attainment; return it and every run of the search."""
    points = [measure(start)]
    low = high = start
    if points[0].attainment >= TARGET:
        while points[-1].attainment >= TARGET:
            low, high = high, high * STEP
            points.append(measure(high))
    else:
        while points[-1].attainment < TARGET and low > LOWEST:
            low, high = low / STEP, low
            points.append(measure(low))
        if points[-1].attainment < TARGET:
            return 0.0, points
    while high / low > precision:
        middle = (low * high) ** 0.5
        points.append(measure(middle))
        low, high = (middle, high) if points[-1].attainment >= TARGET else (low, middle)
    return low, sorted(points, key=lambda point: point.rate)


def best(systems: Iterable[System], measure: Callable[[System, float], Point], start: float) -> tuple[System, float]:
    """Return the system with the highest maximum rate. One that cannot beat the best so far costs a single run."""
    winner, top = None, 0.0
    for system in systems:
        if winner is not None and measure(system, top * PRECISION).attainment < TARGET:
            continue
        rate, _ = max_rate(partial(measure, system), top * PRECISION if winner else start)
        if winner is None or rate > top:
            winner, top = system, rate
    assert winner is not None
    return winner, top


# --- the command and its result ------------------------------------------------------------------------------------


def options(description: str | None) -> argparse.Namespace:
    """Parse what every experiment takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--traces", type=Path, help="folder with the traces; what is missing is synthetic")
    chosen = parser.parse_args()
    chosen.perf = TableModel(read_profile(PROFILE))
    return chosen


def shipped(traces: str) -> argparse.Namespace:
    """Return what an experiment without options takes: for cells that are computed again."""
    return argparse.Namespace(traces=Path(traces), perf=TableModel(read_profile(PROFILE)))


def title(workload: Workload, source: str) -> str:
    """Return the name of a workload for a table."""
    return workload.title if workload.file is None or source != "synthetic" else f"{workload.title} (synthetic)"


Compare = Callable[[str, Workload, argparse.Namespace], tuple[list[dict[str, Any]], dict[str, list[Point]]]]
"""Returns the rows of the table for one workload, and the points of each system."""


def figure(name: str, keys: Iterable[str], compare: Compare, chosen: argparse.Namespace, **publish: str) -> None:
    """Compare the systems on each of the workloads `keys`; draw and write the points, and publish the table."""
    rows: list[dict[str, Any]] = []
    curves = {}
    for key in keys:
        more, curves[key] = compare(key, WORKLOADS[key], chosen)
        rows += more
        draw_attainment(f"{name}-{key}", curves[key])
    made = record("simulated", seed=0, command=experiment.command())
    points = {key: {system: plain(found) for system, found in of.items()} for key, of in curves.items()}
    experiment.save(f"arrow-{name}-curves", {**made, "curves": points})
    experiment.publish("arrow", name, rows, **publish)


def draw_attainment(name: str, curves: dict[str, list[Point]]) -> None:
    """Draw SLO attainment over the request rate."""
    lines = {
        system: ([point.rate for point in points], [100 * point.attainment for point in points])
        for system, points in curves.items()
    }
    experiment.draw("arrow", name, lines, x="requests/s", y="SLO attainment, %")


def plain(points: Iterable[Point]) -> list[dict[str, Any]]:
    """Return points as plain data, with four digits behind the comma."""
    return [
        {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(point).items()}
        for point in points
    ]
