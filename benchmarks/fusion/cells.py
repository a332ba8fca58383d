"""The cells of fusion's matrix: hardware, traffic and objectives.

The objectives follow from the hardware and the traffic. TTFT: `TTFT_FACTOR` times what the mean prompt takes on an idle
worker. TPOT: a multiple (`TPOT_FACTORS`) of the step of a worker that decodes one request of mean context.

Traffic: requests of a recorded trace, in their order, with Poisson arrivals. The first half of a trace is tuned on, the
second half is shown. A seed chooses where in the half a run begins, and the arrivals. A run lasts as long at all rates:
at least `RESIDENCES` times as long as a request, or a session, may stay within its objectives, or `SETTLE_S`. What
arrives in the first of these times is not counted: until then the decode batches still grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import manifest
import numpy as np

from pdplugins.config import parse
from pdplugins.errors import PdpluginsError
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.runtime.assembly import build_deployment, load_profile
from pdplugins.types import TraceRequest
from pdplugins.workloads import traces
from pdplugins.workloads.transform import limit

TTFT_FACTOR = 10.0
TPOT_FACTORS = {"loose": 6.0, "middle": 3.0, "strict": 1.5}
PER_WORKER = 100
"""Least requests of a run at capacity, for each worker."""
RESIDENCES = 2.0
SETTLE_S = 10.0
"""At least as long nothing is counted: policies that watch the traffic must have seen some."""
CONTEXT = 65_536
"""Longest prompt plus output."""
LONG = 12_288
"""Longest document of the mixed traffic."""
SHORT_PER_LONG = 9
MOST_ROUNDS = 4
GAP_SCALE = 0.1
"""Agents: rounds of a session that are kept, and the share of the gaps that is kept: else a run had to last minutes."""
TUNED, SHOWN = 9, (0, 1, 2)
"""Seeds: settings are chosen on the first half of a trace with one, figures come from the second with the others."""
Config = dict[str, Any]
Trace = list[TraceRequest]


@dataclass(frozen=True)
class Hardware:
    """Workers that are all alike."""

    profile: str
    tp: int
    workers: int

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        return self.tp * self.workers


HARDWARE = {
    "h100": Hardware("h100/llama-3.1-70b-fp8", 2, 4),
    "a100": Hardware("a100/qwen2.5-14b", 1, 4),
    "h800": Hardware("h800/llama-3.1-8b", 1, 4),
    "h200": Hardware("h200/deepseek-r1", 8, 4),
}
FILES = {
    "conversation": ("AzureLLMInferenceTrace_conv.csv",),
    "code": ("AzureLLMInferenceTrace_code.csv",),
    "mooncake": ("conversation_trace.jsonl",),
    "agents": ("gpt4o_airline_rounds.csv",),
    "mixed": ("AzureLLMInferenceTrace_conv.csv", "conversation_trace.jsonl"),
}


@cache
def recorded(folder: Path, workload: str) -> Trace:
    """Return all requests of a workload. Raises PdpluginsError where a file is not there."""
    found = []
    for name in FILES[workload]:
        if (path := manifest.place(name, folder)) is None:
            raise PdpluginsError(
                f"workload {workload}: no {name} under {folder.name}; benchmarks/README.md says where to get it"
            )
        found.append(limit(traces.read(path), LONG if workload == "mixed" else CONTEXT))
    if workload == "mixed":
        return list(_mixed(*found))
    return [replace(request, rounds=tuple(map(_shorter, request.rounds[: MOST_ROUNDS - 1]))) for request in found[0]]


def _shorter(later: Any) -> Any:
    return replace(later, gap_s=later.gap_s * GAP_SCALE)


def _mixed(short: Trace, long: Trace) -> Iterator[TraceRequest]:
    """Yield some short requests, then a long one, and so on. Nothing of the long ones is cached."""
    for number, request in enumerate(short):
        yield request
        if number % SHORT_PER_LONG == SHORT_PER_LONG - 1:
            yield replace(long[number // SHORT_PER_LONG], blocks=())


def turns(request: TraceRequest) -> int:
    """Return the number of requests that a session makes."""
    return 1 + len(request.rounds)


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix."""

    hardware: str
    workload: str
    slo: str
    folder: Path

    @property
    def name(self) -> str:
        """Return what tells it from the others."""
        return f"{self.hardware} {self.workload} {self.slo}"

    @property
    def on(self) -> Hardware:
        """Return the hardware."""
        return HARDWARE[self.hardware]

    def half(self, *, tuning: bool) -> Sequence[TraceRequest]:
        """Return the requests that are tuned on, or those that are shown."""
        whole = recorded(self.folder, self.workload)
        middle = len(whole) // 2
        return whole[:middle] if tuning else whole[middle:]

    @property
    def sessions(self) -> bool:
        """Whether requests are rounds of sessions."""
        return any(request.rounds for request in self.half(tuning=True)[:10])

    @property
    def blocks(self) -> bool:
        """Whether prompts share prefixes."""
        return any(request.blocks for request in self.half(tuning=True)[:10])

    def lengths(self) -> tuple[float, float]:
        """Return the mean prompt and output of a request, in tokens."""
        return _lengths(self.folder, self.workload)

    def objectives(self) -> dict[str, float]:
        """Return the SLOs of this cell, to two digits."""
        perf, tp = load_profile(self.on.profile), self.on.tp
        isl, osl = self.lengths()
        ttft_s = TTFT_FACTOR * perf.prefill_s(isl, tp)
        tpot_s = TPOT_FACTORS[self.slo] * perf.decode_step_s(1, isl + osl / 2, tp)
        return {"ttft_s": float(f"{ttft_s:.2g}"), "tpot_s": float(f"{tpot_s:.2g}")}

    def config(self, prefill: int | None = None, **parts: Any) -> Config:
        """Return a config with `prefill` prefill workers; half of them when it is not given."""
        on = self.on
        prefill = on.workers // 2 if prefill is None else prefill
        pools = {
            "prefill": {"replicas": prefill, "tp": on.tp},
            "decode": {"replicas": on.workers - prefill, "tp": on.tp},
        }
        return {
            "slo": self.objectives(),
            "deployment": {"profile": on.profile, "gpu_budget": on.gpus, **pools},
            **parts,
        }

    def stays_s(self) -> float:
        """Return how long a mean request may stay within its objectives, or a mean session."""
        slo, (_, osl) = self.objectives(), self.lengths()
        half = self.half(tuning=True)
        rounds = fmean(map(turns, half))
        gaps_s = fmean(sum(later.gap_s for later in request.rounds) for request in half)
        return gaps_s + rounds * (slo["ttft_s"] / 2 + slo["tpot_s"] * osl)

    def lasts_s(self, rate: float) -> float:
        """Return how long a run lasts on hardware that serves `rate` requests a second."""
        return float(f"{max(PER_WORKER * self.on.workers / rate, RESIDENCES * self.settles_s()):.4g}")

    def settles_s(self) -> float:
        """Return from when on what arrives is counted."""
        return max(self.stays_s(), SETTLE_S)

    def guess(self) -> float:
        """Return the requests a second that fusion's programme says are served at most: where searches begin."""
        deployment = build_deployment(parse(self.config()))
        tokens = deployment.perf.kv_capacity_tokens(self.on.tp)
        does = Core(FusionSettings(), deployment).frontier(*self.lengths(), tokens)
        best = does.best(self.on.workers)
        return does.rate(best, self.on.workers - best)

    def traffic(self, rate: float, duration_s: float, seed: int) -> Trace:
        """Return what arrives in `duration_s` at `rate` requests a second."""
        half = self.half(tuning=seed == TUNED)
        rng = np.random.default_rng(seed)
        begin = int(rng.integers(len(half)))
        rate /= fmean(turns(request) for request in half)
        arrivals = np.cumsum(rng.exponential(1.0, max(round(rate * duration_s), 1)))
        return [
            replace(
                half[(begin + number) % len(half)],
                arrival_s=round(float(at) / rate, 6),
                session=f"s{number}" if self.sessions else None,
            )
            for number, at in enumerate(arrivals)
        ]


@cache
def _lengths(folder: Path, workload: str) -> tuple[float, float]:
    pairs = [(isl, osl) for request in recorded(folder, workload) for _, isl, osl in request.turns()]
    isl, osl = (fmean(column) for column in zip(*pairs, strict=True))
    return isl, osl
