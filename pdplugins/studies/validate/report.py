"""The report of ``validate silicon``: errors of all rows, of undoubted rows, and of each model, system and engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from pdplugins.errors import ConfigError
from pdplugins.studies.validate.fitting import Errors, fit, halves
from pdplugins.studies.validate.rows import Row
from pdplugins.studies.validate.silicon import Coefficients, Felt, refusal, simulate
from pdplugins.studies.validate.sources import CANDIDATES, ENGINES, PROTOCOLS, Protocol

Pairs = Sequence[tuple[Row, Felt]]


def split(rows: Iterable[Row]) -> tuple[list[Row], dict[str, list[str]]]:
    """Return the rows that can be simulated, and by reason the ids of the rows that cannot."""
    usable: list[Row] = []
    skipped: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if (why := refusal(row)) is None:
            usable.append(row)
        else:
            skipped[why].append(row.id)
    return usable, dict(skipped)


def predict(rows: Iterable[Row], coefficients: Coefficients, seed: int = 0) -> list[Felt]:
    """Simulate every row with the protocol of its source."""
    return [simulate(row, PROTOCOLS[row.source], coefficients, seed) for row in rows]


def fitted(rows: Sequence[Row], seed: int = 0) -> Coefficients:
    """Fit the coefficients to the undoubted ones of `rows`. Raises ConfigError when there are none."""
    clean = [row for row in rows if row.doubt is None]
    if not clean:
        raise ConfigError("validate silicon: no row to fit the coefficients on; give a file with more rows")
    return fit([Felt(row.ttft_s, row.tpot_s) for row in clean], lambda coefficients: predict(clean, coefficients, seed))


def silicon(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    """Fit on a random half of the rows, and report the errors on the other half."""
    fit_half, report_half = halves(len(rows), seed)
    coefficients = fitted([rows[place] for place in fit_half], seed)
    pairs = _simulated([rows[place] for place in report_half], coefficients, seed)
    return {
        **summary(pairs),
        "reported_on": "the half of the rows that the coefficients were not fitted on",
        "coefficients": asdict(coefficients),
        "fitted_rows": sum(rows[place].doubt is None for place in fit_half),
        "clean": summary([pair for pair in pairs if pair[0].doubt is None]),
        **{f"by_{name}": grouped(pairs, name) for name in ("model", "system", "engine", "source")},
        "clean_by_source": grouped([pair for pair in pairs if pair[0].doubt is None], "source"),
        "doubts": _doubts(pairs),
        "fit_half": summary(_simulated([rows[place] for place in fit_half], coefficients, seed)),
        "points": [_point(row, felt) for row, felt in pairs],
        "protocols": {name: asdict(protocol) for name, protocol in PROTOCOLS.items()},
        "engines": {name: asdict(kind) for name, kind in ENGINES.items()},
    }


def leave_one_out(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    """For each model: fit on the rows of all other models, and report the errors on its own rows."""
    found = {}
    for model in sorted({row.model for row in rows}):
        coefficients = fitted([row for row in rows if row.model != model], seed)
        pairs = _simulated([row for row in rows if row.model == model], coefficients, seed)
        clean = summary([pair for pair in pairs if pair[0].doubt is None])
        found[model] = {**summary(pairs), "clean": clean, "coefficients": asdict(coefficients)}
    return found


def chosen(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    """For each source: return which of `CANDIDATES` best fits those of its rows that coefficients are fitted on."""
    fit_half, _ = halves(len(rows), seed)
    half = [rows[place] for place in fit_half]
    found = {}
    for source in sorted({row.source for row in half}):
        own = [row for row in half if row.source == source]
        clean = [row for row in own if row.doubt is None]
        found[source] = asdict(choose(clean or own, CANDIDATES, Coefficients()))
    return found


def choose(rows: Sequence[Row], candidates: Sequence[Protocol], coefficients: Coefficients) -> Protocol:
    """Return the protocol with the smallest errors on `rows` of one source. Errors are relative to a metric's bar."""

    def score(protocol: Protocol) -> float:
        pairs = [(row, simulate(row, protocol, coefficients)) for row in rows]
        found = summary(pairs)
        return float(found["ttft"]["median_abs_error"] / 0.20 + found["tpot"]["median_abs_error"] / 0.10)

    return min(candidates, key=score)


def summary(pairs: Pairs) -> dict[str, Any]:
    """Return the number of rows, and the errors of both metrics."""
    ttft = Errors.of((felt.ttft_s for _, felt in pairs), (row.ttft_s for row, _ in pairs))
    tpot = Errors.of((felt.tpot_s for _, felt in pairs), (row.tpot_s for row, _ in pairs))
    return {"rows": len(pairs), "ttft": ttft.data(), "tpot": tpot.data()}


def grouped(pairs: Pairs, name: str) -> dict[str, Any]:
    """Return the summary of each value of one attribute of the rows."""
    values = sorted({getattr(row, name) for row, _ in pairs})
    return {value: summary([pair for pair in pairs if getattr(pair[0], name) == value]) for value in values}


def _simulated(rows: Sequence[Row], coefficients: Coefficients, seed: int) -> Pairs:
    return list(zip(rows, predict(rows, coefficients, seed), strict=True))


def _doubts(pairs: Pairs) -> dict[str, int]:
    reasons = [row.doubt for row, _ in pairs if row.doubt is not None]
    return {reason: reasons.count(reason) for reason in sorted(set(reasons))}


def _point(row: Row, felt: Felt) -> dict[str, Any]:
    return {
        "id": row.id,
        "source": row.source,
        "tp": row.tp,
        "clients": row.clients,
        "isl_tokens": row.isl_tokens,
        "osl_tokens": row.osl_tokens,
        "ttft_ms": [round(1e3 * row.ttft_s, 2), round(1e3 * felt.ttft_s, 2)],
        "tpot_ms": [round(1e3 * row.tpot_s, 3), round(1e3 * felt.tpot_s, 3)],
        "doubt": row.doubt,
    }
