"""AMPD's batch scheduler: Algorithm 2 and its promise that no task is postponed more than w times."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.ampd.config import AmpdSchedulerSettings
from pdplugins.policies.ampd.costs import Costs
from pdplugins.policies.ampd.scheduler import AmpdScheduler
from pdplugins.types import BatchView, QueuedPrefill
from tests.policies.ampd.fleet import DEPLOYMENT, task


def scheduler(window: int = 3, step_tokens: int = 1) -> AmpdScheduler:
    """One task for each step, as printed, unless a test says otherwise."""
    return AmpdScheduler(AmpdSchedulerSettings(window=window, step_tokens=step_tokens), DEPLOYMENT)


def first(queue: list[QueuedPrefill], now_s: float = 0.0, window: int = 3) -> str:
    (name,) = scheduler(window).next_batch(BatchView(tuple(queue), 0, 0), now_s).prefill_tokens
    return name


def test_an_empty_queue_leaves_the_step_to_decode() -> None:
    plan = scheduler().next_batch(BatchView((), 4, 4000), 0.0)
    assert plan.prefill_tokens == {}
    assert plan.wait_s == 0


def test_one_task_runs_whole() -> None:
    plan = scheduler().next_batch(BatchView((task("a", 700, history=300),), 0, 0), 0.0)
    assert plan.prefill_tokens == {"a": 700}


def test_a_long_prompt_waits_for_a_short_one_that_would_miss_its_slo_behind_it() -> None:
    """0.9 s then 0.2 s: one of two in time; 0.2 s then 0.9 s: both (the SLO is 1 s), as the long one came just now."""
    assert first([task("long", 750), task("short", 200)]) == "long"  # both are in time anyway
    assert first([task("long", 750), task("short", 200, queued_s=-0.3)], now_s=0.0) == "short"


def test_equal_orderings_keep_the_order_of_the_queue() -> None:
    """Lines 5 and 6 replace an ordering only by one that satisfies more tasks: also where none can be satisfied."""
    assert first([task("a", 5000), task("b", 4000), task("c", 3000)]) == "a"


def test_tasks_join_a_step_in_order_until_someone_in_it_would_be_late() -> None:
    """Each takes 0.1 s; the second has 0.35 s left, so that three may run together, but not four."""
    queue = (task("a", 100), task("b", 100, queued_s=-0.65), task("c", 100), task("d", 100))
    policy = scheduler(step_tokens=8192)
    assert list(policy.next_batch(BatchView(queue, 0, 0), 0.0).prefill_tokens) == ["a", "b", "c"]
    assert list(scheduler(step_tokens=250).next_batch(BatchView(queue, 0, 0), 0.0).prefill_tokens) == ["a", "b"]
    assert list(policy.next_batch(BatchView(queue, 3, 900), 0.0).prefill_tokens) == ["a"]


def test_those_that_are_late_already_do_not_hold_others_up() -> None:
    queue = (task("late", 100, queued_s=-9.0), task("b", 100), task("c", 100))
    assert len(scheduler(step_tokens=8192).next_batch(BatchView(queue, 0, 0), 0.0).prefill_tokens) == 3


def test_only_the_window_is_reordered() -> None:
    queue = [task("a", 850), task("b", 900), task("c", 100, queued_s=-0.5)]
    assert first(queue, window=3) == "c"
    assert first(queue, window=2) == "a"


def test_a_task_is_postponed_w_times_and_no_more() -> None:
    """An endless stream of short prompts with little time left would starve the long one."""
    policy, now = scheduler(), 0.0
    ran = []
    for number in range(6):
        queue = (task("long", 990, queued_s=-9.0), task(f"s{number}", 100, queued_s=now - 0.5))
        (name,) = policy.next_batch(BatchView(queue, 0, 0), now).prefill_tokens
        ran.append(name)
        now += 0.1
    assert ran == ["s0", "s1", "s2", "long", "s4", "s5"]  # once it has run, the same name is a new task


def most_satisfied(window: list[QueuedPrefill], now_s: float) -> int:
    """The best that any ordering of the window can do, counted as plainly as possible."""

    def good(order: tuple[QueuedPrefill, ...]) -> int:
        clock, count = now_s, 0
        for one in order:
            clock += Costs(DEPLOYMENT).prefill_s(one.done_tokens or 0, one.remaining_tokens, 1)
            count += clock - one.queued_s <= DEPLOYMENT.slo.ttft_s
        return count

    return max(good(order) for order in permutations(window))


TASKS = st.lists(st.tuples(st.integers(1, 1500), st.integers(0, 4000), st.floats(0, 1.5)), min_size=1, max_size=12)


@given(TASKS, st.integers(1, 5))
def test_the_first_choice_is_optimal_within_the_window(tasks: list[tuple[int, int, float]], window: int) -> None:
    queue = [task(str(n), new, -waited, history) for n, (new, history, waited) in enumerate(tasks)]
    plan = scheduler(window).next_batch(BatchView(tuple(queue), 0, 0), 0.0)
    best = most_satisfied(queue[:window], 0.0)
    assert f"{best} of {min(window, len(queue))} within" in plan.reason


@given(TASKS, st.integers(1, 5), st.data())
def test_no_task_is_overtaken_by_more_than_w_dispatches_of_its_window(
    tasks: list[tuple[int, int, float]], window: int, data: st.DataObject
) -> None:
    """Every task runs once, whole; and while it waits in the window, at most w later ones run before it."""
    policy, now = scheduler(window), 0.0
    coming = [task(str(n), new, -waited, history) for n, (new, history, waited) in enumerate(tasks)]
    queue: list[QueuedPrefill] = []
    overtaken: dict[str, int] = {}
    ran: list[str] = []
    while coming or queue:
        for _ in range(data.draw(st.integers(0 if queue else 1, 3))):
            if coming:
                queue.append(coming.pop(0))
        plan = policy.next_batch(BatchView(tuple(queue), 0, 0), now)
        ((name, tokens),) = plan.prefill_tokens.items()
        index = next(i for i, one in enumerate(queue) if one.request.id == name)
        assert index < window
        assert tokens == queue[index].remaining_tokens
        for earlier in queue[:index]:
            overtaken[earlier.request.id] = overtaken.get(earlier.request.id, 0) + 1
        now += Costs(DEPLOYMENT).prefill_s(queue[index].done_tokens or 0, tokens, 1)
        ran.append(name)
        del queue[index]
    assert sorted(ran) == sorted(str(n) for n in range(len(tasks)))
    assert max(overtaken.values(), default=0) <= window


def test_what_it_remembers_does_not_grow() -> None:
    """Tasks that leave without being run, as cancelled ones do, are forgotten."""
    policy = scheduler()
    for number in range(500):
        queue = (task(f"a{number}", 950, queued_s=-9), task(f"b{number}", 100, queued_s=-0.5))
        policy.next_batch(BatchView(queue, 0, 0), 0.0)
    assert len(policy._postponed) <= 30


@pytest.mark.parametrize("waited_s", [0.0, 1e9])
def test_overload_is_first_come_first_served(waited_s: float) -> None:
    queue = [task(str(n), 10_000, queued_s=-waited_s) for n in range(64)]
    assert first(queue) == "0"
