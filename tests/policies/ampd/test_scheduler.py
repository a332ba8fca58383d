"""AMPD's batch scheduler: Algorithm 2 and its promise that no task is postponed more than w times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.ampd.config import AmpdSchedulerSettings
from pdplugins.policies.ampd.costs import Costs
from pdplugins.policies.ampd.scheduler import AmpdScheduler
from pdplugins.resources import data_dir
from pdplugins.testing import deployment
from pdplugins.types import BatchPlan, BatchView, QueuedPrefill, Role
from tests.policies.ampd.fleet import DEPLOYMENT, task


def scheduler(window: int = 3, step_tokens: int = 1) -> AmpdScheduler:
    """One task for each step, as printed, unless a test says otherwise."""
    return AmpdScheduler(AmpdSchedulerSettings(window=window, step_tokens=step_tokens), DEPLOYMENT)


def ran(
    policy: AmpdScheduler, queue: Sequence[QueuedPrefill], now_s: float, refused: Collection[str] = ()
) -> list[str]:
    """Let an engine with `queue` run a step without the tasks that it refuses. Return the tasks that it ran."""
    view = BatchView(tuple(queue), 0, 0)
    tokens = policy.next_batch(view, now_s).prefill_tokens
    names = [name for name in tokens if name not in refused]
    policy.on_step(view, BatchPlan({name: tokens[name] for name in names}), 0.1)
    return names


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
    policy, now, order = scheduler(), 0.0, []
    waits = [task("long", 990, queued_s=-9.0)]
    for number in range(6):
        order += ran(policy, [*waits, task(f"s{number}", 100, queued_s=now - 0.5)], now)
        waits = [one for one in waits if one.request.id not in order]
        now += 0.1
    assert order == ["s0", "s1", "s2", "long", "s4", "s5"]


@pytest.mark.parametrize("step_tokens", [1, 8192])
def test_a_task_that_the_engine_refuses_keeps_what_it_has_been_postponed(step_tokens: int) -> None:
    """Its turn has come, but its KV cache does not fit: no other one goes before it until it has run."""
    policy, order = scheduler(step_tokens=step_tokens), []
    long = task("long", 990, queued_s=-9.0)
    for number in range(8):
        queue = [long, task(f"s{number}", 100, queued_s=-0.5)]
        order += ran(policy, queue, 0.0, refused={"long"} if number < 6 else ())
    assert order[:4] == ["s0", "s1", "s2", "long"]


def test_a_plan_that_nobody_ran_postpones_nothing() -> None:
    policy = scheduler()
    queue = [task("long", 990, queued_s=-9.0), task("short", 100, queued_s=-0.5)]
    for _ in range(10):
        assert list(policy.next_batch(BatchView(tuple(queue), 0, 0), 0.0).prefill_tokens) == ["short"]
    assert [ran(policy, queue, 0.0) for _ in range(4)] == [["short"], ["short"], ["short"], ["long"]]


def test_a_step_counts_from_its_launch_on_where_the_host_reports_it_late() -> None:
    """Engines that plan a step while the one before it runs: that one has taken its task from the queue."""
    policy, order = scheduler(), []
    late = None
    for number in range(6):
        view = BatchView((task("long", 990, queued_s=-9.0), task(f"s{number}", 100, queued_s=-0.5)), 0, 0)
        plan = policy.next_batch(view, 0.0)
        if late is not None:
            policy.on_step(*late, 0.1)
        late = view, plan
        order += plan.prefill_tokens
        if "long" in order:
            break
    assert order == ["s0", "s1", "s2", "long"]


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


@pytest.mark.moderate
@given(
    TASKS, st.integers(1, 5), st.sampled_from([1, 400, AmpdSchedulerSettings().step_tokens]), st.booleans(), st.data()
)
def test_no_task_is_overtaken_in_more_than_w_steps(
    tasks: list[tuple[int, int, float]], window: int, step_tokens: int, late: bool, data: st.DataObject
) -> None:
    """Every task runs once and whole, and while it waits, tasks behind it run in at most w steps.

    The engine refuses tasks that do not fit its free KV cache, decodes or not, and reports a step at its end or after
    the next plan.
    """
    policy, now = scheduler(window, step_tokens), 0.0
    coming = [task(str(n), new, -waited, history) for n, (new, history, waited) in enumerate(tasks)]
    queue: list[QueuedPrefill] = []
    overtaken: dict[str, int] = {}
    done: list[str] = []
    report: tuple[BatchView, BatchPlan] | None = None
    tight_steps = 3 * len(coming)
    while coming or queue:
        for _ in range(data.draw(st.integers(0 if queue else 1, 3))):
            if coming:
                queue.append(coming.pop(0))
        view = BatchView(tuple(queue), data.draw(st.sampled_from([0, 2])), 0)
        plan = policy.next_batch(view, now)
        if report is not None:
            policy.on_step(*report, 0.1)
            report = None
        free = data.draw(st.sampled_from([0, 300, 1000])) if tight_steps > 0 else 1 << 30
        tight_steps -= 1
        tokens = {name: count for name, count in plan.prefill_tokens.items() if count <= free}
        if not tokens:
            continue
        assert len(tokens) == 1 or not view.decode_requests
        by_id = {one.request.id: (place, one) for place, one in enumerate(queue)}
        for name, count in tokens.items():
            one = by_id[name][1]
            assert count == one.remaining_tokens
            now += Costs(DEPLOYMENT).prefill_s(one.done_tokens or 0, count, 1)
        last = max(by_id[name][0] for name in tokens)
        for one in queue[:last]:
            if one.request.id not in tokens:
                overtaken[one.request.id] = overtaken.get(one.request.id, 0) + 1
        done += tokens
        queue = [one for one in queue if one.request.id not in tokens]
        report = view, BatchPlan(tokens)
        if not late:
            policy.on_step(*report, 0.1)
            report = None
    assert sorted(done) == sorted(str(n) for n in range(len(tasks)))
    assert max(overtaken.values(), default=0) <= window


def test_what_it_remembers_does_not_grow() -> None:
    """Tasks that leave without being run, as cancelled ones do, are forgotten."""
    policy = scheduler()
    for number in range(500):
        ran(policy, [task(f"a{number}", 950, queued_s=-9), task(f"b{number}", 100, queued_s=-0.5)], 0.0)
    assert len(policy._postponed) <= 30


@pytest.mark.parametrize("waited_s", [0.0, 1e9])
def test_overload_is_first_come_first_served(waited_s: float) -> None:
    queue = [task(str(n), 10_000, queued_s=-waited_s) for n in range(64)]
    assert first(queue) == "0"


def test_a_profile_without_prefill_of_the_decode_workers_size_serves_with_what_it_has() -> None:
    """That of a decode worker's local prefill: the deployment's size for prefill counts."""
    perf = TableModel(read_profile(data_dir("profiles") / "h100" / "llama-70b-fp8-dopd-table-1.json"))
    assert perf.tp_sizes(Role.PREFILL) == (1,)
    uneven = replace(deployment(perf), prefill_tp=1, decode_tp=2)
    costs = Costs(uneven)
    assert costs.prefill_s(0, 1000, 2) == costs.prefill_s(0, 1000, 1)
    policy = AmpdScheduler(AmpdSchedulerSettings(step_tokens=1), uneven)
    assert policy.next_batch(BatchView((task("a", 700),), 3, 3000), 0.0).prefill_tokens == {"a": 700}
