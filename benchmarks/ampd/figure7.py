"""Figure 7: how long planning takes, by number of GPUs, Llama-3.1-70B on DuReader with a rate that grows with them."""

from __future__ import annotations

from time import perf_counter, process_time

from common import AMPD, PAPER, TABLE_2, config, most_sessions_per_s, trace
from common import GPUS as SERVERS
from experiment import Row, draw, publish

from pdplugins.config import parse
from pdplugins.studies.deployment.plan import plan_deployment

MODEL, NAME, LOAD = "Llama-3.1-70B", "DuReader", 0.7
GPUS = (8, 16, 32, 64, 128, 256)


def main() -> None:
    rows: list[Row] = []
    base = parse(config(MODEL, NAME, TABLE_2[MODEL, NAME][0], AMPD), NAME)
    for gpus in GPUS:
        rate = LOAD * most_sessions_per_s(MODEL, NAME) * gpus / SERVERS[NAME]
        requests = trace(NAME, rate, 5000)
        began, worked = perf_counter(), process_time()
        planned = plan_deployment(base, requests, gpus, top=1)
        best = planned.judged[0]
        rows.append(
            {
                "GPUs": gpus,
                "sessions/s": round(rate, 2),
                "coefficients, s": round(planned.coefficients_s, 2),
                "program, s": round(planned.solve_s / len(planned.judged), 3),
                "all, s": round(perf_counter() - began, 1),
                "all, CPU s": round(process_time() - worked, 1),
                "plan": str(best.plan),
                "attainment": round(best.attainment, 3),
            }
        )
    xs = [row["GPUs"] for row in rows]
    draw(
        PAPER, "figure7",
        {"all, CPU": (xs, [row["all, CPU s"] for row in rows]), "program": (xs, [row["program, s"] for row in rows])},
        x="GPUs", y="seconds", logx=True,
    )  # fmt: skip
    publish(
        PAPER, "figure7", rows,
        title="Figure 7: time of planning (measured: wall and CPU seconds on two shared cores)",
        published="about a minute for 256 GPUs with SCIP.",
        notes=(
            "`program` is one MILP (HiGHS), in the mean over the four plans that are then simulated whole; "
            "coefficients "
            "are 168 simulations of one phase, whatever the number of GPUs. The sign holds: it is a matter of seconds.",
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
