"""Weights, priorities and tenants: who becomes late where not all can be in time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.deadlines import DeadlineQueue, in_time
from pdplugins.policies.fusion.flow import FusionFlow
from pdplugins.policies.fusion.sacrifice import MOST_TENANTS, Accounts, Job, worth
from pdplugins.testing import fleet, request
from pdplugins.types import Go, Terms, Waiting

numbers = st.integers(1, 20).map(float)
jobs = st.lists(
    st.tuples(st.integers(0, 40), numbers, st.sampled_from([1.0, 3.0, 10.0]), st.sampled_from(["", "a", "b"])),
    max_size=12,
).map(lambda rows: [Job(float(due), float(i), str(i), *row) for i, (due, *row) in enumerate(rows)])


@pytest.mark.moderate
@given(jobs, st.sampled_from([0.5, 1.0, 2.0]))
def test_what_is_kept_is_in_time_whatever_weights_and_tenants(jobs: list[Job], speed: float) -> None:
    now_s = 0.0
    for job in in_time(jobs, 0.0, speed):
        now_s += job.cost_s / speed
        assert now_s <= job.due_s + 1e-9


@pytest.mark.moderate
@given(st.lists(st.tuples(numbers, st.sampled_from([1.0, 10.0])), min_size=1, max_size=12))
def test_what_is_kept_is_worth_nearly_what_could_be_with_one_deadline(
    pairs: list[tuple[float, float]],
) -> None:
    """With one deadline it is the greedy rule for a knapsack: it misses no more than the most valuable job."""
    all_of_them = [Job(20.0, 0.0, str(i), cost_s, weight) for i, (cost_s, weight) in enumerate(pairs)]
    best = [0.0] * 21
    for cost_s, weight in pairs:
        for size in range(20, int(cost_s) - 1, -1):
            best[size] = max(best[size], best[size - int(cost_s)] + weight)
    kept = sum(job.weight for job in in_time(all_of_them, 0.0, 1.0))
    assert kept + max(weight for _, weight in pairs) >= best[20]


def test_a_heavier_request_stays_where_a_lighter_one_must_go() -> None:
    light, heavy = Job(3.0, 0.0, "light", 2.0), Job(3.0, 0.0, "heavy", 2.5, 10.0)
    assert [job.key for job in in_time([light, heavy], 0.0, 1.0)] == ["heavy"]
    queue = DeadlineQueue(0.0)
    for job in (heavy, light):
        queue.push(job, 0.0, 1.0)
    assert queue.first(0.0, 1.0) == heavy


def test_late_ones_go_by_worth_then_by_age() -> None:
    queue = DeadlineQueue(0.0)
    for index, weight in enumerate((1.0, 10.0, 1.0)):
        queue.push(Job(0.0, float(index), str(index), 1.0, weight), 5.0, 1.0)
    order = []
    while (job := queue.first(5.0, 1.0)) is not None:
        queue.start(job)
        order.append(job.key)
    assert order == ["1", "0", "2"]


def test_priority_counts_ten_times_and_nothing_asked_counts_once() -> None:
    assert worth(None) == worth(Terms()) == 1.0
    assert worth(Terms(priority=1, weight=2.0)) == 20.0
    assert worth(Terms(priority=-1)) == pytest.approx(0.1)
    assert 0 < worth(Terms(priority=-(10**9), weight=0.0)) < worth(Terms(priority=10**9, weight=1e300)) < 1e17


@pytest.mark.moderate
@pytest.mark.parametrize(("weight", "share"), [(1.0, 1 / 2), (3.0, 3 / 4)])
def test_tenants_share_an_overloaded_pool_by_their_weights(
    core: Callable[..., Core], weight: float, share: float
) -> None:
    """One sends four times as much as the other, and both more than their shares; requests are alike."""
    flow, workers, served = FusionFlow(core(oldest_share=0.0)), fleet(0, 1), {"loud": 0, "quiet": 0}
    came, now_s = 0, 0.0
    while now_s < 120.0:
        for _ in range(2):
            tenant = "quiet" if came % 2 else "loud"
            for _ in range(1 if came % 2 else 4):
                name = f"{tenant}{came}.{flow.signals['late']}"
                asks = Terms(tenant=tenant, tenant_weight=weight if tenant == "quiet" else 1.0)
                flow.on_arrival(Waiting(request(f"{name}-{_}", 3000, now_s, terms=asks), now_s, now_s + 2.0), now_s)
            came += 1
        if isinstance(decision := flow.next(workers, now_s), Go):
            served[decision.request_id.rstrip("0123456789.-")] += 1
        flow._released.clear()
        now_s += 0.4
    assert served["quiet"] / sum(served.values()) == pytest.approx(share, abs=0.08)


def test_a_tenant_alone_gets_everything() -> None:
    """Fairness takes nothing from anybody while there is enough for all."""
    queue = DeadlineQueue(0.0)
    for index in range(10):
        queue.push(Job(100.0, 0.0, str(index), 1.0, 1.0, "only"), 0.0, 1.0)
    assert queue.late == 0


def test_accounts_are_bounded_and_fade() -> None:
    accounts = Accounts()
    for index in range(1000):
        name = accounts.known_as(str(index))
        accounts.worked(Job(0.0, 0.0, "", 1.0, 1.0, name), 1.0)
    assert len(accounts.had_s) <= MOST_TENANTS + 1
    for now_s in range(0, 2000, 10):
        accounts.at(float(now_s))
    assert accounts.had_s == {}
    assert accounts.known_as(None) == ""


def test_tenants_that_only_wait_are_bounded_too() -> None:
    """A client that names a new tenant in each request makes no call slower."""
    queue = DeadlineQueue(0.0)
    for index in range(1000):
        job = queue.asked(Job(1.0, 0.0, str(index), 1.0), Terms(tenant=str(index)))
        queue.push(job, 0.0, 1.0)
    tenants = {queue._jobs[key].tenant for key in queue.keys}
    assert len(tenants) <= MOST_TENANTS + 1
    for key in list(queue.keys):
        queue.remove(key)
    assert queue.asked(Job(1.0, 0.0, "last", 1.0), Terms(tenant="new")).tenant == "new"
