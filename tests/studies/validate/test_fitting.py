"""The fit finds what was put in, outliers or not, and errors are what their names say."""

from __future__ import annotations

import random

import pytest

from pdplugins.studies.validate.fitting import Errors, fit, halves, misfit
from pdplugins.studies.validate.silicon import Coefficients, Felt

KNOWN = Coefficients(prefill=1.15, decode=0.93, step_ms=0.8)
RNG = random.Random(7)
ROWS = [(RNG.uniform(20, 900), RNG.uniform(5, 60), RNG.uniform(1, 40)) for _ in range(60)]
"""Prefill ms, decode ms, and how many steps a prompt waits for."""


def predict(at: Coefficients) -> list[Felt]:
    steps = [at.decode * decode + at.step_ms for _, decode, _ in ROWS]
    return [
        Felt((at.prefill * prefill + at.step_ms + waits * step) / 1e3, (step + 0.02 * at.prefill * prefill) / 1e3)
        for (prefill, _, waits), step in zip(ROWS, steps, strict=True)
    ]


def test_the_fit_recovers_known_coefficients() -> None:
    found = fit(predict(KNOWN), predict)
    assert (found.prefill, found.decode, found.step_ms) == pytest.approx((1.15, 0.93, 0.8), abs=2e-3)


def test_from_a_close_start_one_iteration_is_enough() -> None:
    asked = 0

    def counted(at: Coefficients) -> list[Felt]:
        nonlocal asked
        asked += 1
        return predict(at)

    found = fit(predict(KNOWN), counted, Coefficients(1.1, 0.95, 0.7))
    assert (found.prefill, found.decode, found.step_ms) == pytest.approx((1.15, 0.93, 0.8), abs=2e-2)
    assert asked == 4


def test_what_the_fit_minimises_is_least_at_what_it_finds() -> None:
    measured = predict(KNOWN)
    assert misfit(measured, predict(KNOWN)) == 0.0
    near, far = (misfit(measured, predict(Coefficients(c, 0.93, 0.8))) for c in (1.2, 1.3))
    assert 0 < near < far


def test_rows_that_no_model_explains_hardly_move_the_fit() -> None:
    measured = [Felt(4 * f.ttft_s, f.tpot_s / 3) if n % 8 == 0 else f for n, f in enumerate(predict(KNOWN))]
    found = fit(measured, predict)
    assert found.prefill == pytest.approx(1.15, abs=0.05)
    assert found.decode == pytest.approx(0.93, abs=0.05)


def test_halves_are_drawn_by_seed_and_share_no_row() -> None:
    first, second = halves(101, seed=3)
    assert sorted(first + second) == list(range(101))
    assert len(first) == 50
    assert halves(101, seed=3) == (first, second) != halves(101, seed=4)


def test_errors_are_fractions_of_what_was_measured() -> None:
    errors = Errors.of([1.1, 0.8, 3.0], [1.0, 1.0, 2.0]).data()
    assert errors["median_abs_error"] == pytest.approx(0.2)
    assert errors["median_error"] == pytest.approx(0.1)
    assert errors["mean_abs_error"] == pytest.approx(0.8 / 3, abs=1e-4)
    assert Errors(()).data()["median_abs_error"] is None
