"""Makes deployment plans for a config, a trace and a number of GPUs, and checks the best ones in the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pdplugins.config import Config, parse
from pdplugins.contracts.workers import Role
from pdplugins.policies.ampd.planning import DeploymentPlan, best_plans
from pdplugins.results import Result
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.run.setup import engine_settings
from pdplugins.sim.run.simulate import simulate
from pdplugins.studies.deployment.coefficients import Curve, Objective, Profiler, options
from pdplugins.workloads.trace import TraceRequest

CHECKED = 4
"""Number of plans that are fully simulated for each plan that is wanted."""
ROUNDS_PER_WORKER = 150
"""Rounds per worker in the simulation of a plan, in total from `LEAST_ROUNDS` to `MOST_ROUNDS`."""
LEAST_ROUNDS, MOST_ROUNDS = 2_000, 12_000

Progress = Callable[[float, float], None]
"""Called with the share of the coefficients, and the share of the plans, that are done."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One plan, and its results in the full simulation with the policies of the config."""

    plan: DeploymentPlan
    rank: int
    """Its rank by the program, from 1."""
    result: Result

    @property
    def attainment(self) -> float:
        """Share of rounds inside both SLOs."""
        return self.result.metrics.slo_attainment or 0.0

    @property
    def worst_p99(self) -> float:
        """P99 TTFT or TPOT over its SLO, whichever is larger. It decides between plans with equal attainment."""
        slo: dict[str, float] = self.result.config["slo"]
        metrics = self.result.metrics
        return max((metrics.ttft_s.p99 or 0) / slo["ttft_s"], (metrics.tpot_s.p99 or 0) / slo["tpot_s"])


@dataclass(frozen=True, slots=True)
class Planned:
    """The plans, best first, and how long the planner took."""

    gpus: int
    sessions_per_s: float
    curves: tuple[Curve, ...]
    judged: tuple[Judged, ...]
    coefficients_s: float
    solve_s: float
    """Wall seconds of the program, for all plans together."""
    check_s: float
    objective: Objective = "slo"
    """What the P95 of the curves and plans are of: shares of an SLO, or seconds."""

    def as_data(self, top: int) -> dict[str, Any]:
        """Return as plain data the best `top` plans, and the seconds that each part took."""
        return {
            "gpus": self.gpus,
            "sessions_per_s": self.sessions_per_s,
            "seconds": {"coefficients": self.coefficients_s, "solve": self.solve_s, "check": self.check_s},
            "plans": [
                {
                    "plan": str(one.plan),
                    "gpus": one.plan.gpus,
                    "program_rank": one.rank,
                    "program_p95": one.plan.p95,
                    "slo_attainment": one.attainment,
                    "ttft_s": one.result.metrics.ttft_s.model_dump(),
                    "tpot_s": one.result.metrics.tpot_s.model_dump(),
                    "groups": [[group.role.value, group.degree, group.replicas] for group in one.plan.groups],
                }
                for one in self.judged[:top]
            ],
        }


def plan_deployment(
    config: Config,
    trace: Sequence[TraceRequest],
    gpus: int,
    *,
    top: int = 3,
    objective: Objective = "slo",
    command: str = "",
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> Planned:
    """Plan a deployment of up to `gpus` GPUs for `trace`. Raises ConfigError.

    The program proposes plans by the P95 of each phase. Then each is fully simulated with the policies of the config,
    and they are ordered by SLO attainment. Only the full simulation shows how the phases affect each other.
    """
    began = time.perf_counter()
    profiler = Profiler(build_deployment(config), trace, engine_settings(config), objective)
    curves: list[Curve] = []
    points, done = max(profiler.points(), 1), 0
    for curve in profiler.curves():
        done += curve is None
        progress(done / points, 0.0)
        if curve is not None:
            curves.append(curve)
    sessions_per_s = len(trace) / trace[-1].arrival_s if trace[-1].arrival_s > 0 else 1.0
    profiled = time.perf_counter()
    plans = best_plans(options(curves, sessions_per_s, gpus), gpus, top * CHECKED)
    solved = time.perf_counter()
    judged = []
    for rank, plan in enumerate(plans, start=1):
        result, _ = simulate(
            with_plan(config, plan, gpus), _sample(trace, plan), trace_name="plan", command=command, seed=seed
        )
        if result.interrupted:  # its figures are of the requests that had ended: no plan may be chosen by them
            raise KeyboardInterrupt
        judged.append(Judged(plan, rank, result))
        progress(1.0, rank / len(plans))
    judged.sort(key=lambda one: (-round(one.attainment, 3), one.worst_p99))
    took_s = profiled - began, solved - profiled, time.perf_counter() - solved
    return Planned(gpus, sessions_per_s, tuple(curves), tuple(judged), *took_s, objective)


def with_plan(config: Config, plan: DeploymentPlan, gpus: int) -> Config:
    """Return `config` with the workers of `plan`: the largest degree of a phase is its pool, others are extras."""
    data = config.model_dump(mode="json")
    data["deployment"]["gpu_budget"] = gpus
    extra = []
    for role in Role:
        pool, *others = plan.of(role)
        data["deployment"][role.value] = {"replicas": pool.replicas, "tp": pool.degree}
        extra += [{"role": role.value, "count": one.replicas, "tp": one.degree} for one in others]
    data["simulation"]["extra"] = extra
    return parse(data, "plan")


def _sample(trace: Sequence[TraceRequest], plan: DeploymentPlan) -> Sequence[TraceRequest]:
    """Return the first sessions of `trace`, enough to load the workers of `plan` for a while."""
    workers = sum(group.replicas for group in plan.groups)
    wanted = min(max(ROUNDS_PER_WORKER * workers, LEAST_ROUNDS), MOST_ROUNDS)
    rounds = accumulate(1 + len(one.rounds) for one in trace)
    count = sum(1 for so_far in rounds if so_far <= wanted)
    return trace[: max(count, 1)]
