"""Pools shrink only after a hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.dopd.hold import Hold


def test_growth_passes_at_once_and_shrinking_waits() -> None:
    hold = Hold(60.0, 20.0)
    assert hold(3, now_s=0.0) == 3
    assert hold(5, now_s=10.0) == 5
    assert hold(2, now_s=20.0) == 5
    assert hold(2, now_s=70.0) == 5
    assert hold(2, now_s=71.0) == 2


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.sampled_from([0.0, 5.0, 60.0]))
def test_a_hold_is_the_largest_wish_of_its_window(wishes: list[int], seconds: float) -> None:
    hold = Hold(seconds, 0.0)
    for index, wish in enumerate(wishes):
        window = [w for i, w in enumerate(wishes[: index + 1]) if 5.0 * (index - i) <= seconds]
        assert hold(wish, now_s=5.0 * index) == max(window)


def test_where_the_load_lasts_a_pool_shrinks_sooner() -> None:
    unsure, half, sure = (Hold(300.0, 30.0) for _ in range(3))
    for hold in (unsure, half, sure):
        hold(5, now_s=0.0)
    assert [unsure(2, 31.0, 0.0), half(2, 31.0, 0.5), sure(2, 31.0, 1.0)] == [5, 5, 2]
    assert [unsure(2, 166.0, 0.0), half(2, 166.0, 0.5)] == [5, 2]
    assert Hold(10.0, 30.0)(1, 0.0, 1.0) == 1, "never longer than the longest"


def test_a_forgotten_hold_lets_go() -> None:
    hold = Hold(60.0, 20.0)
    hold(5, now_s=0.0)
    hold.forget()
    assert hold(1, now_s=1.0) == 1
