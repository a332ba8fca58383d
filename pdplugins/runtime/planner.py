"""Every door drives its planner through `GuardedPlanner`: whatever happens, the last good plan holds and says why.

A policy that raises, an answer that would harm, metrics that are missing, stale or not numbers: none of them reaches
the host. Each is counted by kind and logged once per kind, then every hundredth time.
"""

from __future__ import annotations

import logging
import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pdplugins.config import Choice, Config, settings_of
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.planner import Planner, PlannerView, ScalePlan
from pdplugins.contracts.workers import Pool
from pdplugins.policies._common import fit_pools
from pdplugins.registry import Registry
from pdplugins.runtime import decision as decisions
from pdplugins.runtime.assembly import build_deployment, build_planner
from pdplugins.runtime.decision import Fault, Journal, Kind
from pdplugins.runtime.decision_log import DecisionLog
from pdplugins.runtime.journal import StandardJournal
from pdplugins.runtime.metrics import Metrics

log = logging.getLogger("pdplugins.planner")

STALE_INTERVALS = 3.0
"""Planner intervals without traffic metrics after which the last plan holds."""
LOG_EVERY = 100
"""After the first one, every how manyth error of a kind is logged."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One answer of a guarded planner."""

    plan: ScalePlan
    fault: Fault | None
    """Why the plan is not the policy's own; None when it is."""
    step_s: float
    """Seconds the policy took."""


class GuardedPlanner:
    """A planner that never raises and never answers with an unsafe plan. Not for use by two threads at once.

    :param initial: the workers there are before the first decision; what holds until then.
    :param clock: measures how long a step takes, in seconds. Decisions never depend on it.
    """

    def __init__(
        self,
        planner: Planner,
        deployment: Deployment,
        *,
        initial: ScalePlan,
        journal: Journal | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._planner = planner
        self.deployment = deployment
        self._journal = journal
        self._clock = clock
        self._last = initial
        self._decided = False
        self._asked_s: float | None = None
        self._traffic_s: float | None = None
        self.faults: Counter[Fault] = Counter()

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `plan`."""
        return self._planner.interval_s

    @property
    def last(self) -> ScalePlan:
        """The plan that would hold now."""
        return self._last

    @property
    def decided(self) -> bool:
        """Whether the policy has given a good plan yet."""
        return self._decided

    def plan(self, view: PlannerView) -> ScalePlan:
        """Return the pools wanted from now on. Never raises."""
        return self.decide(view).plan

    def decide(self, view: PlannerView) -> Decision:
        """Return the pools wanted from now on, and what was wrong if anything was. Never raises."""
        if (bad := self._unusable(view)) is not None:
            return self._hold(*bad, view=view)
        started = self._clock()
        try:
            plan: object = self._planner.plan(view)
        except Exception as error:  # whatever a policy does, serving goes on
            why = f"{type(self._planner).__name__} raised {type(error).__name__}: {error}"
            return self._hold(Fault.POLICY_ERROR, why, view=view, step_s=self._clock() - started, error=error)
        step_s = self._clock() - started
        try:
            good = _checked(plan)
        except (TypeError, ValueError) as error:
            return self._hold(Fault.UNSAFE_ANSWER, str(error), view=view, step_s=step_s)
        fitted = fit_budget(good, self.deployment)
        fault = None if fitted is good else Fault.OVER_BUDGET
        if fault is not None:
            self._count(fault, fitted.reason)
        self._decided = True
        return self._answer(Decision(fitted, fault, step_s), view)

    def hold(self, why: str, error: Exception | None = None) -> Decision:
        """Return the last good plan, because the door could not make out what the host said."""
        return self._hold(Fault.OBSERVATION, why, error=error)

    def close(self) -> None:
        """Close the decision log."""
        if isinstance(self._journal, StandardJournal):
            self._journal.close()

    def _unusable(self, view: PlannerView) -> tuple[Fault, str] | None:
        for name, value in _numbers(view):
            if not math.isfinite(value) or value < 0:
                return Fault.BAD_METRICS, f"{name} is {value}"
        if view.traffic is not None and view.traffic.window_s == 0:
            return Fault.BAD_METRICS, "traffic.window_s is 0"
        before, self._asked_s = self._asked_s, view.now_s
        if before is not None and view.now_s <= before:
            return Fault.STALE_METRICS, f"the host's clock stands still at {view.now_s:.3f} s"
        if view.traffic is not None or self._traffic_s is None:
            self._traffic_s = view.now_s
        if (age_s := view.now_s - self._traffic_s) > STALE_INTERVALS * self.interval_s:
            return Fault.STALE_METRICS, f"no traffic metrics for {age_s:.0f} s"
        return None

    def _hold(
        self,
        fault: Fault,
        why: str,
        *,
        view: PlannerView | None = None,
        step_s: float = 0.0,
        error: Exception | None = None,
    ) -> Decision:
        why = " ".join(why.split())
        self._count(fault, why, error)
        held = fit_budget(self._last, self.deployment)
        plan = ScalePlan(held.prefill, held.decode, f"hold, {fault}: {why}")
        return self._answer(Decision(plan, fault, step_s), view)

    def _answer(self, decision: Decision, view: PlannerView | None) -> Decision:
        if self._journal is not None:
            answer = decisions.Decision(Kind.PLANNER, decision.plan, decision.fault, decision.step_s)
            self._journal.decided(answer, {"view": view})
        self._last = decision.plan
        return decision

    def _count(self, fault: Fault, why: str, error: Exception | None = None) -> None:
        self.faults[fault] += 1
        if self._journal is not None:
            self._journal.fault(Kind.PLANNER, fault, why, error)
        seen = self.faults[fault]
        if seen == 1 or seen % LOG_EVERY == 0:
            log.warning("%s (%d so far): %s", fault, seen, why, exc_info=error if seen == 1 else None)


def build_guarded(
    config: Config,
    *,
    registry: Registry | None = None,
    decision_log: Path | None = None,
    metrics: Metrics | None = None,
) -> GuardedPlanner:
    """Build the planner that `config` names, guarded, starting from the config's own pools.

    Raises ConfigError when the config, the profile or the decision log cannot be used.
    """
    deployment = build_deployment(config, registry)
    planner = build_planner(config, deployment, registry)
    pools = config.deployment
    initial = ScalePlan(pools.prefill.replicas, pools.decode.replicas, "workers at start")
    log = None
    if decision_log is not None:
        log = DecisionLog(decision_log, _with_defaults(config, registry), deployment, initial)
    journal = StandardJournal(log, [metrics] if metrics else (), initial=initial)
    return GuardedPlanner(planner, deployment, initial=initial, journal=journal)


def _with_defaults(config: Config, registry: Registry | None) -> Config:
    """Fill in the planner's defaults, so that a log replays the same when a later version has others."""
    if config.planner is None:
        return config
    settings = settings_of("planner", config.planner, registry=registry).model_dump(mode="json")
    return config.model_copy(update={"planner": Choice(name=config.planner.name, **settings)})


def fit_budget(plan: ScalePlan, deployment: Deployment) -> ScalePlan:
    """Return `plan`, or when it needs too many GPUs what of it fits."""
    fitted = fit_pools(deployment, plan.prefill, plan.decode)
    if fitted == (plan.prefill, plan.decode):
        return plan
    used = deployment.gpus(plan.prefill, plan.decode)
    reason = (
        f"{plan.reason}; {plan.prefill}P{plan.decode}D needs {used} GPUs, cut to the budget of {deployment.gpu_budget}"
    )
    return ScalePlan(*fitted, reason, plan.signals)


def _checked(plan: object) -> ScalePlan:
    """Return `plan` with plain integers. Raises TypeError or ValueError in one line when it is not a plan to follow."""
    if not isinstance(plan, ScalePlan):
        raise TypeError(f"the policy answered with {type(plan).__name__}, not ScalePlan")
    prefill, decode = (_count_of(role, getattr(plan, role)) for role in ("prefill", "decode"))
    signals = {str(name): float(value) for name, value in plan.signals.items()}
    return ScalePlan(prefill, decode, " ".join(str(plan.reason).split()), signals)


def _count_of(role: str, value: object) -> int:
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{role} is {value!r}, not a whole number") from None
    if isinstance(value, bool) or count < 1:
        raise ValueError(f"{role} is {value!r}; at least one worker of each role must stay")
    return count


def _numbers(view: PlannerView) -> Iterator[tuple[str, float]]:
    """Every number of `view`, with its name."""
    yield "now_s", view.now_s
    if view.traffic is not None:
        for name in ("window_s", "requests", "isl_tokens", "osl_tokens", "ttft_s", "tpot_s"):
            if (value := getattr(view.traffic, name)) is not None:
                yield f"traffic.{name}", value
    yield from _pool_numbers("prefill", view.prefill)
    yield from _pool_numbers("decode", view.decode)


def _pool_numbers(role: str, pool: Pool) -> Iterator[tuple[str, float]]:
    for name in ("ready", "starting", "draining"):
        yield f"{role}.{name}", getattr(pool, name)
    for load in pool.loads:
        for name in ("queued_requests", "queued_tokens", "running_requests", "running_tokens"):
            yield f"{role} worker {load.worker} {name}", getattr(load, name)
