"""The traffic of the arena: fifteen families of load, each with one member to tune on and another one to report.

The split is a rule: settings are chosen on the `TUNED` members with even random seeds, and what is reported comes from
the `SHOWN` members with odd ones. The two members of a family differ in rates, lengths and times. Of a recorded trace
the first half is tuned on, and the second half is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import manifest
import numpy as np
from measure import workload

from pdplugins.errors import PdpluginsError
from pdplugins.types import TraceRequest
from pdplugins.workloads import traces
from pdplugins.workloads.transform import clip, merge, since

Half = Literal["tuned", "shown"]
TUNED: Half = "tuned"
SHOWN: Half = "shown"
SEEDS: dict[Half, tuple[int, ...]] = {TUNED: (0, 2), SHOWN: (1, 3)}
SMOOTH_S = 120.0
"""A smooth trace has the rates of the recorded one, on average over this many seconds, and Poisson arrivals."""
Phase = dict[str, Any]
Trace = list[TraceRequest]


def lengths(isl: float, osl: float, sigma: float = 0.85) -> Phase:
    """Return log-normal lengths with these means, in tokens."""
    bend = math.exp(sigma * sigma / 2)
    return {
        "isl_tokens": {"kind": "lognormal", "median": isl / bend, "sigma": sigma, "high": 8000},
        "osl_tokens": {"kind": "lognormal", "median": osl / bend, "sigma": sigma, "high": 1000},
    }


CHAT = lengths(1080, 220)
ASKED = lengths(1172, 73, 0.6)


def flat(duration_s: float, rate: float, of: Phase = CHAT) -> Phase:
    """Return a phase of independent arrivals."""
    return {"duration_s": duration_s, "arrivals": {"kind": "poisson", "rate": rate}, **of}


def ramp(duration_s: float, rate: float, to_rate: float, of: Phase = CHAT) -> Phase:
    """Return a phase whose rate changes in a straight line."""
    return {"duration_s": duration_s, "arrivals": {"kind": "ramp", "rate": rate, "to_rate": to_rate}, **of}


def bursts(duration_s: float, rate: float, burst_rate: float, calm_s: float, burst_s: float) -> Phase:
    """Return calm and bursts, each of random length."""
    spells = {"kind": "mmpp", "rate": rate, "burst_rate": burst_rate, "calm_s": calm_s, "burst_s": burst_s}
    return {"duration_s": duration_s, "arrivals": spells, **CHAT}


def through(step_s: float, rates: Sequence[float]) -> list[Phase]:
    """Return straight lines from rate to rate."""
    return [ramp(step_s, rate, to_rate) for rate, to_rate in pairwise(rates)]


def wave(low: float, high: float, peaks: int, parts: int = 24) -> list[float]:
    """Return the rates of a day that begins and ends at night and has so many peaks."""
    turns = [2 * math.pi * peaks * part / parts for part in range(parts + 1)]
    return [(low + high) / 2 - (high - low) / 2 * math.cos(turn) for turn in turns]


DRIFTS = ((1800, 60), (1560, 120), (1320, 180), (1080, 240), (840, 300), (600, 360))
GENERATED: dict[str, dict[Half, tuple[list[Phase], ...]]] = {
    "steady": {TUNED: ([flat(1200, 6)],), SHOWN: ([flat(1200, 9)],)},
    "ramp": {
        TUNED: ([ramp(600, 3, 20), ramp(600, 20, 3)],),
        SHOWN: ([ramp(900, 2, 34, ASKED), ramp(900, 34, 2, ASKED)],),
    },
    "day": {TUNED: (through(75, wave(2, 14, 1)),), SHOWN: (through(75, wave(1, 18, 2)),)},
    "steps": {
        TUNED: ([flat(400, 4), flat(400, 14), flat(400, 5)],),
        SHOWN: ([flat(300, 8), flat(300, 3), flat(300, 16), flat(300, 6)],),
    },
    "flash crowd": {
        TUNED: ([flat(400, 3), ramp(30, 3, 15), flat(180, 15), ramp(200, 15, 3), flat(390, 3)],),
        SHOWN: ([flat(500, 5), ramp(15, 5, 22), flat(90, 22), ramp(150, 22, 5), flat(445, 5)],),
    },
    "bursts": {TUNED: ([bursts(1200, 3, 14, 120, 60)],), SHOWN: ([bursts(1200, 2, 12, 60, 30)],)},
    "drift": {
        TUNED: ([flat(200, 6, lengths(isl, 150)) for isl in (400, 700, 1000, 1400, 1800, 2200)],),
        SHOWN: ([flat(200, 8, lengths(isl, osl)) for isl, osl in DRIFTS],),
    },
    "swing": {
        TUNED: ([flat(400, 5, lengths(*pair)) for pair in ((2200, 50), (300, 500), (2200, 50))],),
        SHOWN: ([flat(300, 6, lengths(*pair)) for pair in ((400, 600), (1800, 40), (400, 600), (1800, 40))],),
    },
    "two populations": {
        TUNED: ([flat(1200, 5, lengths(400, 200))], [flat(1200, 0.5, lengths(5000, 100, 0.3))]),
        SHOWN: ([*through(100, wave(2, 10, 1, 12))], [flat(1200, 1.5, lengths(300, 800, 0.4))]),
    },
}  # fmt: skip
"""By family and half: the populations of a workload, each as phases."""
RECORDED = {
    "conversation": ("AzureLLMInferenceTrace_conv.csv", 1080.0, 1),
    "code": ("AzureLLMInferenceTrace_code.csv", 1700.0, 1),
    "mooncake": ("conversation_trace.jsonl", 900.0, 2),
}
"""By family: file, seconds that are taken from each half, GPUs of a prefill worker that holds the longest prompt."""
FAMILIES = (*GENERATED, *(f"{name}, {form}" for name in RECORDED for form in ("raw", "smooth")))


@dataclass(frozen=True)
class Workload:
    """One member of a family."""

    family: str
    half: Half

    @property
    def name(self) -> str:
        """What tells it from the others."""
        return f"{self.family}, {self.half}"

    @property
    def prefill_gpus(self) -> int:
        """GPUs of a prefill worker."""
        recorded = self.family.partition(",")[0]
        return RECORDED[recorded][2] if recorded in RECORDED else 1

    def requests(self, seed: int, folder: Path | None) -> Trace:
        """Return the requests; all are within the same time for all seeds. Raises PdpluginsError without the trace."""
        if seed not in SEEDS[self.half]:
            raise PdpluginsError(f"{self.name}: the seed {seed} belongs to the other half")
        if self.family in GENERATED:
            populations = enumerate(GENERATED[self.family][self.half])
            return merge([workload(seed=seed + 1000 * index, phases=phases) for index, phases in populations])
        name, _, form = self.family.partition(", ")
        part = recorded(name, self.half, folder)
        return part if form == "raw" else list(smooth(part, seed))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Random seeds; a recorded trace as it is has none."""
        return SEEDS[self.half][:1] if self.family.endswith(", raw") else SEEDS[self.half]


def of_half(half: Half) -> list[Workload]:
    """Return all workloads of one half."""
    return [Workload(family, half) for family in FAMILIES]


@cache
def recorded(name: str, half: Half, folder: Path | None) -> Trace:
    """Return what is taken from a half of a recorded trace. Raises PdpluginsError where the file is not there."""
    file, taken_s, _ = RECORDED[name]
    path = manifest.place(file, folder)
    if path is None:
        raise PdpluginsError(f"workload {name}: no {file} under --traces; benchmarks/README.md says where to get it")
    whole = traces.read(path)
    begin_s = 0.0 if half == TUNED else whole[-1].arrival_s / 2
    return clip(since(whole, begin_s), taken_s)


def smooth(requests: Trace, seed: int) -> Iterator[TraceRequest]:
    """Yield the same requests in their order, with Poisson arrivals at the mean rate of every two minutes."""
    end_s = requests[-1].arrival_s
    knots = np.linspace(0.0, end_s, max(round(end_s / SMOOTH_S), 1) + 1)
    so_far = np.searchsorted([request.arrival_s for request in requests], knots, side="right")
    drawn = np.sort(np.random.default_rng(seed).uniform(0, len(requests), len(requests)))
    for request, at_s in zip(requests, np.interp(drawn, so_far, knots).tolist(), strict=True):
        yield replace(request, arrival_s=round(at_s, 6))
