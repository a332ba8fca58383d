"""The order: as many jobs in time as can be, nothing starves, and no sum drifts."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.fusion.deadlines import DeadlineQueue, in_time
from pdplugins.policies.fusion.sacrifice import Job

costs = st.integers(1, 20).map(float)
jobs = st.lists(st.tuples(costs, st.integers(0, 40).map(float)), max_size=6).map(
    lambda pairs: [Job(due_s, float(i), str(i), cost_s) for i, (cost_s, due_s) in enumerate(pairs)]
)


def most_in_time(jobs: list[Job], speed: float) -> int:
    """Count by trying every order of one machine."""
    best = 0
    for order in permutations(jobs):
        now_s, good = 0.0, 0
        for job in order:
            if now_s + job.cost_s / speed <= job.due_s:
                now_s += job.cost_s / speed
                good += 1
        best = max(best, good)
    return best


@pytest.mark.moderate
@given(jobs, st.sampled_from([0.5, 1.0, 4.0]))
def test_no_order_has_more_jobs_in_time(jobs: list[Job], speed: float) -> None:
    kept = in_time(jobs, 0.0, speed)
    now_s = 0.0
    for job in kept:
        now_s += job.cost_s / speed
        assert now_s <= job.due_s
    assert len(kept) == most_in_time(jobs, speed)


@pytest.mark.moderate
@given(st.lists(costs, max_size=20), st.sampled_from([0.5, 1.0, 2.0]))
def test_jobs_that_come_one_by_one_are_as_many_in_time_where_objectives_are_equal(
    arrivals: list[float], speed: float
) -> None:
    """Moore and Hodgson's rule needs no job twice where each new one has the latest deadline."""
    queue, waiting, now_s = DeadlineQueue(0.0), [], 0.0
    for index, cost_s in enumerate(arrivals):
        waiting.append(Job(10.0 + index, float(index), str(index), cost_s))
        queue.push(waiting[-1], now_s, speed)
    assert len(queue) - queue.late == len(in_time(waiting, now_s, speed))


steps = st.lists(st.tuples(costs, st.floats(0, 30), st.booleans()), min_size=1, max_size=60)


@pytest.mark.moderate
@given(steps, st.sampled_from([0.05, 0.1, 0.5]))
def test_nothing_starves(steps: list[tuple[float, float, bool]], share: float) -> None:
    """A job starts before more work than that of the older ones and its own, over the share, and one more job.

    That holds whatever the others are worth, and whoever sent them.
    """
    queue, now_s, worked_s = DeadlineQueue(share), 0.0, 0.0
    came: dict[str, tuple[float, float]] = {}
    waiting: dict[str, Job] = {}
    for index in range(4 * len(steps)):
        cost_s, slack_s, comes = steps[index % len(steps)]
        if comes and index < len(steps):
            job = Job(now_s + slack_s, now_s, str(index), cost_s, (1.0, 100.0)[index % 2], "ab"[index % 3 == 0])
            came[job.key] = worked_s, sum(other.cost_s for other in waiting.values()) + cost_s
            waiting[job.key] = job
            queue.push(job, now_s, 1.0)
        if (started := queue.first(now_s, 1.0)) is None:
            now_s += 1.0
            continue
        before_s, older_s = came[started.key]
        assert worked_s - before_s <= older_s / share + 20.0
        queue.start(started)
        del waiting[started.key]
        now_s += started.cost_s
        worked_s += started.cost_s
    assert len(queue) == len(waiting)


@pytest.mark.moderate
@given(steps)
def test_all_are_served_once_and_the_work_is_that_of_the_timely_ones(steps: list[tuple[float, float, bool]]) -> None:
    queue, served = DeadlineQueue(0.1), []
    for index, (cost_s, slack_s, gone) in enumerate(steps):
        queue.push(Job(index + slack_s, float(index), str(index), cost_s), float(index), 1.0)
        if gone:
            queue.remove(str(index // 2))
    left = {str(index) for index in range(len(steps))} - {str(i // 2) for i, step in enumerate(steps) if step[2]}
    while (job := queue.first(len(steps), 1.0)) is not None:
        queue.start(job)
        served.append(job.key)
    assert sorted(served) == sorted(left)
    assert (len(queue), queue.late) == (0, 0)
    assert queue.work_s == pytest.approx(0.0, abs=1e-6)


def test_the_largest_job_waits_where_not_all_can_be_in_time() -> None:
    queue = DeadlineQueue(0.0)
    for name, cost_s in (("large", 5.0), ("a", 2.0), ("b", 2.0)):
        queue.push(Job(6.0, 0.0, name, cost_s), 0.0, 1.0)
    assert (late := queue.first_late()) is not None
    assert late.key == "large"
    assert [queue.late, queue.work_s] == [1, 4.0]
    order = []
    while (job := queue.first(float(2 * len(order)), 1.0)) is not None:
        queue.start(job)
        order.append(job.key)
    assert order == ["a", "b", "large"]


@pytest.mark.parametrize(
    ("share", "cost_s", "turn"), [(0.0, 1.0, 40), (0.125, 1.0, 8), (0.125, 4.0, 32), (0.5, 4.0, 8)]
)
def test_the_oldest_job_gets_its_share(share: float, cost_s: float, turn: int) -> None:
    """A job that is late from the start goes on once the others' work has paid for it."""
    queue, order = DeadlineQueue(share), []
    queue.push(Job(0.0, 0.0, "old", cost_s), 1.0, 1.0)
    for index in range(40):
        queue.push(Job(1000.0, 1.0, str(index), 1.0), 1.0, 1.0)
    while (job := queue.first(2.0, 1.0)) is not None:
        queue.start(job)
        order.append(job.key)
    assert order.index("old") == turn
    assert len(order) == 41


def test_a_job_that_comes_again_waits_once() -> None:
    queue = DeadlineQueue(0.1)
    queue.push(Job(9.0, 0.0, "a", 1.0), 0.0, 1.0)
    queue.push(Job(9.0, 0.0, "a", 2.0), 0.0, 1.0)
    assert ("a" in queue, len(queue), queue.work_s) == (True, 1, 2.0)


def test_a_job_that_comes_again_has_its_new_deadline() -> None:
    """As a request does whose client has hung up and asks again."""
    queue = DeadlineQueue(0.0)
    queue.push(Job(1.0, 0.0, "a", 0.1), 0.0, 1.0)
    queue.remove("a")
    queue.push(Job(5.0, 0.1, "b", 0.1), 0.1, 1.0)
    queue.push(Job(60.0, 0.2, "a", 0.1), 0.2, 1.0)
    job = queue.first(0.3, 1.0)
    assert job is not None
    assert job.key == "b"
