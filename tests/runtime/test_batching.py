"""Whatever a batch scheduler does, the engine goes on: with a plan that can be followed, or its own way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.runtime.batching import MOST_IDLE_S, SafeBatchScheduler
from pdplugins.runtime.decision import Fault
from pdplugins.types import BatchPlan, BatchView, QueuedPrefill
from tests.runtime.hostile import Script, errors, junk, numbers, request

VIEW = BatchView((QueuedPrefill(request("a"), 100, 0.0),), 3, 500)

tokens = st.dictionaries(st.sampled_from(["a", "b"]), numbers | junk) | junk
plans = st.builds(BatchPlan, tokens, numbers | junk, st.text() | junk)


@given(script=st.lists(plans | errors | junk, min_size=1, max_size=6))
def test_any_answer_becomes_one_to_follow(script: list[Any]) -> None:
    scheduler = SafeBatchScheduler(Script(script))  # type: ignore[arg-type]
    for turn in range(len(script)):
        plan = scheduler.next_batch(VIEW, float(turn))
        scheduler.on_step(VIEW, plan or BatchPlan({}), 0.1)
        if plan is not None:
            assert math.isfinite(plan.wait_s)
            assert plan.wait_s >= 0
            assert all(isinstance(count, int) and count >= 0 for count in plan.prefill_tokens.values())
            assert type(plan.reason) is str


def ask(answer: object) -> tuple[BatchPlan | None, SafeBatchScheduler]:
    scheduler = SafeBatchScheduler(Script([answer]))  # type: ignore[arg-type]
    return scheduler.next_batch(VIEW, 0.0), scheduler


@pytest.mark.parametrize(
    "plan",
    [BatchPlan({"a": 10}, 0.0, "why"), BatchPlan({}, 0.5), BatchPlan({"a": np.int64(3)})],  # type: ignore[dict-item]
)
def test_a_good_plan_is_followed(plan: BatchPlan) -> None:
    followed, scheduler = ask(plan)
    scheduler.on_step(VIEW, plan, 0.1)  # which asks for no decision
    assert followed == plan
    assert not scheduler.faults
    assert scheduler.calls == 1


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (ValueError("no"), Fault.POLICY_ERROR),
        (None, Fault.UNSAFE_ANSWER),
        ({"a": 10}, Fault.UNSAFE_ANSWER),
        (BatchPlan({"a": -1}), Fault.UNSAFE_ANSWER),
        (BatchPlan({"a": 1.5}), Fault.UNSAFE_ANSWER),  # type: ignore[dict-item]
        (BatchPlan([("a", 1)]), Fault.UNSAFE_ANSWER),  # type: ignore[arg-type]
        (BatchPlan({"a": 1}, math.inf), Fault.UNSAFE_ANSWER),
        (BatchPlan({"a": 1}, math.nan), Fault.UNSAFE_ANSWER),
        (BatchPlan({"a": 1}, -0.5), Fault.UNSAFE_ANSWER),
    ],
)
def test_the_engine_goes_its_own_way_where_there_is_nothing_to_follow(answer: object, fault: Fault) -> None:
    plan, scheduler = ask(answer)
    assert plan is None
    assert scheduler.faults == {fault: 1}


@pytest.mark.parametrize(
    "plan", [BatchPlan({}, 1.0), BatchPlan({}, 1e9), BatchPlan({"gone": 9}), BatchPlan({"a": 0}, 1.0)]
)
def test_a_policy_that_never_lets_a_prompt_run_does_not_stop_an_engine(plan: BatchPlan) -> None:
    scheduler = SafeBatchScheduler(Script([plan]))  # type: ignore[arg-type]
    idle = BatchView(VIEW.queue, 0, 0)
    asked_s, followed = 0.0, scheduler.next_batch(idle, 0.0)
    while followed is not None:
        asked_s += max(followed.wait_s, 0.5)
        followed = scheduler.next_batch(idle, asked_s)
    assert asked_s == MOST_IDLE_S
    assert scheduler.faults == {Fault.UNSAFE_ANSWER: 1}
    assert scheduler.next_batch(idle, asked_s + 1) is None


def test_nor_does_the_fallback_of_a_policy_that_raises() -> None:
    policy: Any = Script([ValueError("why")])
    policy.fallback = Script([BatchPlan({}, 1.0)])
    scheduler, idle = SafeBatchScheduler(policy), BatchView(VIEW.queue, 0, 0)
    plans = [scheduler.next_batch(idle, float(now_s)) for now_s in range(int(MOST_IDLE_S) + 2)]
    assert [plan is None for plan in plans] == [now_s >= MOST_IDLE_S for now_s in range(len(plans))]


@pytest.mark.parametrize(
    ("view", "plan"),
    [
        (BatchView(VIEW.queue, 0, 0), BatchPlan({"a": 1})),
        (BatchView(VIEW.queue, 1, 9), BatchPlan({}, 1.0)),
        (BatchView((), 0, 0), BatchPlan({}, 1.0)),
        (BatchView(VIEW.queue, 0, 0), BatchPlan({"a": 0})),
    ],
)
def test_an_engine_with_something_to_do_or_nothing_waiting_is_not_idle(view: BatchView, plan: BatchPlan) -> None:
    waits = BatchPlan({}, 1.0)
    scheduler = SafeBatchScheduler(Script([waits, plan]))  # type: ignore[arg-type]
    for turn in range(10):
        at_s = turn * 0.9 * MOST_IDLE_S
        assert scheduler.next_batch(BatchView(VIEW.queue, 0, 0), at_s) == waits
        assert scheduler.next_batch(view, at_s + 1) == plan


def test_a_clock_that_goes_back_begins_the_idle_time_anew() -> None:
    scheduler = SafeBatchScheduler(Script([BatchPlan({}, 1.0)]))  # type: ignore[arg-type]
    idle = BatchView(VIEW.queue, 0, 0)
    found = [scheduler.next_batch(idle, now_s) is not None for now_s in (1e9, 5.0, 4 + MOST_IDLE_S, 5 + MOST_IDLE_S)]
    assert found == [True, True, True, False]


def test_a_prompt_that_has_just_come_has_not_waited_for_too_long() -> None:
    """What waited before it has left, and while nothing waits nobody asks."""
    scheduler = SafeBatchScheduler(Script([BatchPlan({}, 1.0)]))  # type: ignore[arg-type]
    for queued_s in (0.0, 1000.0):
        view = BatchView((QueuedPrefill(request("a"), 100, queued_s),), 0, 0)
        assert scheduler.next_batch(view, queued_s + 1) is not None


def test_what_it_learns_from_may_fail() -> None:
    scheduler = SafeBatchScheduler(Script([ValueError("no")]))  # type: ignore[arg-type]
    scheduler.on_step(VIEW, BatchPlan({}), 0.1)
    assert scheduler.faults == {Fault.POLICY_ERROR: 1}
