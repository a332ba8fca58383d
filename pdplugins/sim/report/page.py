"""The report as one HTML file, which includes its data, style and script."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pdplugins.contracts.request import Slo
from pdplugins.files import write_whole
from pdplugins.results import Result
from pdplugins.sim.report.charts import RUN_COLOURS, charts
from pdplugins.sim.report.ranking import Run, best_of, columns, unlike

TEMPLATE = Path(__file__).with_name("template.html")
MOST_DECISIONS = 2000
"""Most rows in the table of decisions. The JSON result has all of them."""


def write(runs: Sequence[Run], path: Path) -> None:
    """Write the report of `runs`. Each run must have its series."""
    write_whole(path, page(runs))


def page(runs: Sequence[Run]) -> str:
    """Return the report of `runs` as HTML."""
    first = runs[0].result
    slo = first.config["slo"]
    series = {run.name: run.series for run in runs if run.series is not None}
    data = {"charts": charts(series, Slo(slo["ttft_s"], slo["tpot_s"])), "decisions": _decisions(runs)}
    text = TEMPLATE.read_text(encoding="utf-8")
    parts = {
        "title": html.escape(", ".join(run.name for run in runs)),
        "facts": _facts(first) + "".join(f"<p class=warn>{html.escape(line)}</p>" for line in unlike(runs)),
        "summary": _summary(runs),
        "configs": "".join(_config(run) for run in runs),
        "decisions_note": _decisions_note(runs),
        # A policy's reason is arbitrary text, and must not end or begin a script element.
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    return text


def _facts(result: Result) -> str:
    deployment, run = result.config["deployment"], result.config["run"]
    facts = {
        "trace": run["trace"],
        "profile": deployment["profile"],
        "GPUs": deployment["gpu_budget"],
        "SLO": f"TTFT {result.config['slo']['ttft_s']:g} s, TPOT {1e3 * result.config['slo']['tpot_s']:g} ms",
        "seed": result.seed,
        "commit": result.commit,
        "pdplugins": result.versions.get("pdplugins", ""),
    }
    cells = "".join(f"<div><dt>{key}</dt><dd>{html.escape(str(value))}</dd></div>" for key, value in facts.items())
    command = f"<code>{html.escape(result.command)}</code>"
    warning = "<p class=warn>Interrupted: only the requests that had ended by then.</p>" if result.interrupted else ""
    return f"<p>{command}</p>{warning}<dl>{cells}</dl>"


def _summary(runs: Sequence[Run]) -> str:
    shown = columns(runs)
    best = best_of({run.name: run.result for run in runs})
    head = "".join(f"<th>{html.escape(column.title)}</th>" for column in shown)
    rows = []
    for index, run in enumerate(runs):
        colour = RUN_COLOURS[index % len(RUN_COLOURS)]
        cells = "".join(
            f"<td{' class=best' if run.name in best[column.key] else ''}>{html.escape(column.text(run.result))}</td>"
            for column in shown
        )
        name = f"<i style='background:{colour}'></i>{html.escape(run.name)}" if len(runs) > 1 else html.escape(run.name)
        requests = run.result.requests
        rows.append(f"<tr><th>{name}</th><td>{requests.total}</td><td>{requests.failed}</td>{cells}</tr>")
    return (
        f"<thead><tr><th>config</th><th>requests</th><th>failed</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    )


def _decisions(runs: Sequence[Run]) -> list[list[Any]]:
    rows = [
        [round(change.at_s, 3), run.name, change.prefill, change.decode, change.reason]
        for run in runs
        for change in run.result.scaling
    ]
    return sorted(rows)[:MOST_DECISIONS]


def _decisions_note(runs: Sequence[Run]) -> str:
    count = sum(len(run.result.scaling) for run in runs)
    if not count:
        return "No policy changed the pools."
    return f"{count} changes of the pools" + (f"; the first {MOST_DECISIONS}." if count > MOST_DECISIONS else ".")


def _config(run: Run) -> str:
    text = yaml.safe_dump(run.result.config, sort_keys=False, allow_unicode=True)
    return f"<details><summary>{html.escape(run.name)}: config</summary><pre>{html.escape(text)}</pre></details>"
