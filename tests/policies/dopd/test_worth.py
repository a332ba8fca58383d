"""What pools are worth by the planner's own model, and that the number explains a change."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.dopd.staffing import Service
from pdplugins.policies.dopd.worth import Outlook

SERVICE = Service.of(lambda tokens: tokens / 10_000, 1000, 1.0, 2.0)
DISPERSION_S = SERVICE.poisson_dispersion_s


def outlook(work: float = 4.0, **changed: float) -> Outlook:
    plain = Outlook(2.0, 30.0, work, SERVICE, DISPERSION_S, 0.0, 1.0, busy=2.0, busy_deviation=0.2)
    return replace(plain, **changed)


def test_more_workers_are_never_worth_less() -> None:
    for load in (outlook(), outlook(backlog_s=60.0), outlook(remote_share=0.5), outlook(work=0.0)):
        for other in (1, 3):
            shares = [load.attainment(workers, other) for workers in range(1, 20)]
            assert all(few <= more + 1e-12 for few, more in pairwise(shares))
            assert all(load.attainment(other, decode) <= load.attainment(other, decode + 1) for decode in range(1, 5))


def test_far_too_few_workers_are_worth_little_and_plenty_nearly_everything() -> None:
    assert outlook().attainment(2, 3) < 0.2
    assert outlook().attainment(12, 3) > 0.99
    assert outlook().attainment(12, 1) < 0.01, "decode does not hold them"
    assert outlook(remote_share=0.25).attainment(2, 3) > 0.75, "what prefills locally does not wait there"


def test_what_waits_already_costs_the_time_until_it_is_gone() -> None:
    """Six workers clear sixty seconds of work beside four of load in half a minute."""
    assert outlook(backlog_s=60.0).attainment(6, 3) < 0.5 < outlook(backlog_s=60.0).attainment(14, 3)


def test_what_never_varies_waits_only_for_workers() -> None:
    """As with an objective that no prompt keeps: service without any dispersion."""
    steady = outlook(dispersion_s=0.0)
    assert steady.attainment(4, 3) > 0.99
    assert steady.attainment(3, 3) < 0.5


@pytest.mark.parametrize("workers", [4, 5, 6, 8])
def test_it_is_near_what_a_queue_really_does(workers: int) -> None:
    """Each worker has a queue of its own. Poisson arrivals, log-normal prompts, half a minute from an empty queue."""
    draw = random.Random(7)
    sigma = math.sqrt(math.log(2))
    inside = total = 0
    for _ in range(60):
        free, now_s = [0.0] * workers, 0.0
        while (now_s := now_s + draw.expovariate(4.0 / SERVICE.mean_s)) < 30:
            time_s = 0.1 * math.exp(sigma * draw.gauss(0, 1) - sigma * sigma / 2)
            at = draw.randrange(workers)
            free[at] = max(free[at], now_s) + time_s
            total, inside = total + 1, inside + (free[at] - now_s <= 2.0)
    assert outlook().attainment(workers, 5) == pytest.approx(inside / total, abs=0.12)


@given(*[st.floats(0, 1e6) for _ in range(5)], st.integers(1, 10**6), st.integers(1, 10**6))
def test_it_is_a_share_whatever_is_expected(
    work: float, backlog_s: float, share: float, busy: float, deviation: float, prefill: int, decode: int
) -> None:
    said = outlook(
        work, backlog_s=backlog_s, remote_share=min(share, 1.0), busy=busy, busy_deviation=deviation
    ).attainment(prefill, decode)
    assert 0 <= said <= 1
