"""The report of ``validate silicon``: errors of all rows, of undoubted rows, and of each model, system and engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from pdplugins.errors import ConfigError
from pdplugins.studies.validate.fitting import Errors, fit, halves, misfit
from pdplugins.studies.validate.places import Places, places_of
from pdplugins.studies.validate.rows import Row, Skipped
from pdplugins.studies.validate.silicon import Coefficients, Felt, Setup, kv_tokens_of, refusal, simulate
from pdplugins.studies.validate.sources import SOURCES

Pairs = Sequence[tuple[Row, Felt]]
GROUPS = ("model", "system", "engine", "source")
NAMELESS = "a row without an id"
FRONTENDS_S = tuple(round(0.005 * step, 3) for step in range(7))
"""Times of the frontend that are tried, 0 to 30 ms."""


def split(rows: Iterable[Row], skipped: Skipped) -> tuple[list[Row], Skipped]:
    """Return the rows that can be simulated, and `skipped` with those that cannot."""
    usable: list[Row] = []
    reasons: Skipped = defaultdict(list, skipped)
    for row in rows:
        if (why := refusal(row)) is None:
            usable.append(row)
        else:
            reasons[why].append(row.id or NAMELESS)
    return usable, dict(reasons)


def predict(rows: Iterable[Row], setup: Setup, seed: int = 0) -> list[Felt]:
    """Simulate every row."""
    return [simulate(row, setup, seed) for row in rows]


def fitted(rows: Sequence[Row], setup: Setup, seed: int = 0, start: Coefficients | None = None) -> Setup:
    """Return `setup` with coefficients fitted to the undoubted ones of `rows`. Raises ConfigError without any.

    :param start: see `fit`.
    """
    clean = [row for row in rows if row.doubt is None]
    if not clean:
        raise ConfigError("validate silicon: no row to fit the coefficients on; give a file with more rows")
    found = fit(
        _measured(clean),
        lambda coefficients: predict(clean, replace(setup, coefficients=coefficients), seed),
        start,
    )
    return replace(setup, coefficients=found)


def read_off(rows: Sequence[Row]) -> tuple[Setup, dict[str, Places]]:
    """Return the setup that the places of the undoubted ones of `rows` give, and what they say of each source."""
    places = places_of([row for row in rows if row.doubt is None], kv_tokens_of)
    return Setup(one_less=frozenset(source for source, found in places.items() if found.one_less)), places


def silicon(rows: Sequence[Row], seed: int) -> tuple[dict[str, Any], Setup]:
    """Fit on a random half of the rows, and report the errors on the other half. Also return what was fitted."""
    fit_rows, report_rows = _halves(rows, seed)
    found, places = read_off(fit_rows)
    setup = fitted(fit_rows, found, seed)
    pairs = _simulated(report_rows, setup, seed)
    report = {
        **_of_all(pairs),
        "reported_on": "the half of the rows on which nothing was fitted",
        "coefficients": asdict(setup.coefficients),
        "places": {source: {**asdict(said), "one_less": said.one_less} for source, said in places.items()},
        "fitted_rows": sum(row.doubt is None for row in fit_rows),
        "fit_half": summary(_simulated(fit_rows, setup, seed)),
        "points": [_point(row, felt) for row, felt in pairs],
        "sources": {name: asdict(source) for name, source in SOURCES.items()},
    }
    return report, setup


def unseen(rows: Iterable[Row], seen: Sequence[Row], setup: Setup, seed: int) -> dict[str, Any]:
    """Report the errors on the rows that are not among `seen`, under that name or another one."""
    names, values = {row.id for row in seen if row.id}, {(row.ttft_s, row.tpot_s) for row in seen}
    new = [row for row in rows if row.id not in names and (row.ttft_s, row.tpot_s) not in values]
    pairs = _simulated(new, setup, seed)
    return {**_of_all(pairs), "points": [_point(row, felt) for row, felt in pairs]}


def leave_one_out(rows: Sequence[Row], setup: Setup, seed: int) -> dict[str, Any]:
    """For each model: fit on the rows of all other models, if there are any, and report the errors on its own rows.

    :param setup: what `silicon` has fitted, where the search for each model begins.
    """
    found = {}
    for model in sorted({row.model for row in rows}):
        others = [row for row in rows if row.model != model]
        if all(row.doubt is not None for row in others):
            continue
        own = fitted(others, setup, seed, setup.coefficients)
        pairs = _simulated([row for row in rows if row.model == model], own, seed)
        found[model] = {**summary(pairs), "clean": _clean(pairs), "coefficients": asdict(own.coefficients)}
    return found


def frontend(rows: Sequence[Row], setup: Setup, seed: int) -> dict[str, Any]:
    """Fit the time of a frontend on one half of the rows, and report on the other half with it and without it."""
    fit_rows, report_rows = _halves(rows, seed)
    clean = [row for row in fit_rows if row.doubt is None]
    tried = {time_s: replace(setup, frontend_s=time_s) for time_s in FRONTENDS_S}
    costs = {time_s: misfit(_measured(clean), predict(clean, one, seed)) for time_s, one in tried.items()}
    best_s = min(costs, key=lambda time_s: costs[time_s])
    found: dict[str, Any] = {
        "request_s": best_s,
        "misfit_by_request_s": {str(time_s): round(cost, 2) for time_s, cost in costs.items()},
    }
    for name, one in (("without", setup), ("with", tried[best_s])):
        pairs = _simulated(report_rows, one, seed)
        found[name] = {**summary(pairs), "crowded_by_source": _crowded(pairs)}
    return found


def table(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the errors of a whole report as the lines of one table; groups without rows are left out."""
    lines = {"all rows of the report half": found, "those without doubt": found["clean"]}
    lines["the half that was fitted on"] = found["fit_half"]
    for name in GROUPS:
        lines |= {f"{name} {value}": figures for value, figures in found[f"by_{name}"].items()}
    for model, figures in found.get("leave_one_out", {}).items():
        lines[f"fitted without {model}, on it"] = figures
        lines[f"fitted without {model}, on its rows without doubt"] = figures["clean"]
    if "frontend" in found:
        lines[f"with a frontend of {1e3 * found['frontend']['request_s']:g} ms"] = found["frontend"]["with"]
    if "unseen" in found:
        lines |= {"rows never used": found["unseen"], "rows never used, without doubt": found["unseen"]["clean"]}
    return [{"what": what, **_flat(figures)} for what, figures in lines.items() if figures["rows"]]


def _flat(figures: dict[str, Any]) -> dict[str, Any]:
    parts = {"median": "median_abs_error", "p90": "p90_abs_error"}
    errors = {f"{metric}_{name}": figures[metric][key] for metric in ("ttft", "tpot") for name, key in parts.items()}
    return {"rows": figures["rows"], **errors}


def summary(pairs: Pairs) -> dict[str, Any]:
    """Return the number of rows, and the errors of both metrics."""
    ttft = Errors.of((felt.ttft_s for _, felt in pairs), (row.ttft_s for row, _ in pairs))
    tpot = Errors.of((felt.tpot_s for _, felt in pairs), (row.tpot_s for row, _ in pairs))
    return {"rows": len(pairs), "ttft": ttft.data(), "tpot": tpot.data()}


def grouped(pairs: Pairs, name: str) -> dict[str, Any]:
    """Return the summary of each value of one attribute of the rows."""
    values = sorted({getattr(row, name) for row, _ in pairs})
    return {value: summary([pair for pair in pairs if getattr(pair[0], name) == value]) for value in values}


def _of_all(pairs: Pairs) -> dict[str, Any]:
    return {
        **summary(pairs),
        "clean": _clean(pairs),
        **{f"by_{name}": grouped(pairs, name) for name in GROUPS},
        "clean_by_source": grouped([pair for pair in pairs if pair[0].doubt is None], "source"),
        "crowded_by_source": _crowded(pairs),
        "doubts": _doubts(pairs),
    }


def _clean(pairs: Pairs) -> dict[str, Any]:
    return summary([pair for pair in pairs if pair[0].doubt is None])


def _crowded(pairs: Pairs) -> dict[str, Any]:
    return grouped([(row, felt) for row, felt in pairs if row.crowded and row.doubt is None], "source")


def _halves(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    fit_half, report_half = halves(len(rows), seed)
    return [rows[place] for place in fit_half], [rows[place] for place in report_half]


def _measured(rows: Iterable[Row]) -> list[Felt]:
    return [Felt(row.ttft_s, row.tpot_s) for row in rows]


def _simulated(rows: Sequence[Row], setup: Setup, seed: int) -> Pairs:
    return list(zip(rows, predict(rows, setup, seed), strict=True))


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
