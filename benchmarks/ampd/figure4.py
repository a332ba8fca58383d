"""Figure 4: SLO attainment by request rate for AMPD, always-remote disaggregation and co-location, each at its best."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from common import (
    AMPD,
    AS_PRINTED,
    CASES,
    COLOCATED,
    DYNAMO,
    LIMITS,
    PAPER,
    SLO_FACTOR,
    TABLE_1,
    Pools,
    colocated,
    config,
    deployments,
    label,
    most_sessions_per_s,
    score,
    slo,
    trace,
)
from experiment import Row, draw, publish

LOADS = (0.5, 0.7, 0.85, 1.0)
"""Rates, over the one at which prefills alone would fill all GPUs."""
TUNED_AT = 0.85
ROUNDS, TUNING_ROUNDS = 2400, 900
SECONDS, TUNING_SECONDS = 60.0, 25.0
"""A run has at least so many rounds, and sessions arrive for at least so long."""
SYSTEMS: dict[str, dict[str, Any]] = {
    "ampd": AMPD,
    "as printed": AS_PRINTED,
    "Dynamo-like": DYNAMO,
    "co-located": COLOCATED,
    "co-located, chunked": {**COLOCATED, "simulation": {"order": "decode_first", "step_tokens": 2048}},
}


def best(model: str, name: str, system: str) -> Pools:
    """Return the deployment with which a system does best at one load: every system is tuned, as in the paper."""
    candidates: Iterable[Pools] = (
        colocated(model, name) if system.startswith("co-located") else deployments(model, name)
    )
    rate = TUNED_AT * most_sessions_per_s(model, name)
    requests = trace(name, rate, round(max(TUNING_ROUNDS / TABLE_1[name][0], TUNING_SECONDS * rate)))

    def worth(pools: Pools) -> tuple[float, float]:
        got = score(config(model, name, pools, SYSTEMS[system]), requests)
        return got["attainment"], -got["ttft_s"]

    return max(candidates, key=worth)


def case(model: str, name: str) -> list[Row]:
    """Run one model on one trace."""
    chosen = {system: best(model, name, system) for system in SYSTEMS}
    rows = []
    for load in LOADS:
        rate = load * most_sessions_per_s(model, name)
        requests = trace(name, rate, round(max(ROUNDS / TABLE_1[name][0], SECONDS * rate)))
        row: Row = {"model": model, "trace": name, "sessions/s": round(rate, 2)}
        for system, pools in chosen.items():
            row[system] = round(score(config(model, name, pools, SYSTEMS[system]), requests)["attainment"], 3)
        row["deployment of ampd"] = label(chosen["ampd"])
        rows.append(row)
    return rows


def over(rows: list[Row], other: str, system: str = "ampd") -> str:
    """Return by how much one system's attainment is above another's: at most, and in the mean over all points."""
    gains = [row[system] / max(row[other], 1e-3) - 1 for row in rows]
    points = [row[system] - row[other] for row in rows]
    return (
        f"{max(gains):+.0%} at most, {sum(gains) / len(gains):+.0%} on average, better or equal in "
        f"{sum(point >= 0 for point in points)} of {len(points)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many of Table 2's")
    rows = [row for model, name in CASES[: parser.parse_args().cases] for row in case(model, name)]
    first = [row for row in rows if (row["model"], row["trace"]) == CASES[1]]
    lines = {system: ([r["sessions/s"] for r in first], [r[system] for r in first]) for system in SYSTEMS}
    draw(PAPER, "figure4", lines, x="sessions/s (Llama-3.1-70B, DuReader)", y="SLO attainment")
    strongest = [
        {**row, "stock": max(row["Dynamo-like"], row["co-located"], row["co-located, chunked"])} for row in rows
    ]
    publish(
        PAPER, "figure4", rows,
        title="Figure 4: end to end",
        published="AMPD is best everywhere: up to 968 % (67 % on average) above Dynamo, 3435 % (340 %) above vLLM.",
        notes=(
            f"ampd over Dynamo-like: {over(rows, 'Dynamo-like')}. The sign holds.",
            f"ampd over co-located (prompts first): {over(rows, 'co-located')}; over co-located with chunked prefill: "
            f"{over(rows, 'co-located, chunked')}.",
            f"ampd over the best stock system of each point: {over(strongest, 'stock')}.",
            f"Algorithm 1 as printed over Dynamo-like: {over(rows, 'Dynamo-like', 'as printed')}.",
            "**As printed the sign does not hold, unless always-remote is far beyond saturation** (Figure 5). "
            "Two causes: a mean TTFT of 10 s lags, so workers take turns at being flooded and avoided; and the "
            "baseline here takes the shortest prefill queue and has its own best deployment, which the paper's "
            "may not. Our windowed mode reads the time between tokens now instead of its mean of 10 s, which "
            "makes local prefill rarer, not more frequent.",
            "A run lasts at least a minute of arrivals. GAIA's sessions last about as long, so its rows at "
            "lower rates are all near 1.",
            f"Every system on its own best deployment at {TUNED_AT:.0%} load; SLOs are {SLO_FACTOR:g} times "
            f"what a mean "
            f"round takes alone, for example {slo(*CASES[1])}. {LIMITS}. vLLM-Continuum is not reproduced: the paper "
            "finds it equal to vLLM.",
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
