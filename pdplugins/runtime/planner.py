"""The safe planner: when a planner or its host fails, the last good plan holds, and its reason says why.

The faults are: a policy that raises, an unsafe answer, and metrics that are missing, stale or not numbers. None of them
reaches the host. Each is counted by kind and logged.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from pdplugins.config import Config
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import Eager, Planner, PlannerView, ScalePlan
from pdplugins.contracts.workers import Pool, WorkerLoad
from pdplugins.policies._common import fit_pools
from pdplugins.registry import Registry
from pdplugins.runtime.assembly import build_deployment, build_planner
from pdplugins.runtime.decision import Decision, Fault, Journal
from pdplugins.runtime.faults import STOPS, SafePolicy, implements, interval_of, one_line, raised
from pdplugins.runtime.journal import build_journal
from pdplugins.runtime.metrics import MOST_NAME, MOST_SIGNALS, Metrics
from pdplugins.runtime.policies import Policies
from pdplugins.runtime.state import StateFile

STALE_INTERVALS = 3.0
"""Planner intervals without traffic metrics after which the last plan holds."""
SHORTEST_WAIT_S = 0.1
"""A planner that is eager is looked at no more often than this, in seconds."""
_LOAD_FIELDS = tuple((field.name, field.default) for field in fields(WorkerLoad) if field.name != "worker")
"""The numbers of a load, with their defaults; those whose default is None need not be there."""


class SafePlanner(SafePolicy[Planner]):
    """A planner that never raises and never answers with an unsafe plan. Not for use by two threads at once.

    :param initial: the workers there are before the first decision; what holds until then.
    :param state: where what the policy learns is kept for the next run.
    """

    def __init__(
        self,
        planner: Planner,
        deployment: Deployment,
        *,
        initial: ScalePlan,
        journal: Journal | None = None,
        clock: Callable[[], int] = perf_counter_ns,
        state: StateFile | None = None,
    ) -> None:
        super().__init__(Kind.PLANNER, planner, journal, None, clock)
        self.interval_s = interval_of(planner)
        """Seconds between two calls of `plan`."""
        self.eager = implements(planner, Eager)
        """Whether `wait_s` may ever be finite."""
        self.deployment = deployment
        self._state = state
        self._last = initial
        self._decided = self._learned = False
        self._faulty = False
        """Whether the policy gave no good plan when it was asked last."""
        self._asked_s: float | None = None
        self._traffic_s: float | None = None

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
        return self.decide(view).answer

    def decide(self, view: PlannerView) -> Decision[ScalePlan]:
        """Return the pools wanted from now on, and what was wrong if anything was. Never raises."""
        if (bad := self._unusable(view)) is not None:
            return self._hold(*bad, view=view)
        started = self._clock()
        try:
            plan: object = self.policy.plan(view)
        except BaseException as error:
            if isinstance(error, STOPS):
                raise
            step_s = self._took(started)
            return self._hold(Fault.POLICY_ERROR, raised(self.policy, error), view=view, step_s=step_s, error=error)
        step_s = self._took(started)
        try:
            good = _checked(plan, any_role=self.deployment.any_role)
            fitted = fit_budget(good, self.deployment)
        except Exception as error:
            return self._hold(Fault.UNSAFE_ANSWER, one_line(error), view=view, step_s=step_s)
        fault = None if fitted is good else Fault.OVER_BUDGET
        if fault is not None:
            self.tally.fault(fault, fitted.reason)
        self._decided, self._faulty = True, False
        self._learned = self._learned or (view.traffic is not None and view.traffic.requests > 0)
        if self._state is not None and self._learned:  # else it would be what an earlier run knew, with a new date
            self._state.beat()
        return self._answer(Decision(Kind.PLANNER, fitted, fault, step_s), view)

    def wait_s(self, view: PlannerView) -> float:
        """Return the seconds after which to look again whether the policy wants to be asked before its tick.

        0: now. Infinity: it can wait. After a fault it waits for its tick. Never raises. See
        :class:`pdplugins.contracts.planner.Eager`.
        """
        if not self.eager or not all(_possible(value) for _, value in _numbers(view)):
            return math.inf
        policy: Any = self.policy
        wait_s = math.inf
        with self._guarded:
            wanted = policy.wait_s(view)
            wait_s = math.inf if wanted is None else float(wanted)
        if not wait_s >= 0:
            self._unsafe(f"wait_s is {wait_s}")
            return math.inf
        if self._faulty:
            return max(wait_s, self.interval_s)
        # Twice at the same time it is not asked: that would not end where it always wants to be.
        return 0.0 if wait_s == 0 and view.now_s != self._asked_s else max(wait_s, SHORTEST_WAIT_S)

    def hold(self, why: str, error: Exception | None = None) -> Decision[ScalePlan]:
        """Return the last good plan, because the door could not read the host's observations."""
        return self._hold(Fault.OBSERVATION, why, error=error)

    def close(self) -> None:
        """Close the journal, and keep what was learned."""
        self.keep()
        if self._journal is not None:
            self._journal.close()

    def keep(self) -> None:
        """Write down what was learned, for a planner that goes on from there. Never raises."""
        if self._state is not None and self._learned:
            self._state.save()

    def _took(self, started: int) -> float:
        """Return the seconds since `started`, and count them."""
        took = self._clock() - started
        self.tally.calls += 1
        self.tally.ns += took
        return took / 1e9

    def _unusable(self, view: PlannerView) -> tuple[Fault, str] | None:
        for name, value in _numbers(view):
            if not _possible(value):
                return Fault.BAD_METRICS, f"{name} is {one_line(value)}"
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
        error: BaseException | None = None,
    ) -> Decision[ScalePlan]:
        why = one_line(why)
        self._faulty = True
        self.tally.fault(fault, why, error)
        held = fit_budget(self._last, self.deployment)
        plan = ScalePlan(held.prefill, held.decode, f"hold, {fault}: {why}")
        return self._answer(Decision(Kind.PLANNER, plan, fault, step_s), view)

    def _answer(self, decision: Decision[ScalePlan], view: PlannerView | None) -> Decision[ScalePlan]:
        if self._journal is not None:
            self._journal.decided(decision, {"view": view, "before": self._last})
        self._last = decision.answer
        return decision


def build_safe_planner(
    config: Config,
    *,
    registry: Registry | None = None,
    decision_log: Path | None = None,
    metrics: Metrics | None = None,
    policies: Policies | None = None,
    journal: Journal | None = None,
    state: Path | None = None,
    shadow: bool = False,
) -> SafePlanner:
    """Build the planner that `config` picks, made safe, starting from the config's own pools.

    Raises ConfigError when the config, the profile or the decision log cannot be used.

    :param policies: those of this process, where it has other policies of `config` than the planner too.
    :param journal: that of this process, where it has one already; then `decision_log` and `metrics` are not used.
    :param state: file from which what an earlier run has learned is read, and to which it is written.
    :param shadow: nobody follows it, and its log says so.
    """
    deployment = build_deployment(config, registry)
    planner = build_planner(config, deployment, registry, policies)
    initial = initial_plan(config)
    name = config.planner.name if config.planner else config.bundle.name if config.bundle else ""
    kept = None if state is None else StateFile(state, name, planner)
    if journal is None:  # last, as it writes to the log already
        shown = [metrics] if metrics else []
        journal = build_journal(
            config, deployment, registry, initial=initial, decision_log=decision_log, metrics=shown, shadow=shadow
        )
    return SafePlanner(planner, deployment, initial=initial, journal=journal, state=kept)


def initial_plan(config: Config) -> ScalePlan:
    """Return the plan that holds until the first decision: the config's own pools."""
    pools = config.deployment
    return ScalePlan(pools.prefill.replicas, pools.decode.replicas, "workers at start")


def fit_budget(plan: ScalePlan, deployment: Deployment) -> ScalePlan:
    """Return `plan`, or when it needs too many GPUs what of it fits. Raises ValueError when no worker does."""
    used = deployment.gpus(plan.prefill, plan.decode)
    if used <= deployment.gpu_budget:
        return plan
    if plan.prefill and plan.decode:
        fitted = fit_pools(deployment, plan.prefill, plan.decode)
        if deployment.gpus(*fitted) > deployment.gpu_budget:  # not even one worker of each role fits
            fitted = _one_role(plan, deployment)
    else:  # one role serves both phases
        fitted = _one_role(plan, deployment)
    reason = (
        f"{plan.reason}; {plan.prefill}P{plan.decode}D needs {used} GPUs, cut to the budget of {deployment.gpu_budget}"
    )
    return ScalePlan(*fitted, one_line(reason), plan.signals)


def _one_role(plan: ScalePlan, deployment: Deployment) -> tuple[int, int]:
    """Return the workers of one role that fit. Raises ValueError where not one does, or each role needs its own."""
    prefill = min(plan.prefill, deployment.gpu_budget // deployment.prefill_tp)
    decode = min(plan.decode, deployment.gpu_budget // deployment.decode_tp)
    if (plan.prefill and plan.decode and not deployment.any_role) or not (prefill or decode):
        raise ValueError(f"not enough workers fit into {deployment.gpu_budget} GPUs")
    return (0, decode) if decode else (prefill, 0)


def _checked(plan: object, *, any_role: bool) -> ScalePlan:
    """Return `plan` as plain data of bounded size. Raises TypeError or ValueError when it is not a plan to follow."""
    if not isinstance(plan, ScalePlan):
        raise TypeError(f"the policy answered with {type(plan).__name__}, not ScalePlan")
    prefill = _count_of("prefill", plan.prefill, least=0 if any_role else 1)
    decode = _count_of("decode", plan.decode, least=0 if any_role and prefill else 1)
    return ScalePlan(prefill, decode, one_line(plan.reason), _shown(plan.signals))


def _shown(said: Mapping[str, float]) -> dict[str, float]:
    """Return those signals that can be shown: what is not finite is left out, and so is what is too many."""
    signals = {one_line(name, MOST_NAME): float(value) for name, value in islice(said.items(), MOST_SIGNALS)}
    return {name: value for name, value in signals.items() if math.isfinite(value)}


def _count_of(role: str, value: object, least: int) -> int:
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{role} is {value!r}, not a whole number") from None
    if isinstance(value, bool) or count < least:
        raise ValueError(f"{role} is {value!r}; at least one worker of each role must stay")
    return count


def _possible(value: float) -> bool:
    """Tell whether a host can mean `value`: whatever it is, it is a number, finite and not negative."""
    try:
        return math.isfinite(value) and value >= 0
    except (TypeError, OverflowError):  # a whole number of hundreds of digits is not finite to Python
        return False


def _numbers(view: PlannerView) -> Iterator[tuple[str, float]]:
    """Every number of `view`, with its name."""
    yield "now_s", view.now_s
    if view.traffic is not None:
        for field in fields(view.traffic):
            if (value := getattr(view.traffic, field.name)) is not None:
                yield f"traffic.{field.name}", value
    yield from _pool_numbers("prefill", view.prefill)
    yield from _pool_numbers("decode", view.decode)


def _pool_numbers(role: str, pool: Pool) -> Iterator[tuple[str, float]]:
    for name in ("ready", "starting", "draining"):
        yield f"{role}.{name}", getattr(pool, name)
    for load in pool.loads:
        for name, default in _LOAD_FIELDS:
            if (value := getattr(load, name)) is not None or default is not None:
                yield f"{role} worker {load.worker} {name}", value
