"""Fits four coefficients on one half of the rows, and reports the errors on the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from pdplugins.errors import ConfigError
from pdplugins.studies.measured.rows import Row, Skipped
from pdplugins.studies.measured.simulate import EFFECTS, Coefficients, Felt, refusal, simulate, touches
from pdplugins.studies.validate.fitting import Errors
from pdplugins.studies.validate.report import NAMELESS

Floats = NDArray[np.float64]
BARS = np.array([0.18, 0.08])
"""Errors of TTFT and TPOT that weigh the same in the fit: the bars over all rows."""
FITTED = ("kernels", "launch_ms", "request_ms", "handoff_ms")
"""The coefficients that are fitted. The acceptance of guesses stays at its default."""
STEPS = np.array([0.05, 0.15, 10.0, 50.0])
"""Changes of the coefficients for the finite differences of the fit."""
BOUNDS = (np.array([0.7, 0.0, 0.0, 0.0]), np.array([2.0, 5.0, 1000.0, 1000.0]))
ROUNDS = 2
SOFT = 0.5
"""Errors, in units of their bar, from which on the fit counts them less than squared."""
GROUPS = ("mode", "model", "system", "engine", "speculative", "source")


def split(rows: Sequence[Row], skipped: Skipped) -> tuple[list[Row], Skipped]:
    """Return the rows that can be simulated, and `skipped` with those that cannot."""
    reasons = {why: list(ids) for why, ids in skipped.items()}
    usable = []
    for row in rows:
        if (why := refusal(row)) is None:
            usable.append(row)
        else:
            reasons.setdefault(why, []).append(row.id or NAMELESS)
    return usable, reasons


def fit(rows: Sequence[Row], seed: int) -> Coefficients:
    """Return the coefficients that bring the simulator closest to `rows`.

    A Gauss-Newton fit: logarithms of the predictions are linearised in the coefficients, and the sum of soft absolute
    errors is minimised, so outliers count little. The TTFT of a row without a warm-up does not count.
    Raises ConfigError without rows.
    """
    if not rows:
        raise ConfigError("validate measured: no row to fit the coefficients on; give a file with more rows")
    want = _logs([Felt(row.ttft_s, row.tpot_s) for row in rows])
    counts = np.array([[row.warm, True] for row in rows])
    found = np.array([getattr(Coefficients(), name) for name in FITTED])

    def logs(values: Floats) -> Floats:
        return _logs(predict(rows, _coefficients(values), seed))

    for _ in range(ROUNDS):
        here = logs(found)
        slopes = np.stack([(logs(found + step) - here) / step.sum() for step in np.diag(STEPS)], axis=-1)

        def residuals(change: Floats, here: Floats = here, slopes: Floats = slopes) -> Floats:
            errors: Floats = counts * (here + slopes @ change - want) / BARS
            return errors.ravel()

        low, high = BOUNDS[0] - found, BOUNDS[1] - found
        still = np.clip(np.zeros(len(found)), low + 1e-6, high - 1e-6)
        best = least_squares(residuals, still, bounds=(low, high), loss="soft_l1", f_scale=SOFT, x_scale=STEPS)
        found = found + best.x
    return _coefficients(found.round(4))


def _coefficients(values: Floats) -> Coefficients:
    return Coefficients(**{name: float(value) for name, value in zip(FITTED, values, strict=True)})


def predict(rows: Sequence[Row], coefficients: Coefficients, seed: int) -> list[Felt]:
    """Simulate every row."""
    return [simulate(row, coefficients, seed) for row in rows]


def report(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    """Return what was fitted on one half, and the errors on both."""
    fitted, held = [row for row in rows if row.fitted], [row for row in rows if not row.fitted]
    coefficients = fit(fitted, seed)
    felt = predict(held, coefficients, seed)
    found = {
        **_errors(held, felt),
        "coefficients": asdict(coefficients),
        "fitted_rows": len(fitted),
        "fit_half": _errors(fitted, predict(fitted, coefficients, seed)),
        **{f"by_{name}": _grouped(held, felt, name) for name in GROUPS},
        "effects": [_effect(effect, held, felt, coefficients, seed) for effect in EFFECTS],
        "points": [_point(row, one) for row, one in zip(held, felt, strict=True)],
    }
    return {**found, "table": _table(found)}


def _effect(
    effect: str, rows: Sequence[Row], felt: Sequence[Felt], coefficients: Coefficients, seed: int
) -> dict[str, Any]:
    """Return the errors of the rows that one effect has a part in, with it and without."""
    own = [(row, one) for row, one in zip(rows, felt, strict=True) if touches(effect, row)]
    touched = [row for row, _ in own]
    errors = {
        "with": _errors(touched, [one for _, one in own]),
        "without": _errors(touched, [simulate(row, coefficients, seed, effect) for row in touched]),
    }
    return {
        "effect": EFFECTS[effect],
        "rows": len(touched),
        **{
            f"{metric}_{how}": found[metric]["median_abs_error"]
            for how, found in errors.items()
            for metric in ("ttft", "tpot")
        },
    }


def counted(skipped: Skipped) -> list[dict[str, Any]]:
    """Return how many rows each reason leaves out, the most first."""
    return [{"why": why, "rows": len(ids)} for why, ids in sorted(skipped.items(), key=lambda one: -len(one[1]))]


def _errors(rows: Sequence[Row], felt: Sequence[Felt]) -> dict[str, Any]:
    ttft = Errors.of((one.ttft_s for one in felt), (row.ttft_s for row in rows))
    tpot = Errors.of((one.tpot_s for one in felt), (row.tpot_s for row in rows))
    return {"rows": len(rows), "ttft": ttft.data(), "tpot": tpot.data()}


def _grouped(rows: Sequence[Row], felt: Sequence[Felt], name: str) -> dict[str, Any]:
    pairs = list(zip(rows, felt, strict=True))
    found = {}
    for value in sorted({getattr(row, name) for row in rows}):
        own = [(row, one) for row, one in pairs if getattr(row, name) == value]
        found[value] = _errors([row for row, _ in own], [one for _, one in own])
    return found


def _table(found: dict[str, Any]) -> list[dict[str, Any]]:
    lines = {"all rows of the report half": found, "the half that was fitted on": found["fit_half"]}
    for name in GROUPS:
        lines |= {f"{name} {value}": figures for value, figures in found[f"by_{name}"].items()}
    parts = {"median": "median_abs_error", "p90": "p90_abs_error"}
    return [
        {"what": what, "rows": figures["rows"]}
        | {f"{metric}_{part}": figures[metric][key] for metric in ("ttft", "tpot") for part, key in parts.items()}
        for what, figures in lines.items()
        if figures["rows"]
    ]


def _point(row: Row, felt: Felt) -> dict[str, Any]:
    return {
        "id": row.id,
        "source": row.source,
        "mode": row.mode,
        "pools": [row.pools.prefill, row.pools.decode],
        "draft_tokens": row.pools.draft_tokens,
        "clients": row.clients,
        "isl_tokens": row.isl_tokens,
        "osl_tokens": row.osl_tokens,
        "ttft_ms": [round(1e3 * row.ttft_s, 2), round(1e3 * felt.ttft_s, 2)],
        "tpot_ms": [round(1e3 * row.tpot_s, 3), round(1e3 * felt.tpot_s, 3)],
    }


def _logs(felt: Sequence[Felt]) -> Floats:
    return np.log([[max(each.ttft_s, 1e-6), max(each.tpot_s, 1e-6)] for each in felt])
