"""DynaServe against the best static choice on eight A100: every P/D ratio, and chunk sizes for co-location."""

from __future__ import annotations

from common import WORKLOADS, colocated, disaggregated, dynaserve, sustained_rate
from experiment import Row, publish


def main() -> None:
    """Search the capacity of every fixed configuration and of DynaServe."""
    rows = []
    for name in ("BurstGPT (Azure conversation)", "Azure code"):
        fixed = {
            f"{prefill}P{8 - prefill}D": disaggregated(prefill=prefill, decode=8 - prefill) for prefill in range(3, 8)
        }
        half = {"prefill": 4, "decode": 4}
        found = {system: rate(settings, name) for system, settings in fixed.items()}
        ratio = max(found, key=lambda system: found[system])
        rows.append(
            Row(
                workload=name,
                best_ratio=ratio,
                disaggregated=found[ratio],
                **{
                    "4P4D": found["4P4D"],
                    "co-located, chunk 512": rate(colocated(512, **half), name),
                    "co-located, SLO-aware": rate(colocated(scheduler={"name": "dynaserve"}, **half), name),
                    "DynaServe, any pair": rate(dynaserve(**half), name),
                    "DynaServe, roles": rate(dynaserve("roles", **half), name),
                    "DynaServe, roles as tuned": rate(
                        dynaserve("roles", prefill=int(ratio[0]), decode=8 - int(ratio[0])), name
                    ),
                },
            )
        )
    publish(
        "dynaserve", "static-ratio", rows, title="Eight GPUs: against the best static configuration",
        published="not in the paper, which compares with 1P1D and with co-location.",
        notes=("requests/s; every ratio from 3P5D to 7P1D was tried; least-loaded routing of the stock systems",),
    )  # fmt: skip


def rate(settings: dict[str, object], name: str) -> float:
    """Return the capacity."""
    return sustained_rate(settings, WORKLOADS[name], high=32.0, steps=4)


if __name__ == "__main__":
    main()
