"""Fits the three coefficients to some rows, and measures errors on others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from pdplugins.studies.validate.silicon import Coefficients, Felt

Floats = NDArray[np.float64]
Predict = Callable[[Coefficients], Sequence[Felt]]
BARS = np.array([0.20, 0.10])
"""Errors of TTFT and TPOT that weigh the same in the fit: the largest acceptable error of each."""
STEPS = np.array([0.05, 0.05, 0.3])
"""Changes of the coefficients for the finite differences of the fit."""
BOUNDS = ([0.7, 0.7, 0.0], [1.4, 1.4, 5.0])
ROUNDS = 3
SOFT = 0.5
"""Errors, in units of their bar, from which on the fit counts them less than squared."""


def halves(count: int, seed: int) -> tuple[list[int], list[int]]:
    """Return the indexes of the rows to fit on and of those to report: two random halves."""
    order = list(range(count))
    random.Random(seed).shuffle(order)  # noqa: S311 - a split of rows
    return sorted(order[: count // 2]), sorted(order[count // 2 :])


def fit(measured: Sequence[Felt], predict: Predict, start: Coefficients | None = None) -> Coefficients:
    """Return the coefficients that bring `predict` closest to `measured`.

    This is a Gauss-Newton fit: logarithms of the predictions are linearised in the coefficients, and the sum of soft
    absolute errors is minimised, so outliers count little. An iteration costs four simulations of all rows.

    :param start: coefficients that are close already, so that one iteration is enough; None for those of the profiles.
    """
    want = _logs(measured)
    found = np.array(astuple(start or Coefficients()))
    for _ in range(1 if start else ROUNDS):
        here = _logs(predict(Coefficients(*found)))
        slopes = np.stack(
            [(_logs(predict(Coefficients(*(found + step)))) - here) / step.sum() for step in np.diag(STEPS)], axis=-1
        )

        def residuals(change: Floats, here: Floats = here, slopes: Floats = slopes) -> Floats:
            errors: Floats = (here + slopes @ change - want) / BARS
            return errors.ravel()

        low, high = np.array(BOUNDS[0]) - found, np.array(BOUNDS[1]) - found
        still = np.clip(np.zeros(3), low + 1e-6, high - 1e-6)
        found = found + least_squares(residuals, still, bounds=(low, high), loss="soft_l1", f_scale=SOFT).x
    return Coefficients(*(round(float(value), 4) for value in found))


def misfit(measured: Sequence[Felt], predicted: Sequence[Felt]) -> float:
    """Return what `fit` minimises: the sum of soft absolute errors."""
    errors = (_logs(predicted) - _logs(measured)) / BARS
    return float(2 * SOFT**2 * (np.sqrt(1 + (errors / SOFT) ** 2) - 1).sum())


def _logs(felt: Sequence[Felt]) -> Floats:
    return np.log([[max(each.ttft_s, 1e-6), max(each.tpot_s, 1e-6)] for each in felt])


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of one metric: predicted over measured, minus one."""

    values: tuple[float, ...]

    @staticmethod
    def of(predicted: Iterable[float], measured: Iterable[float]) -> Errors:
        """Compare two rows of numbers."""
        return Errors(tuple(p / m - 1.0 for p, m in zip(predicted, measured, strict=True)))

    def data(self) -> dict[str, Any]:
        """Return the figures of a report, all of them fractions."""
        absolute = sorted(abs(value) for value in self.values)
        if not absolute:
            return {"median_abs_error": None, "mean_abs_error": None, "p90_abs_error": None, "median_error": None}
        figures = {
            "median_abs_error": median(absolute),
            "mean_abs_error": fmean(absolute),
            "p90_abs_error": float(np.quantile(absolute, 0.9)),
            "median_error": median(self.values),
        }
        return {name: round(value, 4) for name, value in figures.items()}
