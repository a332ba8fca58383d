"""Adds ``pdplugins profile``, which makes profile files, and ``pdplugins bench``, which times pdplugins itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pdplugins import hookimpl
from pdplugins.config import MOST_GPUS
from pdplugins.errors import PdpluginsError, one_line
from pdplugins.files import check_outputs, write_whole
from pdplugins.registry import Registration

Workers = Annotated[list[int], typer.Option(min=4, max=MOST_GPUS, help="Number of workers; may be repeated.")]


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the groups."""
    from pdplugins.profiling.profiles import profile  # noqa: PLC0415 - a process that serves need not load it

    app.add_typer(profile, name="profile")
    app.add_typer(_bench(), name="bench")


def _bench() -> typer.Typer:
    group = typer.Typer(help="Measure pdplugins itself on this machine.", no_args_is_help=True)
    group.callback()(lambda: None)  # a group of one command would become that command
    group.command()(decisions)
    return group


def decisions(
    *,
    workers: Workers = [64, 4096],  # noqa: B006
    calls: Annotated[int, typer.Option(min=10, help="Decisions that are timed for each policy and size.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of each decision; the shortest time counts.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the lengths and loads.")] = 0,
    out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write the rows there.")] = None,
) -> None:
    """Time one decision of every router, flow policy, batch scheduler, planner and power controller installed.

    A loop is 1,000 steps of a fixed Python loop, timed in the same run. Bars are numbers of loops.
    """
    import json  # noqa: PLC0415 - a command loads what it needs when it runs
    from statistics import median  # noqa: PLC0415

    from rich.table import Table  # noqa: PLC0415

    from pdplugins.profiling.decisions import measure  # noqa: PLC0415
    from pdplugins.provenance import record  # noqa: PLC0415
    from pdplugins.terminal import console, progress  # noqa: PLC0415

    check_outputs(out)
    with progress(["decisions"]) as update:
        rows = measure(
            tuple(workers), calls, seed, rounds=rounds, progress=lambda share: update([share]), failed=_not_timed
        )
    if not rows:
        raise PdpluginsError("bench decisions: no plugin could be timed")
    loop_us = median(row.loop_us for row in rows)
    if out is not None:
        data = record("measured", seed=seed) | {"loop_us": loop_us, "rows": [row.data() for row in rows]}
        write_whole(out, json.dumps(data, indent=1) + "\n")
    table = Table(
        "kind",
        "plugin",
        "workers",
        "p50 µs",
        "p99 µs",
        "p99 loops",
        "bar",
        title=f"One decision; a loop is {loop_us} µs",
    )
    for row in rows:
        figures = (f"{row.p50_us:.1f}", f"{row.p99_us:.1f}", f"{row.p99_loops:.1f}")
        bar = "" if row.bar_loops is None else f"{row.bar_loops:.1f}"
        table.add_row(row.kind, row.plugin, str(row.workers), *figures, bar)
    console().print(table)


def _not_timed(plugin: Registration, error: Exception) -> None:
    why = f"{type(error).__name__}: {one_line(error)}"
    typer.echo(f"{plugin.kind} {plugin.name} of {plugin.plugin} is not timed: {why}", err=True)
