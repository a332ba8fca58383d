"""DynaServe Figure 8: goodput against the request rate, three model sizes and four workloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import (
    CHUNKS,
    SHOWN,
    TTFT_S,
    TUNED,
    WORKLOADS,
    Config,
    best,
    colocated,
    disaggregated,
    dynaserve,
    slo_aware,
    token_goodput,
    traffic,
)  # fmt: skip
from experiment import Row, draw, publish, run

MODELS = {"14B": ("a100/qwen2.5-14b", 1), "32B": ("a100/qwen2.5-32b", 2), "72B": ("a100/qwen2.5-72b", 4)}
"""Profile and GPUs of each of the two workers."""
RATES = {
    "BurstGPT (Azure conversation)": (5, 6, 7, 8, 9, 10), "Azure code": (3, 4, 5, 6, 7, 8),
    "arXiv summarization": (2, 2.5, 3, 3.5, 4, 4.5), "Mini Reasoning (log-normal)": (2, 3, 4, 5, 6, 7),
}  # fmt: skip


def reached(settings: Config, name: str, rates: Sequence[float], seed: int = SHOWN) -> list[float]:
    """Return the goodput at each rate."""
    return [token_goodput(run(settings, traffic(WORKLOADS[name], rate, 100.0, seed))[1]) for rate in rates]


def curves(name: str, machine: dict[str, Any]) -> tuple[int, dict[str, list[float]]]:
    """Return the tuned chunk size, and the goodput of every system at each rate."""
    rates = RATES[name]
    chunk = best(CHUNKS, lambda chunk: max(reached(colocated(chunk, **machine), name, rates[::2], TUNED)))
    systems = {
        "co-located, chunk 2048": colocated(**machine),
        "co-located, best chunk": colocated(chunk, **machine),
        "co-located, SLO-aware": slo_aware(**machine),
        "disaggregated": disaggregated(**machine),
        "DynaServe": dynaserve(**machine),
    }
    return chunk, {system: reached(settings, name, rates) for system, settings in systems.items()}


def main() -> None:
    """Raise the rate."""
    rows = []
    for model, (profile, tp) in MODELS.items():
        for name, rates in RATES.items():
            chunk, found = curves(name, {"profile": profile, "tp": tp})
            if model == "14B":
                lines = {system: (rates, values) for system, values in found.items()}
                key = name.split(maxsplit=1)[0].lower()
                draw("dynaserve", f"figure8-{key}", lines, x="requests/s", y=f"goodput, tokens/s ({model}, {name})")
            top = {system: max(values) for system, values in found.items()}
            over = {f"over {system}": top["DynaServe"] / value for system, value in top.items()}
            over.pop("over DynaServe")
            rows.append(Row(model=model, workload=name, chunk=chunk, **top, **over))
    publish(
        "dynaserve", "figure8", rows, seed=SHOWN,
        title="Figure 8: largest goodput, tokens/s of requests in time and within 100 ms",
        published="up to 1.91 times the goodput of co-location and 1.61 times that of disaggregation.",
        notes=NOTES,
    )  # fmt: skip


NOTES = (
    "the largest goodput over six rates; two workers of 1, 2 and 4 GPUs for 14B, 32B and 72B",
    f"goodput: output tokens/s of requests whose first token came within {TTFT_S:g} s, less the share of gaps over "
    "100 ms; the paper has no limit on the TTFT",
    f"`chunk` is the best of {', '.join(map(str, CHUNKS))} on traffic of seed {TUNED}",
)

if __name__ == "__main__":
    main()
