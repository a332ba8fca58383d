"""RAPID Figure 7: SLO attainment as both SLOs scale, at three request rates."""

from __future__ import annotations

from experiment import Row, attainment, draw, publish
from node import NOTES, longbench, node

SCALES = [2.0, 1.75, 1.5, 1.25, 1.0, 0.875, 0.75, 0.625, 0.5]
SPLITS = {
    "4P4D-750W": (4, 750.0, 750.0, 6000.0),
    "4P4D-600W": (4, 600.0, 600.0, 4800.0),
    "5P3D-600W": (5, 600.0, 600.0, 4800.0),
    "4P-750W/4D-450W": (4, 750.0, 450.0, 4800.0),
}


def main() -> None:
    """Scale TTFT 1 s and TPOT 40 ms together."""
    rows, lines = [], {}
    for rate in (1.25, 1.375, 1.5):
        trace = longbench(rate)
        for label, (prefill, prefill_w, decode_w, budget_w) in SPLITS.items():
            kept = [
                attainment(
                    node(prefill, prefill_w=prefill_w, decode_w=decode_w, budget_w=budget_w, slo=(scale, 0.04 * scale)),
                    trace,
                )
                for scale in SCALES
            ]
            rows.append(
                Row(qps_per_gpu=rate, system=label, **{f"x{s:g}": k for s, k in zip(SCALES, kept, strict=True)})
            )
            if rate == 1.5:
                lines[label] = SCALES, kept
    draw("rapid", "figure7", lines, x="scale of TTFT 1 s and TPOT 40 ms, at 1.5 requests/s per GPU", y="SLO attainment")
    publish(
        "rapid", "figure7", rows, notes=NOTES, title="Figure 7: attainment as the SLOs scale",
        published="4P-750W/4D-450W beats the other splits of 4800 W at every rate and matches 4P4D-750W until the SLOs "
        "become highly restrictive.",
    )  # fmt: skip


if __name__ == "__main__":
    main()
