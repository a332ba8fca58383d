"""Figure 4: SLO attainment by request rate for AMPD, always-remote disaggregation and co-location, each at its best."""

from __future__ import annotations

import argparse
from typing import Any

from common import (
    AMPD,
    AS_PRINTED,
    CASES,
    CHUNKS,
    COLOCATED,
    DYNAMO,
    LIMITS,
    PAPER,
    SHOWN,
    SLO_FACTOR,
    TABLE_1,
    TUNED,
    Candidate,
    best,
    candidates,
    config,
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
SYSTEMS: dict[str, dict[str, Any] | None] = {
    "ampd": AMPD,
    "as printed": AS_PRINTED,
    "Dynamo-like": DYNAMO,
    "co-located": COLOCATED,
    "co-located, best chunks": None,
}
STOCK = ("Dynamo-like", "co-located", "co-located, best chunks")


def chosen(model: str, name: str, system: str) -> Candidate:
    """Return a system as it does best at one load, on other sessions than those that are shown."""
    rate = TUNED_AT * most_sessions_per_s(model, name)
    sessions = round(max(TUNING_ROUNDS / TABLE_1[name][0], TUNING_SECONDS * rate))
    return best(model, name, candidates(model, name, SYSTEMS[system]), trace(name, rate, sessions, TUNED))


def case(model: str, name: str) -> list[Row]:
    """Run one model on one trace."""
    by_system = {system: chosen(model, name, system) for system in SYSTEMS}
    rows = []
    for load in LOADS:
        rate = load * most_sessions_per_s(model, name)
        requests = trace(name, rate, round(max(ROUNDS / TABLE_1[name][0], SECONDS * rate)), SHOWN)
        row: Row = {"model": model, "trace": name, "sessions/s": f"{rate:.3g}"}
        for system, candidate in by_system.items():
            row[system] = round(score(config(model, name, *candidate), requests)["attainment"], 3)
        row["deployment of ampd"] = label(by_system["ampd"][0])
        pools, parts = by_system["co-located, best chunks"]
        row["of co-located"] = f"TP={pools[0][0]}, {parts['simulation']['step_tokens']} tokens"
        rows.append(row)
    return rows


def over(rows: list[Row], system: str, *others: str) -> Row:
    """Return by how much one system's attainment is above the best of others: at most, and on average."""
    pairs = [(row[system], max(row[other] for other in others)) for row in rows]
    gains = [kept / max(other, 1e-3) - 1 for kept, other in pairs]
    return {
        "system": system,
        "over": others[0] if len(others) == 1 else "the best stock system of each point",
        "most": f"{max(gains):+.0%}",
        "mean": f"{sum(gains) / len(gains):+.0%}",
        "equal or better": sum(kept >= other for kept, other in pairs),
        "points": len(pairs),
    }


def main() -> None:
    """Tune and run every case, then compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many of Table 2's")
    rows = [row for model, name in CASES[: parser.parse_args().cases] for row in case(model, name)]
    first = [row for row in rows if (row["model"], row["trace"]) == CASES[min(1, len(rows) // len(LOADS) - 1)]]
    lines = {system: ([float(r["sessions/s"]) for r in first], [r[system] for r in first]) for system in SYSTEMS}
    draw(PAPER, "figure4", lines, x="sessions/s (Llama-3.1-70B, DuReader)", y="SLO attainment")
    publish(
        PAPER, "figure4", rows,
        title="Figure 4: end to end",
        published="AMPD is best everywhere: up to 968 % (67 % on average) above Dynamo, 3435 % (340 %) above vLLM.",
        notes=(
            "A run lasts at least a minute of arrivals. GAIA's sessions last about as long, so its rows at "
            "lower rates are all near 1.",
            f"Every system on its own best deployment at {TUNED_AT:.0%} load, co-location also with the best chunk "
            f"size of {', '.join(map(str, CHUNKS))} tokens; both are chosen on other sessions (another seed) than "
            f"those shown. SLOs are {SLO_FACTOR:g} times what a mean round takes alone, for example {slo(*CASES[1])}. "
            f"{LIMITS}. vLLM-Continuum is not reproduced: the paper finds it equal to vLLM.",
        ),
    )  # fmt: skip
    compared = [over(rows, system, *others) for system in ("ampd", "as printed") for others in (*zip(STOCK), STOCK)]
    publish(
        PAPER, "figure4-gains", compared,
        title="Figure 4 in short: relative gain in SLO attainment over all its points",
        published="up to 968 % (67 % on average) above Dynamo, 3435 % (340 %) above vLLM; equal or better everywhere.",
        notes=(
            "As printed, Algorithm 1 gains only where always-remote is far beyond saturation (Figure 5). A mean TTFT "
            "of 10 s lags, so workers take turns at being flooded and avoided; and the baseline here takes the "
            "shortest prefill queue and has its own best deployment, which the paper's may not. Our windowed mode "
            "reads the time between tokens now instead of its mean of 10 s, which makes local prefill rarer, not "
            "more frequent.",
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
