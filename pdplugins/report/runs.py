"""The report of runs, simulated or measured: what clients got, why, when, and what made it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from pdplugins import verdict
from pdplugins.contracts.request import Slo
from pdplugins.report.charts import charts
from pdplugins.report.html import Html, element, together
from pdplugins.report.layout import Page, Section, document, hidden, origin, shares, swatch, table
from pdplugins.report.ranking import DISTRIBUTION, Run, best_of, columns, latencies, unlike
from pdplugins.report.svg import figure
from pdplugins.results import Result

MOST_DECISIONS = 300
"""Most rows in the table of decisions. The JSON result has all of them."""
MOST_CONFIGS = 24
"""Most configs that are shown whole."""


def page(runs: Sequence[Run], more: Sequence[str] = ()) -> str:
    """Return the report of `runs` as one HTML file.

    :param more: lines that the verdict ends with.
    """
    first = runs[0].result
    slo = Slo(first.config["slo"]["ttft_s"], first.config["slo"]["tpot_s"])
    alone = len(runs) == 1
    why = verdict.lines(runs[0].missed, slo) if alone and runs[0].missed is not None else []
    warnings = [*(["Interrupted: only the requests that had ended by then."] if _cut(runs) else []), *unlike(runs)]
    said = _said_of_one(runs[0], slo) if alone else _said_of_all(runs, slo)
    return document(
        Page(
            said,
            lines=[*why, *more],
            facts=_facts(runs[0]) if alone else {},
            warnings=warnings,
            sections=list(_sections(runs, slo)),
        )
    )


def _cut(runs: Sequence[Run]) -> bool:
    return any(run.result.interrupted for run in runs)


def _share(result: Result) -> str:
    value = result.metrics.slo_attainment
    return "n/a" if value is None else f"{value:.2%}"


def _objectives(slo: Slo) -> str:
    return f"TTFT {slo.ttft_s:g} s and TPOT {1e3 * slo.tpot_s:g} ms"


def _said_of_one(run: Run, slo: Slo) -> str:
    total = run.result.requests.total
    return f"{run.name}: {_share(run.result)} of {total:,} requests inside {_objectives(slo)}"


def _said_of_all(runs: Sequence[Run], slo: Slo) -> str:
    known = [run for run in runs if run.result.metrics.slo_attainment is not None]
    most = max((run.result.metrics.slo_attainment or 0.0 for run in known), default=0.0)
    best = [run.name for run in known if run.result.metrics.slo_attainment == most]
    total = runs[0].result.requests.total
    has = "has" if len(best) == 1 else "have"
    names = ", ".join(best[:5]) + (f" and {len(best) - 5} more" if len(best) > 5 else "")
    return f"{names} {has} most of {total:,} requests inside {_objectives(slo)}: {most:.2%}"


def _facts(run: Run) -> dict[str, object]:
    requests = run.result.requests
    counts = {"requests": f"{requests.total:,}", "failed": requests.failed}
    names = {"SLO att. %": "SLO attainment %", "P99 s": "TTFT P99 s", "P99 ms": "TPOT P99 ms"}
    return {names.get(column.title, column.title): column.text(run.result) for column in columns([run])} | counts


def _sections(runs: Sequence[Run], slo: Slo) -> Iterator[Section]:
    if len(runs) > 1:
        yield Section("SLO attainment", _attained(runs))
        yield Section("All metrics", _metrics(runs))
    else:
        yield Section("Latencies", _latencies(runs[0].result))
    series = {run.name: run.series for run in runs if run.series is not None}
    if series:
        drawn = [figure(chart) for chart in charts(series, slo)]
        yield Section("Over time, and distributions", element("div", drawn, class_="charts"))
    yield Section("Decisions", _decisions(runs))
    yield Section("Settings and origin", _origin(runs))


def _attained(runs: Sequence[Run]) -> Html:
    def said(run: Run) -> str:
        why = "" if run.missed is None else f", {verdict.shortly(run.missed)}"
        return f"{_share(run.result)}, {run.result.metrics.gpu_hours:.2f} GPU-hours{why}"

    return shares((run.name, run.result.metrics.slo_attainment, said(run)) for run in runs)


def _metrics(runs: Sequence[Run]) -> Html:
    shown = columns(runs)
    best = best_of({run.name: run.result for run in runs})
    head = ["config", "requests", "failed", *(column.title for column in shown)]
    rows = []
    for index, run in enumerate(runs):
        cells = [
            element("strong", text, class_="best") if run.name in best[column.key] else text
            for column in shown
            for text in (column.text(run.result),)
        ]
        requests = run.result.requests
        rows.append((together((swatch(index), run.name)), requests.total, requests.failed, *cells))
    return table("Every metric; the best of each is bold", head, rows)


def _latencies(result: Result) -> Html:
    title = "Time to first token, per output token and between tokens"
    return table(title, ["latency", *DISTRIBUTION], latencies(result))


def _decisions(runs: Sequence[Run]) -> Html:
    rows = sorted(
        (change.at_s, run.name, change.prefill, change.decode, change.reason)
        for run in runs
        for change in run.result.scaling
    )
    if not rows:
        return element("p", "No policy changed the pools.")
    note = f"{len(rows)} changes of the pools" + (
        f"; the first {MOST_DECISIONS}." if len(rows) > MOST_DECISIONS else ""
    )
    body = [(f"{at_s:.1f}", *rest) for at_s, *rest in rows[:MOST_DECISIONS]]
    return table(note, ["time, s", "config", "prefill", "decode", "why"], body, prose=True)


def _origin(runs: Sequence[Run]) -> Html:
    result = runs[0].result
    configs = [hidden(f"config of {run.name}", element("pre", _config(run))) for run in runs[:MOST_CONFIGS]]
    return together((origin(_facts_of(result)), configs))


def _facts_of(result: Result) -> dict[str, Any]:
    config = result.config
    run = config.get("run") or config.get("replay") or {}
    return {
        "kind": result.kind,
        "trace": run.get("trace", "n/a"),
        "profile": config["deployment"]["profile"],
        "GPUs": config["deployment"]["gpu_budget"],
        "SLO": f"TTFT {config['slo']['ttft_s']:g} s, TPOT {1e3 * config['slo']['tpot_s']:g} ms",
        "seed": "n/a" if result.seed is None else result.seed,
        "command": element("code", result.command),
        "commit": result.commit,
        "versions": result.versions,
    } | ({"note": run["note"]} if "note" in run else {})


def _config(run: Run) -> str:
    return str(yaml.safe_dump(run.result.config, sort_keys=False, allow_unicode=True))
