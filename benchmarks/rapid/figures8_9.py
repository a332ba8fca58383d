"""RAPID Figures 8 and 9: static and dynamic watts and GPUs on a prefill-heavy and then decode-heavy workload."""

from __future__ import annotations

import sys
from typing import Any

from experiment import Row, draw, publish, run
from node import GPUS, NOTES, node, sonnet
from pydantic import Field

from pdplugins import hookimpl
from pdplugins.policies.rapid.config import RapidSettings
from pdplugins.policies.rapid.controller import RapidController
from pdplugins.registry import Plugin, Register, default_registry
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.types import Deployment, GpuView, PlannerView, PowerPlan, Slo

RATES = [1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5]
LOOSE_S, TIGHT_S = 0.04, 0.02
SEEDS = range(3)
OWN = (
    "mean of three seeds; the columns are requests/s per GPU",
    "moving GPUs gains what the paper says; moving power as well gains as much up to 1.5 requests/s per GPU and less "
    "beyond, because each GPU then waits for the steps of power before it",
)
SYSTEMS: dict[str, dict[str, Any]] = {
    "4P4D-600W": {"prefill": 4, "prefill_w": 600.0, "decode_w": 600.0},
    "5P3D-600W": {"prefill": 5, "prefill_w": 600.0, "decode_w": 600.0},
    "4P-750W/4D-450W": {"prefill": 4, "prefill_w": 750.0, "decode_w": 450.0},
    "4P4D-DynPower": {"prefill": 4, "prefill_w": 600.0, "decode_w": 600.0, "move": "power"},
    "DynGPU-600W": {"prefill": 4, "prefill_w": 600.0, "decode_w": 600.0, "move": "gpus"},
    "DynGPU-DynPower": {"prefill": 4, "prefill_w": 600.0, "decode_w": 600.0, "move": "both"},
}


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


def score(system: dict[str, Any], rate: float, seed: int) -> tuple[float, RunOutcome]:
    """Run one system, whose TPOT SLO is 40 ms until the second phase begins and 20 ms from then on."""
    trace = sonnet(rate, seed)
    tighten_at_s = next(request.arrival_s for request in trace if request.isl_tokens < 4000)
    _, outcome = run(node(**system, name="rapid-tighter", tighten_at_s=tighten_at_s), trace, seed=seed)
    return kept(outcome), outcome


def main() -> None:
    """Sweep the rate; then follow the GPUs of the dynamic systems at 2 requests/s per GPU."""
    default_registry().add(Plugin("tighter", "benchmarks", "0"), sys.modules[__name__])
    rows, lines = [], {}
    for label, system in SYSTEMS.items():
        means = [sum(score(system, rate, seed)[0] for seed in SEEDS) / len(SEEDS) for rate in RATES]
        lines[label] = RATES, means
        rows.append(Row(system=label, **{f"{rate:g}": mean for rate, mean in zip(RATES, means, strict=True)}))
    best = max(row["2"] for row in rows[:3])
    draw("rapid", "figure8", lines, x="requests/s per GPU", y="SLO attainment")
    publish(
        "rapid", "figure8", rows, notes=[*NOTES, *OWN],
        title="Figure 8: static and dynamic allocations on the two-phase workload",
        published="4P4D-600W and 5P3D-600W are lowest, power alone helps little, DynGPU-600W more, DynGPU-DynPower "
        "most: up to twice the static attainment.",
    )  # fmt: skip

    rows, lines = [], {}
    for label in ("4P4D-DynPower", "DynGPU-600W", "DynGPU-DynPower"):
        share, outcome = score(SYSTEMS[label], 2.0, 0)
        times = [0.0, *(change.at_s for change in outcome.scaling), outcome.duration_s]
        prefill = [4, *(change.prefill for change in outcome.scaling)]
        lines[label] = times, [*prefill, prefill[-1]]
        rows.append(
            Row(
                system=label, attainment=share, over_best_static=share / best, most_prefill_gpus=max(prefill),
                most_decode_gpus=GPUS - min(prefill), role_changes=len(outcome.scaling),
            )
        )  # fmt: skip
    draw("rapid", "figure9", lines, x="time, s", y="prefill GPUs", dots=False)
    publish(
        "rapid", "figure9", rows, notes=NOTES, title="Figure 9: what moves at 2 requests/s per GPU",
        published="DynGPU-600W goes to six prefill GPUs in the first phase and seven decode GPUs in the second; at "
        "least one GPU of each phase stays.",
    )  # fmt: skip


if __name__ == "__main__":
    main()
