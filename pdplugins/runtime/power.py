"""The safe power controller: no unsafe cap is set, even when the power controller fails.

When the policy raises, or its plan cannot be followed, caps and roles stay as they are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import PlannerView
from pdplugins.contracts.power import Flip, GpuView, PowerController, PowerPlan
from pdplugins.contracts.workers import Role
from pdplugins.runtime.decision import Decision, Fault, Journal
from pdplugins.runtime.faults import SafePolicy, Tally, interval_of, one_line

WATT_TOLERANCE = 1e-6
"""Share of the budget by which the caps may exceed it: what rounding of sums adds."""


class SafePowerController(SafePolicy[PowerController]):
    """A power controller that never raises, and whose plans keep the node's budget and a GPU of each role.

    :param budget_w: what all caps may sum to; None when that is unknown.
    """

    __slots__ = ("_any_role", "_budget_w", "interval_s")

    def __init__(
        self,
        controller: PowerController,
        deployment: Deployment,
        *,
        budget_w: float | None = None,
        journal: Journal | None = None,
        tally: Tally | None = None,
    ) -> None:
        super().__init__(Kind.POWER, controller, journal, tally)
        self.interval_s = interval_of(controller)
        """Seconds between two calls of `control`."""
        self._any_role = deployment.any_role
        self._budget_w = budget_w

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan | None:
        """Return the caps and flips wanted from now on; None where everything stays as it is. Never raises."""
        plan: PowerPlan | None = None
        answer, fault, took = self._asked(lambda: self.policy.control(gpus, view))
        if fault is None:
            plan, fault = self._followed(answer, gpus)
        if self._journal is not None:
            seen = {"gpus": gpus, "view": view, "budget_w": self._budget_w}
            self._journal.decided(Decision(Kind.POWER, plan, fault, took / 1e9), seen)
        return plan

    def _followed(self, answer: object, gpus: tuple[GpuView, ...]) -> tuple[PowerPlan | None, Fault | None]:
        """Return the plan if it can be followed, else what is wrong with it."""
        try:
            plan = _checked(answer, {gpu.index for gpu in gpus})
            if not self._any_role:
                _keep_roles(plan, gpus)
            total_w = sum(plan.caps_w.get(gpu.index, gpu.cap_w) for gpu in gpus)
        except Exception as error:
            return None, self._unsafe(f"{type(self.policy).__name__}: {one_line(error)}")
        if self._budget_w is not None and not total_w <= self._budget_w * (1 + WATT_TOLERANCE):  # NaN is not within it
            self.tally.fault(Fault.OVER_BUDGET, f"caps of {total_w:.1f} W, the budget is {self._budget_w:.1f} W")
            return None, Fault.OVER_BUDGET
        return plan, None


def _checked(plan: object, known: set[int]) -> PowerPlan:
    """Return `plan` as plain numbers. Raises ValueError or TypeError, in one line, when it is no plan to follow."""
    if not isinstance(plan, PowerPlan):
        raise TypeError(f"the answer is {type(plan).__name__}, not PowerPlan")
    if not isinstance(plan.caps_w, Mapping):
        raise TypeError(f"caps_w is {type(plan.caps_w).__name__}, not a mapping")
    caps_w = {_index(gpu): float(cap_w) for gpu, cap_w in plan.caps_w.items()}
    for gpu, cap_w in caps_w.items():
        if gpu not in known:
            raise ValueError(f"there is no GPU {gpu}")
        if not math.isfinite(cap_w) or cap_w < 0:
            raise ValueError(f"the cap of GPU {gpu} is {cap_w} W")
    flips = tuple(Flip(_index(flip.gpu), Role(flip.role)) for flip in plan.flips)
    for flip in flips:
        if flip.gpu not in known:
            raise ValueError(f"there is no GPU {flip.gpu} to flip")
    return PowerPlan(caps_w, flips, one_line(plan.reason))


def _index(gpu: object) -> int:
    """Return a GPU as a whole number. Raises TypeError for what only equals one, such as 0.0 and False."""
    if isinstance(gpu, bool):
        raise TypeError(f"GPU {gpu!r} is no index")
    return operator.index(gpu)  # type: ignore[arg-type]


def _keep_roles(plan: PowerPlan, gpus: tuple[GpuView, ...]) -> None:
    """Raise ValueError when the flips would take the last GPU of a role away."""
    roles = {gpu.index: gpu.role for gpu in gpus}
    before = set(roles.values())
    roles.update({flip.gpu: flip.role for flip in plan.flips})
    for role in sorted(before - set(roles.values())):
        raise ValueError(f"no GPU would be left for {role}")
