"""Table 2 again, by Eq. 5 alone: at which loads are the program's plans of least P95 latency those of the paper?"""

from __future__ import annotations

from common import CASES, GPUS, LIMITS, PAPER, TABLE_2, config, most_sessions_per_s, trace
from experiment import Row, publish

from pdplugins.config import parse
from pdplugins.policies.ampd.planning import DeploymentPlan, best_plans
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.run.setup import engine_settings
from pdplugins.studies.deployment.coefficients import Profiler, options
from pdplugins.types import Role

LOADS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.85)
SESSIONS, PLANS = 400, 4
FIRST, FIRST_TWO = "the paper's #1 is first at", "its #1 and #2 are the first two at"


def pools(plan: DeploymentPlan) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the (degree, replicas) of prefill and of decode."""
    return tuple(tuple((group.degree, group.replicas) for group in plan.of(role)) for role in Role)


def ranks(model: str, name: str) -> dict[float, list[int]]:
    """Return, at each load, the rank in the paper of each of the program's first plans; 0 where it is not there."""
    base = parse(config(model, name, TABLE_2[model, name][0], {}), name)
    most = most_sessions_per_s(model, name)
    profiler = Profiler(build_deployment(base), trace(name, most, SESSIONS), engine_settings(base), "latency")
    curves = [curve for curve in profiler.curves() if curve is not None]
    papers = [((prefill,), (decode,)) for prefill, decode in TABLE_2[model, name]]
    found = {}
    for load in LOADS:
        plans = best_plans(options(curves, load * most, GPUS[name]), GPUS[name], PLANS)
        found[load] = [papers.index(shape) + 1 if (shape := pools(plan)) in papers else 0 for plan in plans]
    return found


def case(model: str, name: str) -> Row:
    """Return the line of one model and trace."""
    found = ranks(model, name)

    row: Row = {"model": model, "trace": name, "GPUs": str(GPUS[name])}
    for column, right in ((FIRST, [1]), (FIRST_TWO, [1, 2])):
        if loads := [f"{load:.0%}" for load, plans in found.items() if plans[: len(right)] == right]:
            row[column] = ", ".join(loads)
    row["of its three, among the first four"] = max(sum(rank > 0 for rank in plans) for plans in found.values())
    return row


def main() -> None:
    """Plan every case at every load."""
    rows = [case(*each) for each in CASES]

    few = [row for row in rows if row["GPUs"] == "8"]
    publish(
        PAPER, "table2-program", rows,
        title="Table 2 by Eq. 5 alone: P95 seconds of a round in each phase, at several loads",
        published="its planner has these first three, in this order, in all ten cases; it does not say at which rates.",
        notes=(
            f"The paper's #1 is the program's first plan at some load in {sum(FIRST in row for row in rows)} of "
            f"{len(rows)} cases, in {sum(FIRST in row for row in few)} of the {len(few)} on 8 GPUs; its #1 and #2 are "
            f"the first two, in order, in {sum(FIRST_TWO in row for row in rows)}. A load is a share of the sessions/s "
            "at which the prefills alone would fill all GPUs.",
            "At light load the latency of a worker decides, and large degrees win, as in the paper; beyond, what the "
            "GPUs can serve decides, and prefill gets most of them (the table above).",
            "The profiles of H20 say that a decode worker of TP 8 is faster than one of TP 4 for every model; where "
            "the paper puts TP 4 or 2 first, its measured workers must have gained less from eight GPUs.",
            f"{LIMITS}.",
        ),
    )  # fmt: skip


def cell() -> dict[str, list[Row]]:
    """Return a part of the table, computed again."""
    return {"ampd-table2-program": [case(*CASES[0])]}


if __name__ == "__main__":
    main()
