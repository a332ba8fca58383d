"""The cap transaction by itself: what may be written when."""

from __future__ import annotations

import pytest

from pdplugins.power.transaction import CapTransaction


def opened(*caps_w: float, budget_w: float | None = None, kept_w: float = 0.0) -> CapTransaction[int]:
    caps: CapTransaction[int] = CapTransaction(budget_w)
    for key, cap_w in enumerate(caps_w):
        caps.open(key, cap_w, kept_w)
    return caps


def written(caps: CapTransaction[int]) -> dict[int, float]:
    """Write what is due, and let the devices take it at once."""
    due = dict(caps.due())
    for key, cap_w in due.items():
        caps.writes(key, cap_w)
        caps.has(key, cap_w)
    return due


@pytest.mark.parametrize("budget_w", [None, 1000.0])
def test_a_cap_rises_once_the_lowered_one_is_obeyed(budget_w: float | None) -> None:
    caps = opened(600, 400, budget_w=budget_w)
    caps.aim({0: 400, 1: 600})
    assert written(caps) == {0: 400}
    assert written(caps) == {}
    assert caps.kept_w == 1000
    caps.obeys(0)
    assert written(caps) == {1: 600}
    assert caps.complete


def test_watts_that_the_budget_has_left_are_given_at_once() -> None:
    caps = opened(600, 400, budget_w=1300)
    caps.aim({0: 500, 1: 600})
    assert written(caps) == {0: 500, 1: 600}


def test_a_write_under_way_counts_as_both_caps_until_the_device_has_told() -> None:
    caps = opened(400, 400, budget_w=1000)
    caps.writes(0, 600)
    assert caps.kept_w == 1000
    caps.failed(0)
    caps.aim({0: 500, 1: 500})
    assert caps.due() == []
    caps.has(0, 400)
    assert caps.kept_w == 1000
    caps.obeys(0)
    assert sorted(caps.due()) == [(0, 500), (1, 500)]


def test_rolled_back_every_device_gets_the_cap_that_all_obeyed_last() -> None:
    caps = opened(600, 400, budget_w=1000)
    caps.aim({0: 400, 1: 600})
    written(caps)
    caps.aim({0: 300, 1: 700})
    written(caps)
    caps.roll_back()
    assert written(caps) == {0: 600}
    assert {key: one.told_w for key, one in caps.accounts.items()} == {0: 600, 1: 400}
    assert caps.complete


def test_who_is_over_the_budget_at_the_start_only_falls() -> None:
    caps = opened(700, 700, budget_w=1000, kept_w=700)
    caps.aim({0: 600, 1: 400})
    assert written(caps) == {0: 600, 1: 400}
    caps.obeys(1)
    caps.aim({0: 500, 1: 500})
    assert written(caps) == {0: 500}
    caps.obeys(0)
    assert written(caps) == {1: 500}


def test_a_device_that_draws_more_than_its_cap_counts_with_its_draw() -> None:
    caps = opened(400, 400, budget_w=1000)
    caps.draws(0, 700)
    caps.aim({1: 500})
    assert caps.due() == []


def test_caps_within_the_grain_are_the_same() -> None:
    caps: CapTransaction[str] = CapTransaction(1000.0, grain_w=0.5)
    caps.open("a", 400.2)
    caps.aim({"a": 400.0})
    assert caps.due() == []
    assert caps.complete


def test_a_device_that_is_gone_gives_its_watts_back() -> None:
    caps = opened(600, 400, budget_w=1000)
    caps.close(0)
    caps.aim({1: 1000})
    assert caps.due() == [(1, 1000)]
