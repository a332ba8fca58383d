"""What runs look like on a terminal: progress while they go, tables when they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from pdplugins.results import Result, Spread
from pdplugins.sim.ranking import Run, best_of, columns, unlike

PIPE_WIDTH = 200
"""Columns where the output is not a terminal."""


@contextmanager
def progress(names: Sequence[str]) -> Iterator[Callable[[Sequence[float]], None]]:
    """Show a bar with a time estimate for each run, on standard error if that is a terminal.

    Yields what is to be told the share of each run that is done.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda shares: None
        return
    shown = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*shown, TimeRemainingColumn(), console=console, transient=True) as bars:
        tasks = [bars.add_task(name, total=1.0) for name in names]

        def update(shares: Sequence[float]) -> None:
            for task, share in zip(tasks, shares, strict=False):
                bars.update(task, completed=share)

        yield update


def show(runs: Sequence[Run]) -> None:
    """Print one run as its distributions, several as a table with the best of each column marked."""
    if len(runs) == 1:
        _show_one(runs[0])
        return
    best = best_of({run.name: run.result for run in runs})
    table = Table("config", box=None, header_style="bold")
    shown = columns(runs)
    for title in ("failed", *(column.title for column in shown)):
        table.add_column(title, justify="right")
    for run in runs:
        cells = (
            f"[bold green]{column.text(run.result)}*[/]" if run.name in best[column.key] else column.text(run.result)
            for column in shown
        )
        table.add_row(run.name, str(run.result.requests.failed), *cells)
    _print(table)
    for line in unlike(runs):
        _print(line)
    for run in runs:
        _note(run.name, run.result)


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
    for title in ("mean", "P50", "P90", "P99"):
        table.add_column(title, justify="right")
    table.add_row("TTFT, s", *_cells(metrics.ttft_s, 1.0, 3))
    table.add_row("TPOT, ms", *_cells(metrics.tpot_s, 1e3, 1))
    table.add_row("TBT, ms", *_cells(metrics.tbt_s, 1e3, 1))
    _print(table)
    _note(run.name, result)


def _cells(spread: Spread, scale: float, digits: int) -> Iterator[str]:
    for value in (spread.mean, spread.p50, spread.p90, spread.p99):
        yield "n/a" if value is None else f"{value * scale:.{digits}f}"


def _note(name: str, result: Result) -> None:
    if result.interrupted:
        _print(f"{name} was interrupted: all numbers are of the requests that had ended by then")
    for what, count in result.counts.items():
        if what.startswith("faults.") and count:
            _print(f"{name}: {what.removeprefix('faults.')} could not be followed {count} times")


def _print(what: str | Table) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    console.print(what, highlight=False, soft_wrap=isinstance(what, str))
