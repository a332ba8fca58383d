"""Eq. 6-8 and 10 solved for the pool, and what is learned about bursts and queues."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.dopd.staffing import (
    LEAST_SLACK,
    Backlog,
    Dispersion,
    Service,
    capped_workers,
    prefill_workers,
    upper_rate,
)

QUADRATIC = Service.of(lambda tokens: tokens * tokens / 1e6, 1000, cv2=1.0, cap_s=1e9)


def test_varied_prompts_cost_more_than_their_mean() -> None:
    """Eq. 7 and 8: for a quadratic cost E[C] is 1 + cv^2 times the cost of the mean."""
    assert pytest.approx(2.0, rel=0.02) == QUADRATIC.mean_s


def test_equal_prompts_cost_what_the_mean_costs() -> None:
    service = Service.of(lambda tokens: tokens / 5000, 1000, cv2=0.0, cap_s=2.0)
    assert service.mean_s == pytest.approx(0.2)
    assert service.poisson_dispersion_s == pytest.approx(0.2)


def test_prompts_that_miss_the_slo_anyway_ask_for_no_headroom() -> None:
    capped = Service.of(lambda tokens: tokens * tokens / 1e6, 1000, cv2=1.0, cap_s=1.0)
    assert capped.mean_s == QUADRATIC.mean_s
    assert capped.poisson_dispersion_s < QUADRATIC.poisson_dispersion_s


@pytest.mark.parametrize(
    ("tokens", "slack_s"),
    [(1000, 1.8), (5000, 1.0), (9990, LEAST_SLACK * 2.0), (20_000, 2.0)],
    ids=["short", "long", "hardly in time", "never in time"],
)
def test_prompts_may_wait_for_what_their_own_prefill_leaves_of_the_slo(tokens: int, slack_s: float) -> None:
    service = Service.of(lambda tokens: tokens / 5000, tokens, cv2=0.0, cap_s=2.0)
    assert service.slack_s == pytest.approx(slack_s)


def test_only_prompts_that_can_meet_the_slo_count_for_the_wait() -> None:
    service = Service.of(lambda tokens: tokens / 5000, 5000, cv2=1.0, cap_s=2.0)
    able = [(weight, 2.0 - time_s) for weight, time_s in service.times if time_s < 2.0]
    assert 0 < len(able) < len(service.times)
    assert service.slack_s == pytest.approx(sum(weight * left for weight, left in able) / sum(w for w, _ in able))


@given(work=st.floats(0.1, 50), dispersion_s=st.floats(0.01, 5), wait_s=st.floats(0.05, 5))
def test_the_pool_waits_what_eq_10_says(work: float, dispersion_s: float, wait_s: float) -> None:
    rho = work / prefill_workers(work, dispersion_s, wait_s)
    assert rho / (1 - rho) * dispersion_s / 2 == pytest.approx(wait_s)


def test_no_pool_is_larger_than_what_serves_the_largest_burst() -> None:
    service = Service.of(lambda tokens: tokens / 5000, 1000, cv2=1.0, cap_s=2.0)
    poisson_s = service.poisson_dispersion_s
    for_peak = prefill_workers(4.0, poisson_s, 1.0)
    assert capped_workers(1.0, 4.0, service, 40.0, 1.0) == for_peak < prefill_workers(1.0, 40.0, 1.0)
    assert capped_workers(1.0, 4.0, service, poisson_s, 1.0) == prefill_workers(1.0, poisson_s, 1.0)
    assert capped_workers(5.0, 4.0, service, 40.0, 1.0) == prefill_workers(5.0, poisson_s, 1.0)


def test_the_largest_burst_fades() -> None:
    dispersion = Dispersion(steps=1, interval_s=5.0, memory_s=100.0, most=100.0)
    for work in [8.0, *[1.0] * 20]:
        dispersion.learn(work, 1.0, QUADRATIC)
    assert dispersion.peak == pytest.approx(8 / 2.71828, rel=0.01)


def test_a_rate_seen_for_longer_is_known_better() -> None:
    assert upper_rate(10, 1000, 1) < upper_rate(10, 30, 1) < upper_rate(10, 5, 1)
    assert upper_rate(10, 30, 0) == 10
    assert upper_rate(0, 30, 1) == pytest.approx(1 / 30)


def learned(work: list[float], service: Service, forecast: float) -> float:
    dispersion = Dispersion(steps=2, interval_s=5.0, memory_s=7200.0, most=100.0)
    for arrived in work:
        dispersion.learn(arrived, forecast, service)
    return dispersion.seconds(service, forecast)


def test_bursts_have_a_larger_dispersion_than_independent_arrivals() -> None:
    service = Service.of(lambda tokens: tokens / 5000, 1000, cv2=1.0, cap_s=2.0)
    calm = learned([1.0] * 300, service, forecast=1.0)
    bursty = learned([10.0 if i % 10 == 0 else 0.0 for i in range(300)], service, forecast=1.0)
    assert calm == pytest.approx(service.poisson_dispersion_s)
    # Variance 9 per second over 5 s of mean work 1, and twelve steps of the Poisson value.
    assert bursty == pytest.approx(45, rel=0.1)


def test_a_queue_is_followed_from_arrivals_and_workers() -> None:
    backlog = Backlog(memory_s=30.0)
    assert backlog.update(20.0, ready=2, window_s=5.0, reported_s=0.0) == 10.0
    assert backlog.update(4.0, ready=2, window_s=5.0, reported_s=0.0) == 4.0
    assert backlog.update(0.0, ready=2, window_s=5.0, reported_s=0.0) == 0.0


def test_a_reported_queue_counts_when_it_is_longer_and_an_estimate_never_grows_for_ever() -> None:
    backlog = Backlog(memory_s=30.0)
    assert backlog.update(0.0, ready=1, window_s=5.0, reported_s=99.0) == 99.0
    backlog = Backlog(memory_s=30.0)
    for _ in range(100):
        waiting_s = backlog.update(50.0, ready=2, window_s=5.0, reported_s=0.0)
    assert waiting_s == 60.0
