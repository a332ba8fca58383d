"""DynaServe against the best static choice on eight A100: every P/D ratio, and SLO-aware co-location."""

from __future__ import annotations

from common import WORKLOADS, colocated, disaggregated, dynaserve, sustained_rate
from experiment import Row, publish

NAME = "BurstGPT (Azure conversation)"
HALF = {"prefill": 4, "decode": 4}


def main() -> None:
    """Search the capacity of every configuration."""
    systems = {f"disaggregated {p}P{8 - p}D": disaggregated(prefill=p, decode=8 - p) for p in range(4, 8)}
    systems |= {
        "co-located, chunk 512, least loaded": colocated(512, **HALF) | {"router": COLOCATED},
        "co-located, SLO-aware, least loaded": colocated(scheduler={"name": "dynaserve"}, **HALF)
        | {"router": COLOCATED},
        "DynaServe, any pair": dynaserve(**HALF),
        "DynaServe, any pair, round robin": dynaserve(**HALF) | {"router": {"name": "dynaserve", "choices": 1}},
        "DynaServe, roles 4P4D": dynaserve("roles", **HALF),
        "DynaServe, roles 6P2D": dynaserve("roles", prefill=6, decode=2),
    }
    rows = []
    for system, settings in systems.items():
        rate = sustained_rate(settings, WORKLOADS[NAME], high=40.0, steps=6, duration_s=90.0)
        rows.append(Row(system=system, rps=rate))
    own = next(row["rps"] for row in rows if row["system"] == "DynaServe, any pair")
    for row in rows:
        row["DynaServe over it"] = own / row["rps"] if row["rps"] else None
    publish(
        "dynaserve",
        "static-ratio",
        rows,
        title="Eight GPUs: against the best static configuration",
        published="not in the paper, which compares with 1P1D and co-location on two workers.",
        notes=NOTES,
    )


COLOCATED = {"name": "least-loaded", "colocated": True}
NOTES = (
    "serving capacity in requests/s, Azure conversation, 90 s of traffic, exact to about 2 %",
    "`any pair` takes the least busy of the next four workers on each side, `round robin` the next ones, as the paper",
)

if __name__ == "__main__":
    main()
