"""What makes an answer of a policy valid. Each check raises AssertionError that says what is wrong."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import SupportsIndex

from pdplugins.contracts.batching import BatchPlan, BatchView
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.flow import FlowDecision, Go, Hold, Refuse
from pdplugins.contracts.planner import ScalePlan
from pdplugins.contracts.power import GpuView, PowerPlan
from pdplugins.contracts.roles import RoleMove
from pdplugins.contracts.router import Placement
from pdplugins.contracts.workers import Role, WorkerView


def check_placement(placement: Placement, workers: Sequence[WorkerView], *, complete: bool = False) -> None:
    """Check that a request is placed on workers that exist.

    :param complete: whether the second worker must be named, as it must once prefill is done.
    """
    names = {worker.id for worker in workers}
    assert isinstance(placement, Placement), f"{placement!r} is no Placement"
    assert placement.first in names, f"first={placement.first!r} is none of {sorted(names)}"
    if placement.second is not None or complete:
        assert placement.second in names, f"second={placement.second!r} is none of {sorted(names)}"
    assert _whole(placement.split), f"split={placement.split!r} is not a whole number"
    assert placement.split >= 0, f"split={placement.split} is negative"
    assert isinstance(placement.reason, str), f"reason={placement.reason!r} is no text"


def check_role_moves(moves: Sequence[RoleMove], workers: Sequence[WorkerView]) -> None:
    """Check that roles change of workers that exist, each once."""
    names = {worker.id for worker in workers}
    assert all(isinstance(move, RoleMove) for move in moves), f"{moves!r} are no RoleMoves"
    assert all(isinstance(move.role, Role) for move in moves), f"{moves!r} lead to no role"
    moved = [move.worker for move in moves]
    assert set(moved) <= names, f"{sorted(set(moved) - names)} are none of {sorted(names)}"
    assert len(set(moved)) == len(moved), f"a worker moves twice: {moved}"


def check_scale_plan(plan: ScalePlan, deployment: Deployment, *, within_budget: bool = False) -> None:
    """Check that the pools of a plan are possible.

    :param within_budget: whether the policy keeps the GPU budget itself; the guard of every host does in any case.
    """
    assert isinstance(plan, ScalePlan), f"{plan!r} is no ScalePlan"
    least = 0 if deployment.any_role else 1
    for role, count in (("prefill", plan.prefill), ("decode", plan.decode)):
        assert _whole(count), f"{role}={count!r} is not a whole number"
        assert count >= least, f"{role}={count} is less than {least}"
    assert plan.prefill + plan.decode >= 1, "nobody is left to serve"
    if within_budget:
        used = deployment.gpus(plan.prefill, plan.decode)
        assert used <= deployment.gpu_budget, f"{used} GPUs exceed the budget of {deployment.gpu_budget}"
    assert plan.reason, "the reason is empty"
    assert "\n" not in plan.reason, f"the reason is more than a line: {plan.reason!r}"
    for name, value in plan.signals.items():
        assert isinstance(value, int | float), f"signal {name}={value!r} is no number"


def check_batch_plan(plan: BatchPlan, view: BatchView) -> None:
    """Check that a step computes requests that exist, and that an engine with work does not wait forever."""
    assert isinstance(plan, BatchPlan), f"{plan!r} is no BatchPlan"
    waiting = {task.request.id: task.remaining_tokens for task in view.queue}
    for name, tokens in plan.prefill_tokens.items():
        assert _whole(tokens), f"{tokens!r} tokens of {name} are not a whole number"
        assert 0 < tokens <= waiting.get(name, 0), f"{tokens} tokens of {name}: {waiting.get(name, 0)} remain"
    assert math.isfinite(plan.wait_s), f"wait_s={plan.wait_s} is not finite"
    assert plan.wait_s >= 0, f"wait_s={plan.wait_s} is negative"
    if view.queue and not view.decode_requests:
        assert plan.prefill_tokens or plan.wait_s > 0, "the engine has work, and the plan neither runs it nor waits"


def check_flow_decision(decision: FlowDecision, waiting: Collection[str], now_s: float) -> None:
    """Check that the answer names a request that waits, or a time in the future.

    :param waiting: ids of the requests that wait.
    """
    if isinstance(decision, Hold):
        until_s = decision.until_s
        assert until_s is None or (math.isfinite(until_s) and until_s > now_s), f"until_s={until_s} at {now_s}"
        return
    assert isinstance(decision, Go | Refuse), f"{decision!r} is no FlowDecision"
    assert decision.request_id in waiting, f"{decision.request_id!r} does not wait"
    if isinstance(decision, Refuse):
        retry_s = decision.retry_after_s
        assert math.isfinite(retry_s), f"retry_after_s={retry_s} is not finite"
        assert retry_s >= 0, f"retry_after_s={retry_s} is negative"


def check_power_plan(plan: PowerPlan, gpus: Sequence[GpuView], *, budget_w: float | None = None) -> None:
    """Check that caps and flips are of GPUs that are there, and leave both phases served.

    :param budget_w: what all caps may sum to; a GPU that the plan leaves out keeps its cap.
    """
    assert isinstance(plan, PowerPlan), f"{plan!r} is no PowerPlan"
    roles = {gpu.index: gpu.role for gpu in gpus}
    for index, cap_w in plan.caps_w.items():
        assert index in roles, f"there is no GPU {index}"
        assert math.isfinite(cap_w), f"the cap of GPU {index} is {cap_w} W"
        assert cap_w > 0, f"the cap of GPU {index} is {cap_w} W"
    if budget_w is not None:
        total_w = sum(plan.caps_w.get(gpu.index, gpu.cap_w) for gpu in gpus)
        assert total_w <= budget_w * (1 + 1e-9), f"caps of {total_w:g} W exceed the budget of {budget_w:g} W"
    before = set(roles.values())
    for flip in plan.flips:
        assert flip.gpu in roles, f"there is no GPU {flip.gpu}"
        roles[flip.gpu] = Role(flip.role)
    assert set(roles.values()) >= before, f"the flips {plan.flips} leave a phase without a GPU"


def _whole(value: object) -> bool:
    """Tell whether a value is a whole number, such as one of numpy's; True and False are none."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)
