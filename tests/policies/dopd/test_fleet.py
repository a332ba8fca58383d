"""Whole workers: the best that fits a budget, and pools that shrink only after a hold."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.dopd.fleet import Hold, fit_budget
from pdplugins.types import Deployment, PerfModel, Slo


def deployment(gpu_budget: int, prefill_tp: int, decode_tp: int) -> Deployment:
    return Deployment(Slo(2.0, 0.08), cast(PerfModel, None), gpu_budget, prefill_tp, decode_tp, 30.0, 256)


def test_a_wish_that_fits_is_granted() -> None:
    assert fit_budget(4, 2, deployment(8, 1, 2)) == (4, 2)


def test_a_wish_that_does_not_fit_shrinks_in_proportion() -> None:
    assert fit_budget(12, 4, deployment(10, 1, 2)) == (6, 2)


@given(
    wish=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    tps=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8])),
    spare=st.integers(0, 40),
)
def test_no_other_pools_within_the_budget_serve_more(wish: tuple[int, int], tps: tuple[int, int], spare: int) -> None:
    here = deployment(tps[0] + tps[1] + spare, *tps)
    prefill, decode = fit_budget(*wish, here)
    assert 1 <= prefill <= wish[0]
    assert 1 <= decode <= wish[1]
    assert here.gpus(prefill, decode) <= here.gpu_budget
    share = min(prefill / wish[0], decode / wish[1])
    for p in range(1, wish[0] + 1):
        for d in range(1, wish[1] + 1):
            if here.gpus(p, d) <= here.gpu_budget:
                assert min(p / wish[0], d / wish[1]) <= share


def test_growth_passes_at_once_and_shrinking_waits() -> None:
    hold = Hold(60.0)
    assert hold(3, now_s=0.0) == 3
    assert hold(5, now_s=10.0) == 5
    assert hold(2, now_s=20.0) == 5
    assert hold(2, now_s=70.0) == 5
    assert hold(2, now_s=71.0) == 2


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.sampled_from([0.0, 5.0, 60.0]))
def test_a_hold_is_the_largest_wish_of_its_window(wishes: list[int], seconds: float) -> None:
    hold = Hold(seconds)
    for index, wish in enumerate(wishes):
        window = [w for i, w in enumerate(wishes[: index + 1]) if 5.0 * (index - i) <= seconds]
        assert hold(wish, now_s=5.0 * index) == max(window)


def test_a_forgotten_hold_lets_go() -> None:
    hold = Hold(60.0)
    hold(5, now_s=0.0)
    hold.forget()
    assert hold(1, now_s=1.0) == 1
