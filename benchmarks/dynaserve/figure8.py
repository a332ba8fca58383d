"""DynaServe Figure 8: goodput against the request rate, three model sizes and four workloads."""

from __future__ import annotations

from common import WORKLOADS, colocated, disaggregated, dynaserve, token_goodput, traffic
from experiment import Row, draw, publish, run

MODELS = {"14B": ("a100/qwen2.5-14b", 1), "32B": ("a100/qwen2.5-32b", 2), "72B": ("a100/qwen2.5-72b", 4)}
"""Profile and GPUs of each of the two workers."""
RATES = {
    "BurstGPT (Azure conversation)": (4, 6, 8, 10, 12, 14), "Azure code": (3, 4.5, 6, 7.5, 9, 11),
    "arXiv summarization": (2, 3, 4, 5, 6, 7), "Mini Reasoning (log-normal)": (2, 3, 4, 5, 6, 7),
}  # fmt: skip


def main() -> None:
    """Raise the rate."""
    rows = []
    for model, (profile, tp) in MODELS.items():
        machine = {"profile": profile, "tp": tp}
        systems = {
            "co-located, chunk 2048": colocated(**machine),
            "co-located, chunk 512": colocated(512, **machine),
            "co-located, SLO-aware": colocated(scheduler={"name": "dynaserve"}, **machine),
            "disaggregated": disaggregated(**machine),
            "DynaServe": dynaserve(**machine),
        }
        for name, rates in RATES.items():
            best = {}
            lines = {}
            for system, settings in systems.items():
                reached = [token_goodput(run(settings, traffic(WORKLOADS[name], rate, 100.0))[1]) for rate in rates]
                best[system], lines[system] = max(reached), (rates, reached)
            if model == "14B":
                key = name.split(maxsplit=1)[0].lower()
                draw("dynaserve", f"figure8-{key}", lines, x="requests/s", y=f"goodput, tokens/s ({model}, {name})")
            over = {f"over {system}": best["DynaServe"] / value for system, value in best.items()}
            over.pop("over DynaServe")
            rows.append(Row(model=model, workload=name, **best, **over))
    publish(
        "dynaserve", "figure8", rows, title="Figure 8: largest goodput, tokens/s within 100 ms",
        published="up to 1.91 times the goodput of co-location and 1.61 times that of disaggregation.",
        notes=NOTES,
    )  # fmt: skip


NOTES = (
    "the largest goodput over the rates; two workers of 1, 2 and 4 GPUs for 14B, 32B and 72B",
    "a token counts when the gap before it was within 100 ms; the first one of each request counts",
)

if __name__ == "__main__":
    main()
