"""What pools are worth, by the models that size them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pdplugins.policies.dopd.worth import Worth

LOAD = Worth(work=3.0, dispersion_s=0.4, slack_s=1.8, concurrency=100.0, spread=14.0, cc_d=80.0)


def test_more_workers_are_worth_more_and_an_overload_nothing() -> None:
    shares = [LOAD.of(prefill, 3) for prefill in range(2, 8)]
    assert shares[:2] == [0.0, 0.0]
    assert shares == sorted(shares)
    assert shares[-1] > 0.97
    assert LOAD.of(6, 1) < 0.1 < LOAD.of(6, 2)


def test_waits_are_exponential_with_the_mean_of_eq_10() -> None:
    """The mean of a wait that is zero with probability 1 - rho is W_q = rho / (1 - rho) * D / 2."""
    rho, step_s = 3.0 / 4, 0.01
    misses = [1 - replace(LOAD, slack_s=step_s * at, concurrency=0.0).of(4, 3) for at in range(3000)]
    assert sum(misses) * step_s == pytest.approx(rho / (1 - rho) * 0.4 / 2, rel=0.03)


def test_a_load_without_spread_fits_or_not() -> None:
    flat = replace(LOAD, dispersion_s=0.0, spread=0.0)
    assert [flat.of(4, decode) for decode in (1, 2)] == [0.0, 1.0]
    assert math.isfinite(replace(LOAD, work=0.0).of(1, 1))
