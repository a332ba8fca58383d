"""RAPID Figures 8 and 9: static and dynamic watts and GPUs on a prefill-heavy and then decode-heavy workload."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from experiment import Row, draw, publish, run
from node import CHUNKS, GPUS, NOTES, STEP_MS, Split, best, coalesced, node, sonnet, splits
from pydantic import Field

from pdplugins import hookimpl
from pdplugins.policies.rapid.config import RapidSettings
from pdplugins.policies.rapid.controller import RapidController
from pdplugins.registry import Plugin, Register, default_registry
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.types import Deployment, GpuView, PlannerView, PowerPlan, Slo

RATES = [1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5]
LOOSE_S, TIGHT_S = 0.04, 0.02
SHOWN, TUNED = (0, 1, 2), (10, 11, 12)
"""Seeds."""
EVEN = Split(4, 600.0, 600.0)
STATIC = {"4P4D-600W": EVEN, "5P3D-600W": Split(5, 600.0, 600.0), "4P-750W/4D-450W": Split(4, 750.0, 450.0)}
DYNAMIC = {"4P4D-DynPower": "power", "DynGPU-600W": "gpus", "DynGPU-DynPower": "both"}
PUBLISHED = (
    "4P4D-600W and 5P3D-600W are lowest, power alone helps little, DynGPU-600W more, DynGPU-DynPower most: up to twice "
    "the static attainment."
)
OWN = (
    "mean of three seeds; the columns are requests/s per GPU",
    "the best static split (of all splits and watts) and the best chunk size are those with the highest mean over "
    "three other seeds, chosen anew for each rate, which an operator does not know ahead; RAPID runs with its defaults",
)


def kept(outcome: RunOutcome) -> float:
    """Return the share of requests inside TTFT 1 s and the TPOT SLO of their phase: 40 ms, then 20 ms."""
    good = 0
    for record in outcome.records:
        if record.error is None and record.ttft_s is not None and record.tpot_s is not None:
            tpot_s = LOOSE_S if record.isl_tokens > 4000 else TIGHT_S
            good += record.ttft_s <= 1.0 and record.tpot_s <= tpot_s
    return good / len(outcome.records)


class TighterSettings(RapidSettings):
    """Settings of RAPID for an operator who tightens the TPOT SLO."""

    tighten_at_s: float = Field(description="when")


class Tighter(RapidController):
    """RAPID whose operator tightens the TPOT SLO when the second phase begins."""

    def __init__(self, settings: TighterSettings, deployment: Deployment) -> None:
        super().__init__(settings, deployment)
        self._at_s = settings.tighten_at_s

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        if view.now_s >= self._at_s:
            self._slo = Slo(self._slo.ttft_s, TIGHT_S)
        return super().control(gpus, view)


@hookimpl
def pd_register_power_controllers(register: Register) -> None:
    register("rapid-tighter", Tighter, TighterSettings)


def score(config: dict[str, Any], rate: float, seed: int) -> tuple[float, RunOutcome]:
    """Run one system, whose TPOT SLO is 40 ms until the second phase begins and 20 ms from then on."""
    trace = sonnet(rate, seed)
    tighten_at_s = next(request.arrival_s for request in trace if request.isl_tokens < 4000)
    power = {**config["power"], "name": "rapid-tighter", "tighten_at_s": tighten_at_s}
    _, outcome = run({**config, "power": power}, trace, seed=seed)
    return kept(outcome), outcome


def mean(config: dict[str, Any], rate: float, seeds: Sequence[int]) -> float:
    """Return the mean attainment over random seeds."""
    return sum(score(config, rate, seed)[0] for seed in seeds) / len(seeds)


@cache
def best_static(rate: float, step_ms: float = STEP_MS) -> Split:
    """Return the split that keeps most on the seeds for tuning: the best eight of all on one seed, then on all."""

    def on(split: Split, seeds: Sequence[int]) -> float:
        return mean(node(*split, step_ms=step_ms), rate, seeds)

    first = sorted(splits(), key=lambda split: -on(split, TUNED[:1]))
    return best(first[:8], lambda split: on(split, TUNED))[0]


@cache
def best_chunk(rate: float, step_ms: float = STEP_MS) -> int:
    """Return the chunk size with which co-located engines keep most on the seeds for tuning."""
    return best(CHUNKS, lambda tokens: mean(coalesced(600.0, tokens, step_ms=step_ms), rate, TUNED))[0]


def figure8() -> None:
    """Sweep the rate."""
    means = {label: [mean(node(*split), rate, SHOWN) for rate in RATES] for label, split in STATIC.items()}
    chosen = [best_static(rate) for rate in RATES]
    chunks = [best_chunk(rate) for rate in RATES]
    means["best static split of each rate"] = [
        mean(node(*split), rate, SHOWN) for rate, split in zip(RATES, chosen, strict=True)
    ]
    means["Coalesced-600W, best chunks of each rate"] = [
        mean(coalesced(600.0, tokens), rate, SHOWN) for rate, tokens in zip(RATES, chunks, strict=True)
    ]
    for label, move in DYNAMIC.items():
        means[label] = [mean(node(*EVEN, move=move), rate, SHOWN) for rate in RATES]
    rows = [
        Row(system=label, **{f"{rate:g}": share for rate, share in zip(RATES, shares, strict=True)})
        for label, shares in means.items()
    ]
    rows.append(Row(system="(the best static split)", **{f"{r:g}": str(s) for r, s in zip(RATES, chosen, strict=True)}))
    rows.append(Row(system="(the best chunks)", **{f"{r:g}": str(n) for r, n in zip(RATES, chunks, strict=True)}))
    draw(
        "rapid", "figure8", {label: (RATES, shares) for label, shares in means.items()},
        x="requests/s per GPU", y="SLO attainment",
    )  # fmt: skip
    publish(
        "rapid", "figure8", rows, notes=[*NOTES, *OWN], published=PUBLISHED,
        title="Figure 8: static and dynamic allocations on the two-phase workload",
    )  # fmt: skip


def figure9() -> None:
    """Follow the GPUs of the dynamic systems at 2 requests/s per GPU."""
    rows, lines = [], {}
    for label, move in DYNAMIC.items():
        share, outcome = score(node(*EVEN, move=move), 2.0, 0)
        times = [0.0, *(change.at_s for change in outcome.scaling), outcome.duration_s]
        prefill = [4, *(change.prefill for change in outcome.scaling)]
        lines[label] = times, [*prefill, prefill[-1]]
        rows.append(
            Row(
                system=label, attainment=share, most_prefill_gpus=max(prefill), most_decode_gpus=GPUS - min(prefill),
                role_changes=len(outcome.scaling),
            )
        )  # fmt: skip
    draw("rapid", "figure9", lines, x="time, s", y="prefill GPUs", dots=False)
    publish(
        "rapid", "figure9", rows, notes=NOTES, title="Figure 9: what moves at 2 requests/s per GPU",
        published="DynGPU-600W goes to six prefill GPUs in the first phase and seven decode GPUs in the second; at "
        "least one GPU of each phase stays.",
    )  # fmt: skip


def main() -> None:
    """Run Figures 8 and 9."""
    prepare()
    figure8()
    figure9()


def prepare() -> None:
    """Make the controller of this page known."""
    default_registry().add(Plugin("tighter", "benchmarks", "0"), sys.modules[__name__])


def cell() -> dict[str, list[Row]]:
    """Return a part of the tables, computed again."""
    prepare()
    share = mean(node(*EVEN, move="gpus"), 2.0, SHOWN)
    return {"rapid-figure8": [Row(system="DynGPU-600W", **{"2": share})]}


if __name__ == "__main__":
    main()
