"""The load to plan for: what prefill workers are spared, and how far prompt lengths spread."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.dopd.load import Load, Spread
from pdplugins.types import Traffic


def window(lengths: list[float]) -> Traffic:
    squares = [length * length for length in lengths]
    return Traffic(5.0, len(lengths), statistics.fmean(lengths), 1.0, isl_sq_tokens=statistics.fmean(squares))


@pytest.mark.parametrize("count", [2, 3, 30])
def test_the_spread_is_that_of_the_lengths_however_few_a_window_has(count: int) -> None:
    """An exponential distribution has a coefficient of variation of 1; the prior says otherwise."""
    spread, source = Spread(prior=4.0, memory=1e9), random.Random(1)
    for _ in range(20_000 // count):
        spread.observe(window([source.expovariate(1e-3) for _ in range(count)]))
    assert spread.cv2 == pytest.approx(1.0, rel=0.1)


def test_a_mean_that_drifts_is_no_spread() -> None:
    spread = Spread(prior=1.0, memory=1e9)
    for index in range(1000):
        spread.observe(window([100.0 + index] * 10))
    assert spread.cv2 < 0.01


def test_windows_that_tell_nothing_leave_the_prior() -> None:
    spread = Spread(prior=0.7, memory=100.0)
    for told in (Traffic(5.0, 9.0, 100.0), Traffic(5.0, 0.0, None, isl_sq_tokens=1e4), window([100.0])):
        spread.observe(told)
    assert spread.cv2 == 0.7


@given(st.lists(st.floats(1, 300), max_size=20), st.lists(st.floats(301, 9000), min_size=1, max_size=20))
def test_what_is_left_for_prefill_workers_has_the_moments_of_the_remote_prompts(
    local: list[float], remote: list[float]
) -> None:
    """Exact where the local prompts are equal, as the host tells only their mean."""
    local = [statistics.fmean(local)] * len(local) if local else []
    every = [*local, *remote]
    mean = statistics.fmean(every)
    load = Load(
        mean, 1.0, 1.0, statistics.pvariance(every) / mean**2, len(local) / len(every), local[0] if local else 0.0
    )
    left = load.remote()
    assert left.share == pytest.approx(len(remote) / len(every))
    assert left.tokens == pytest.approx(statistics.fmean(remote), rel=1e-6)
    assert left.cv2 == pytest.approx(statistics.pvariance(remote) / statistics.fmean(remote) ** 2, abs=1e-4)


def test_cached_tokens_are_not_computed() -> None:
    assert Load(1000.0, 1.0, 1.0, hit_rate=0.25).remote().tokens == 750.0
