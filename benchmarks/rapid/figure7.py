"""RAPID Figure 7: SLO attainment as both SLOs scale, at three request rates, and at other step times."""

from __future__ import annotations

from typing import Any

from experiment import Row, attainment, draw, publish
from figure5 import PAPERS, SHOWN, TUNED
from node import BUDGET_W, CHUNKS, GPUS, NOTES, STEP_MS, STEPS_MS, best, coalesced, longbench, node, splits

SCALES = [2.0, 1.75, 1.5, 1.25, 1.0, 0.875, 0.75, 0.625, 0.5]
RATES = (1.25, 1.375, 1.5)
PUBLISHED = (
    "4P-750W/4D-450W beats the other splits of 4800 W at every rate and matches 4P4D-750W until the SLOs become highly "
    "restrictive."
)
OWN = (
    "the best split of 4800 W and the best chunk size are those with the highest mean over all scales at 1.5 "
    "requests/s per GPU, on another seed"
)


def slo(scale: float) -> tuple[float, float]:
    """Return TTFT and TPOT."""
    return scale, 0.04 * scale


def over_scales(system: dict[str, Any], rate: float, seed: int) -> list[float]:
    """Return the attainment of a system at each scale of the SLOs."""
    trace = longbench(rate, seed)
    data = [{**system, "slo": {"ttft_s": slo(scale)[0], "tpot_s": slo(scale)[1]}} for scale in SCALES]
    return [attainment(one, trace, seed) for one in data]


def systems(step_ms: float) -> dict[str, dict[str, Any]]:
    """Return the systems, the baselines tuned at one step time."""

    def worth(system: dict[str, Any]) -> float:
        return sum(over_scales(system, RATES[-1], TUNED))

    named = ("4P4D-750W", "4P4D-600W", "5P3D-600W", "4P-750W/4D-450W")
    found = {
        label: node(*PAPERS[label], budget_w=max(PAPERS[label].watts, BUDGET_W), step_ms=step_ms) for label in named
    }
    split, _ = best(splits(), lambda one: worth(node(*one, step_ms=step_ms)))
    chunk, _ = best(CHUNKS, lambda tokens: worth(coalesced(BUDGET_W / GPUS, tokens, step_ms=step_ms)))
    found[f"best split of 4800 W: {split}"] = node(*split, step_ms=step_ms)
    found[f"Coalesced-600W, chunks of {chunk}"] = coalesced(BUDGET_W / GPUS, chunk, step_ms=step_ms)
    return found


def columns(kept: list[float]) -> Row:
    """Return a column for each scale."""
    return {f"x{scale:g}": share for scale, share in zip(SCALES, kept, strict=True)}


def main() -> None:
    """Scale TTFT 1 s and TPOT 40 ms together, then change the step time."""
    found = systems(STEP_MS)
    rows = [
        Row(qps_per_gpu=f"{rate:g}", system=label, **columns(over_scales(system, rate, SHOWN)))
        for rate in RATES
        for label, system in found.items()
    ]
    lines = {row["system"]: (SCALES, [row[f"x{scale:g}"] for scale in SCALES]) for row in rows[-len(found) :]}
    draw("rapid", "figure7", lines, x="scale of TTFT 1 s and TPOT 40 ms, at 1.5 requests/s per GPU", y="SLO attainment")
    publish(
        "rapid", "figure7", rows, notes=[*NOTES, OWN], title="Figure 7: attainment as the SLOs scale",
        published=PUBLISHED,
    )  # fmt: skip
    rows = [
        Row(step_ms=f"{step_ms:g}", system=label, **columns(over_scales(system, RATES[-1], SHOWN)))
        for step_ms in STEPS_MS
        if step_ms != STEP_MS
        for label, system in systems(step_ms).items()
    ]
    publish(
        "rapid", "figure7-step", rows, notes=[OWN], published=PUBLISHED,
        title=f"Figure 7 at 1.5 requests/s per GPU with other step times than the fitted {STEP_MS} ms",
    )  # fmt: skip


def cell() -> dict[str, list[Row]]:
    """Return a part of the table, computed again."""
    kept = over_scales(node(*PAPERS["4P4D-600W"]), 1.5, SHOWN)
    return {"rapid-figure7": [Row(qps_per_gpu="1.5", system="4P4D-600W", **columns(kept))]}


if __name__ == "__main__":
    main()
