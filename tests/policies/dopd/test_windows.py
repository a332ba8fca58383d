"""Windows that are shorter than an interval, gathered until they are as long."""

from __future__ import annotations

import pytest

from pdplugins.policies.dopd.windows import Windows, together
from pdplugins.types import Traffic


def test_short_windows_make_a_whole_one() -> None:
    windows, whole = Windows(5.0), []
    for _ in range(15):
        so_far = windows.add(Traffic(1.0, 2.0, 100.0, 10.0))
        if windows.take(so_far):
            whole.append(so_far)
    assert [(one.window_s, one.requests, one.rate) for one in whole] == [(5.0, 10.0, 2.0)] * 3


def test_a_clock_that_is_a_little_early_makes_no_window_of_two_intervals() -> None:
    windows = Windows(5.0)
    assert windows.take(windows.add(Traffic(4.9, 2.0)))


def test_a_window_of_the_whole_interval_is_passed_on_as_it_is() -> None:
    window, windows = Traffic(5.0, 3.0, 100.0), Windows(5.0)
    assert windows.add(window) is window
    assert windows.take(window)


def test_means_are_weighted_and_what_nobody_tells_stays_unknown() -> None:
    made = together([Traffic(1.0, 3.0, 100.0), Traffic(1.0, 1.0, 500.0, 20.0), Traffic(1.0, 0.0)])
    assert made.isl_tokens == pytest.approx(200.0)
    assert made.osl_tokens == 20.0
    assert made.ttft_s is None
