"""DynaServe Table 1: three request shapes that saturate two A100 under disaggregation and co-location."""

from __future__ import annotations

from common import (
    CHUNKS,
    SHAPES,
    SHOWN,
    TUNED,
    best,
    colocated,
    disaggregated,
    dynaserve,
    kept,
    shape,
    slo_aware,
    throughput,
    traffic,
)  # fmt: skip
from experiment import Row, publish, run

SATURATING = {"P 8192, D 32": 2.5, "P 2048, D 512": 5.0, "P 219, D 1467": 7.0}
"""Requests/s that no system serves."""
PUBLISHED = {
    ("P 8192, D 32", "disaggregated"): (0.83, 22.70, 58.09),
    ("P 8192, D 32", "co-located, chunk 2048"): (1.49, 309.68, 352.93),
    ("P 2048, D 512", "disaggregated"): (2.56, 47.00, 65.11),
    ("P 2048, D 512", "co-located, chunk 2048"): (2.83, 46.86, 336.81),
    ("P 219, D 1467", "disaggregated"): (1.68, 50.63, 74.47),
    ("P 219, D 1467", "co-located, chunk 2048"): (2.86, 47.99, 162.67),
}
"""Requests/s, P50 and P99 of TBT in ms."""
ENOUGH = 0.99
"""Share of gaps within the SLO that a tuned chunk size has to keep."""


def chunk_for(name: str) -> int:
    """Return the chunk size that keeps the SLO and serves most, on the seed for tuning."""

    def score(chunk: int) -> tuple[bool, float]:
        trace = traffic(shape(*SHAPES[name]), SATURATING[name], 150.0, TUNED)
        outcome = run(colocated(chunk), trace)[1]
        return kept(outcome) >= ENOUGH, throughput(outcome)

    return best(CHUNKS, score)  # type: ignore[arg-type] - tuples compare too


def main() -> None:
    """Saturate every system with every shape."""
    rows = []
    for name, (prompt, output) in SHAPES.items():
        trace, chunk = traffic(shape(prompt, output), SATURATING[name], duration_s=150.0), chunk_for(name)
        for system, settings in {
            "disaggregated": disaggregated(),
            "co-located, chunk 2048": colocated(),
            f"co-located, best chunk: {chunk}": colocated(chunk),
            "co-located, SLO-aware": slo_aware(),
            "DynaServe": dynaserve(),
        }.items():
            result, outcome = run(settings, trace)
            tbt_s, paper = result.metrics.tbt_s, PUBLISHED.get((name, system), (None, None, None))
            rows.append(
                Row(
                    shape=name, system=system, rps=throughput(outcome), p50_tbt_ms=1e3 * (tbt_s.p50 or 0),
                    p99_tbt_ms=1e3 * (tbt_s.p99 or 0), within_100_ms=kept(outcome), paper_rps=paper[0],
                    paper_p50_ms=paper[1], paper_p99_ms=paper[2],
                )
            )  # fmt: skip
    publish(
        "dynaserve", "table1", rows, seed=SHOWN, title="Table 1: saturated, by shape of the request",
        published="disaggregation keeps the SLO and loses 44 %, 10 % and 41 % of the throughput; co-location with "
        "2048-token chunks breaks the SLO everywhere.",
        notes=NOTES,
    )  # fmt: skip


NOTES = (
    "two workers; Poisson traffic that nothing serves, so that every system is saturated and the TTFT says nothing; "
    "throughput without the first and the last fifth of the requests",
    f"the best chunk keeps {ENOUGH:.0%} of the gaps within 100 ms on traffic of seed {TUNED}, and serves most of "
    "those that do",
)

if __name__ == "__main__":
    main()
