"""Whatever a power controller does, no cap is set that would harm."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.errors import PluginError
from pdplugins.runtime.decision import Fault
from pdplugins.runtime.power import SafePowerController
from pdplugins.types import Deployment, Flip, GpuView, PlannerView, Pool, PowerPlan, Role
from tests.runtime.hostile import Script, errors, junk, numbers

BUDGET_W = 1200.0
GPUS = tuple(GpuView(index, role, 300.0, 400.0) for index, role in enumerate([Role.PREFILL, Role.PREFILL, Role.DECODE]))
VIEW = PlannerView(0.0, None, Pool(2), Pool(1))
DEPLOYMENT = Deployment(None, None, 8, 1, 2, 30.0, 256)  # type: ignore[arg-type] # the safe controller looks at neither

indices = st.integers(-1, 4) | junk
caps = st.dictionaries(st.integers(-1, 4), numbers | st.floats(0, 800) | junk) | junk
flips = st.lists(st.builds(Flip, indices, st.sampled_from(Role) | junk) | junk).map(tuple) | junk
plans = st.builds(PowerPlan, caps, flips, st.text() | junk)


@given(script=st.lists(plans | errors | junk, min_size=1, max_size=6), any_role=st.booleans())
def test_any_answer_becomes_one_to_follow(script: list[Any], any_role: bool) -> None:
    controller = safe(*script, deployment=replace(DEPLOYMENT, any_role=any_role))
    for _ in script:
        if (plan := controller.control(GPUS, VIEW)) is None:
            continue
        assert all(gpu in range(3) and math.isfinite(cap) and cap >= 0 for gpu, cap in plan.caps_w.items())
        assert sum(plan.caps_w.get(gpu.index, gpu.cap_w) for gpu in GPUS) <= BUDGET_W * 1.001
        roles = {gpu.index: gpu.role for gpu in GPUS} | {flip.gpu: flip.role for flip in plan.flips}
        assert roles.keys() == {0, 1, 2}
        assert set(roles.values()) == set(Role) or (any_role and set(roles.values()) < set(Role))
        assert type(plan.reason) is str


def safe(
    *answers: object, deployment: Deployment = DEPLOYMENT, budget_w: float | None = BUDGET_W
) -> SafePowerController:
    return SafePowerController(Script(answers), deployment, budget_w=budget_w)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "plan",
    [
        PowerPlan({}),
        PowerPlan({0: 500.0, 1: 300.0}, (), "why"),
        PowerPlan({0: 800.0, 1: 0.0}),
        PowerPlan({}, (Flip(0, Role.DECODE),)),
        PowerPlan({}, (Flip(0, Role.DECODE), Flip(2, Role.PREFILL))),
    ],
)
def test_a_good_plan_is_followed(plan: PowerPlan) -> None:
    controller = safe(plan)
    assert controller.control(GPUS, VIEW) == plan
    assert not controller.faults
    assert (controller.calls, controller.interval_s) == (1, 5.0)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (ValueError("no"), Fault.POLICY_ERROR),
        (None, Fault.UNSAFE_ANSWER),
        (PowerPlan({3: 100.0}), Fault.UNSAFE_ANSWER),
        (PowerPlan({0: math.nan}), Fault.UNSAFE_ANSWER),
        (PowerPlan({0: -1.0}), Fault.UNSAFE_ANSWER),
        (PowerPlan([400.0] * 3), Fault.UNSAFE_ANSWER),  # type: ignore[arg-type]
        (PowerPlan({}, (Flip(3, Role.DECODE),)), Fault.UNSAFE_ANSWER),
        (PowerPlan({}, (Flip(0, "both"),)), Fault.UNSAFE_ANSWER),  # type: ignore[arg-type]
        (PowerPlan({}, (Flip(2, Role.PREFILL),)), Fault.UNSAFE_ANSWER),
        (PowerPlan({0: 401.0}), Fault.OVER_BUDGET),
    ],
)
def test_caps_stay_where_there_is_nothing_to_follow(answer: object, fault: Fault) -> None:
    controller = safe(answer)
    assert controller.control(GPUS, VIEW) is None
    assert controller.faults == {fault: 1}


def test_caps_that_nobody_knows_are_not_within_the_budget() -> None:
    controller = safe(PowerPlan({0: 400.0}))
    unknown = GpuView(2, Role.DECODE, math.nan, math.nan)
    assert controller.control((*GPUS[:2], unknown), VIEW) is None
    assert controller.faults == {Fault.OVER_BUDGET: 1}


def test_a_budget_that_nobody_knows_binds_nobody() -> None:
    assert safe(PowerPlan({0: 5000.0}), budget_w=None).control(GPUS, VIEW) == PowerPlan({0: 5000.0})


def test_a_role_may_lose_its_last_gpu_where_every_worker_does_both_phases() -> None:
    plan = PowerPlan({}, (Flip(2, Role.PREFILL),))
    assert safe(plan, deployment=replace(DEPLOYMENT, any_role=True)).control(GPUS, VIEW) == plan


@pytest.mark.parametrize("interval_s", [0.0, -1.0, math.nan, math.inf, None, "5", 1e-9, 1e12, 10**400])
def test_an_interval_that_is_no_time_is_refused_at_start(interval_s: Any) -> None:
    class Hasty(Script):
        pass

    Hasty.interval_s = interval_s
    with pytest.raises(PluginError, match=r"Hasty: interval_s is .*; let it be a number of seconds from"):
        SafePowerController(Hasty([None]), DEPLOYMENT)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", [0.0, False, np.float64(0)])
def test_what_only_equals_the_index_of_a_gpu_is_none(gpu: Any) -> None:
    """A daemon looks its GPUs up by the index, and a log writes it."""
    controller = safe(PowerPlan({gpu: 300.0}), PowerPlan({}, (Flip(gpu, Role.DECODE),)))
    assert [controller.control(GPUS, VIEW) for _ in range(2)] == [None, None]
    assert controller.faults == {Fault.UNSAFE_ANSWER: 2}


def test_the_whole_numbers_of_numpy_are_indices() -> None:
    plan = safe(PowerPlan({np.int64(0): 300.0}, (Flip(np.int64(0), Role.DECODE),))).control(GPUS, VIEW)
    assert plan is not None
    assert [type(gpu) for gpu in (*plan.caps_w, plan.flips[0].gpu)] == [int, int]
