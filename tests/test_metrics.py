"""The definitions of the metrics, on numbers small enough to check by hand."""

from __future__ import annotations

import math

import pytest

from pdplugins import metrics
from pdplugins.types import Slo


def test_the_first_token_is_no_part_of_the_time_per_output_token() -> None:
    assert metrics.tpot_s(1.5, 4) == 0.5
    assert metrics.tpot_s(0.0, 1) == 0.0


def test_a_request_is_inside_when_it_meets_both_objectives_and_not_when_it_has_no_time() -> None:
    ttft_s, tpot_s = [1.0, 1.0, 1.1, math.nan], [0.1, 0.2, 0.1, 0.1]
    assert metrics.inside(ttft_s, tpot_s, Slo(1.0, 0.1)).tolist() == [True, False, False, False]


def test_shares_and_rates_of_an_empty_run() -> None:
    assert metrics.attainment(1, 4) == 0.25
    assert metrics.attainment(0, 0) is None
    assert metrics.per_second(6, 3.0) == 2.0
    assert metrics.per_second(6, 0.0) == 0.0


def test_a_distribution_interpolates_between_samples() -> None:
    assert metrics.distribution([4.0, 1.0, 2.0, 3.0]) == pytest.approx((2.5, 2.5, 3.7, 3.97))
    assert metrics.distribution([]) is None


def test_weights_count_as_so_many_samples() -> None:
    found = metrics.weighted_distribution([3.0, 1.0, 2.0], [1, 90, 9])
    assert found == pytest.approx((1.11, 1.0, 1.0, 2.0))
    assert metrics.weighted_distribution([], []) is None
