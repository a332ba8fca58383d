"""Prints the results of simulated runs on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, OverflowMethod
from rich.markup import escape
from rich.table import Table

from pdplugins import verdict
from pdplugins.contracts.request import Slo
from pdplugins.report.ranking import DISTRIBUTION, Run, best_of, columns, latencies, unlike
from pdplugins.results import Result
from pdplugins.terminal import console

ANY_WIDTH = 10_000
"""A console width that any table fits into, because a console measures at most its own width."""


def show(runs: Sequence[Run]) -> None:
    """Print one run as its distributions, several as a table with the best of each column marked."""
    if len(runs) == 1:
        _show_one(runs[0])
        return
    _print(_comparison(runs))
    for line in unlike(runs):
        _print(line)
    for run in runs:
        _note(run.name, run.result)
        if run.missed is not None and run.missed.count:
            _print(f"{run.name} {verdict.shortly(run.missed)}")


def _comparison(runs: Sequence[Run]) -> Table:
    """Return a table with a row for each run, or a column for each where the terminal is too narrow."""
    best, shown = best_of({run.name: run.result for run in runs}), columns(runs)
    head = ["config", "failed", *(column.title for column in shown)]
    rows = [
        [escape(run.name), str(run.result.requests.failed)]
        + [f"[bold green]{c.text(run.result)}*[/]" if run.name in best[c.key] else c.text(run.result) for c in shown]
        for run in runs
    ]
    table = _table(head, rows)
    if Console(width=ANY_WIDTH).measure(table).minimum <= console().width:
        return table
    first, *others = zip(head, *rows, strict=True)
    return _table(first, others, overflow="fold")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], overflow: OverflowMethod = "ellipsis") -> Table:
    table = Table(box=None, header_style="bold")
    for index, title in enumerate(head):
        table.add_column(title, justify="right" if index else "left", no_wrap=not index, overflow=overflow)
    for row in rows:
        table.add_row(*row)
    return table


def _show_one(run: Run) -> None:
    result, metrics = run.result, run.result.metrics
    attainment = "n/a" if metrics.slo_attainment is None else f"{metrics.slo_attainment:.2%}"
    lines = [
        f"{run.name}: {result.requests.total} requests, {result.requests.failed} failed; SLO attainment {attainment}; "
        f"goodput {metrics.goodput_requests_per_s:.2f} requests/s, {metrics.goodput_tokens_per_s:.0f} tokens/s; "
        f"{metrics.gpu_hours:.2f} GPU-hours; {len(result.scaling)} changes of the pools; "
        f"{result.speed.requests_per_s or 0:.0f} requests/s in {result.speed.wall_s:.1f} s"
    ]
    if (regret := result.regret) is not None:
        lines.append(
            f"no policy exceeds {regret.best_slo_attainment:.2%} ({100 * regret.slo_attainment:.2f} points more); "
            + (
                "none reaches 99 %"
                if regret.fewest_gpu_hours is None
                else f"no scaler reaches 99 % with less than {regret.fewest_gpu_hours:.2f} GPU-hours"
            )
        )
    for line in lines:
        _print(line)
    table = Table("", box=None, header_style="bold")
    for title in DISTRIBUTION:
        table.add_column(title, justify="right")
    for row in latencies(result):
        table.add_row(*row)
    _print(table)
    _note(run.name, result)
    if run.missed is not None:
        slo = result.config["slo"]
        for line in verdict.lines(run.missed, Slo(slo["ttft_s"], slo["tpot_s"])):
            _print(line)


def _note(name: str, result: Result) -> None:
    if result.interrupted:
        _print(f"{name} was interrupted: all numbers are of the requests that had ended by then")
    for what, count in result.counts.items():
        if what.startswith("faults.") and count:
            _print(f"{name}: {what.removeprefix('faults.')} could not be followed {count} times")


def _print(what: str | Table) -> None:
    text = isinstance(what, str)
    console().print(what, highlight=False, markup=not text, soft_wrap=text)
