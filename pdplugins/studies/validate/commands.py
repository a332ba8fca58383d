"""Adds ``pdplugins validate``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from pdplugins import hookimpl
from pdplugins.errors import ConfigError, one_line
from pdplugins.files import check_apart, check_outputs, check_picture, write_whole
from pdplugins.workloads.sources import inputs

validate = typer.Typer(
    no_args_is_help=True, help="Compare the simulator with measurements, Dynamo's replay and the papers."
)
TIMES = ("ttft", "tpot")
MOST_REASON = 500
"""Characters of a line about skipped rows, whose cells may hold anything."""
FEW = 5
"""Most skipped rows named on the terminal. The report names all of them."""
Out = Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write the whole report there.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the split and of every length.")]


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(validate, name="validate")


@validate.command()
def silicon(
    rows: Annotated[Path, typer.Argument(metavar="FILE", help="aiconfigurator's measured rows (silicon CSV).")],
    *,
    unseen: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also report on the rows of this file that FILE lacks.")
    ] = None,
    leave_one_out: Annotated[bool, typer.Option(help="Also fit without each model, and report on it.")] = False,
    frontend: Annotated[bool, typer.Option(help="Also fit the time of a frontend, and report with it.")] = False,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Predict the measured TTFT and TPOT of closed-loop clients on one engine.

    Coefficients are fitted on half of the rows, and errors are reported on the other half. Rows that no profile covers
    are skipped, and counted and named by the reason.
    """
    from pdplugins.studies.validate import report  # noqa: PLC0415 - a command loads what it needs when it runs
    from pdplugins.studies.validate.rows import read_rows  # noqa: PLC0415

    check_outputs(out)
    check_apart({"--json": out}, {"FILE": rows, "--unseen": unseen})
    read, skipped = report.split(*read_rows(rows))
    _say_skipped(rows, skipped)
    found, setup = report.silicon(read, seed)
    found["skipped"] = skipped
    if leave_one_out:
        found["leave_one_out"] = report.leave_one_out(read, setup, seed)
        for model in sorted({row.model for row in read} - found["leave_one_out"].keys()):
            typer.echo(f"{model} is not left out: no row of another model is there to fit on", err=True)
    if frontend:
        found["frontend"] = report.frontend(read, setup, seed)
    if unseen is not None:
        others, left_out = report.split(*read_rows(unseen))
        _say_skipped(unseen, left_out)
        found["unseen"] = report.unseen(others, read, setup, seed)
    found["table"] = report.table(found)
    _write(out, found, seed)
    _say_all(found)


@validate.command()
def measured(
    rows: Annotated[Path, typer.Argument(metavar="FILE", help="aiconfigurator's measured rows (silicon CSV).")],
    *,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every length.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw predicted over measured there: .png, .svg or .pdf.")] = None,
    out: Out = None,
) -> None:
    """Predict the measured TTFT and TPOT of mixtures of experts, in one pool of workers or in two.

    Four coefficients are fitted on the rows whose latencies have an even hash, and their copies; errors are reported on
    the others.
    Rows that lack what a simulation needs are counted and named by the reason.
    """
    from pdplugins.studies.measured import report  # noqa: PLC0415 - a command loads what it needs when it runs
    from pdplugins.studies.measured.rows import read_rows  # noqa: PLC0415

    check_outputs(out)
    if plot is not None:
        check_picture("--plot", plot)
    check_apart({"--json": out, "--plot": plot}, {"FILE": rows})
    read, skipped = report.split(*read_rows(rows))
    _say_skipped(rows, skipped)
    found = {**report.report(read, seed), "lacking": report.counted(skipped), "skipped": skipped}
    if plot is not None:
        from pdplugins.studies.measured.plot import draw  # noqa: PLC0415

        draw(found["points"], plot)
    _write(out, found, seed)
    for line in found["table"]:
        errors = (f"{name.upper()} {line[f'{name}_median']:6.1%} (P90 {line[f'{name}_p90']:6.1%})" for name in TIMES)
        typer.echo(f"{line['what']:50s} {line['rows']:4d} rows, {', '.join(errors)}")


@validate.command()
def dynamo(
    *,
    trace: Annotated[Path, typer.Option(help="Azure CSV or Mooncake JSONL.")],
    requests: Annotated[int | None, typer.Option(min=2, help="Only this many requests of it.")] = None,
    rate: Annotated[float | None, typer.Option(min=1e-3, help="Mean requests/s; arrival times are scaled.")] = None,
    prefill: Annotated[int, typer.Option(min=1, help="Prefill workers.")] = 8,
    decode: Annotated[int, typer.Option(min=1, help="Decode workers.")] = 2,
    one_token: Annotated[bool, typer.Option(help="Cut every answer to one token: prompts may queue then.")] = False,
    profile: Annotated[str | None, typer.Option(help="Performance profile, <gpu>/<model>.")] = None,
    out: Out = None,
) -> None:
    """Run a trace in Dynamo's replay and in the simulator, with equal pools and step times, and compare the results."""
    from pdplugins.config import parse  # noqa: PLC0415
    from pdplugins.perf.table import TableModel  # noqa: PLC0415
    from pdplugins.runtime.assembly import build_deployment  # noqa: PLC0415
    from pdplugins.studies.validate import dynamo as replay  # noqa: PLC0415
    from pdplugins.workloads import traces  # noqa: PLC0415

    check_outputs(out)
    check_apart({"--json": out}, {**inputs("--trace", trace), "--profile": profile})
    deployment = build_deployment(parse({} if profile is None else {"deployment": {"profile": profile}}))
    if not isinstance(deployment.perf, TableModel):
        raise ConfigError(f"--profile {profile}: Dynamo's replay needs tables; choose a profile file")
    shaped = replay.shaped(traces.read(trace), requests, rate, one_token)
    with tempfile.TemporaryDirectory(prefix="pdplugins-") as scratch:
        pools = replay.Pools(prefill, decode)
        found = replay.compare(deployment, deployment.perf, shaped, pools, Path(scratch))
    found = {"trace": trace.name, "pools": f"{prefill}P{decode}D", "one_token": one_token, **found}
    _write(out, found, None)
    typer.echo(f"{trace.name}, {found['pools']}, {found['rows']} requests at {found['rate_per_s']}/s")
    for metric in ("ttft_s", "itl_s"):
        for name, pair in found.get(metric, {}).items():
            figures = f"Dynamo {pair['dynamo']:.4f} s, here {pair['pdplugins']:.4f} s, {pair['error']:+.2%}"
            typer.echo(f"{metric[:-2].upper():4s} {name:4s} {figures}")


@validate.command()
def papers(*, seed: Seed = 0, out: Out = None) -> None:
    """Compare cells of DOPD's Table I and DynaServe's Table 1 with simulated ones."""
    from pdplugins.studies.validate.papers import BAR, dopd, dynaserve  # noqa: PLC0415

    check_outputs(out)
    cells = [*dopd(), *dynaserve(seed)]
    within = sum(abs(cell.error) <= BAR for cell in cells)
    data = [cell.data() for cell in cells]
    _write(out, {"rows": len(cells), "within": within, "bar": BAR, "cells": data}, seed)
    for cell in cells:
        where = f"{cell.table:12s} {cell.case:28s} {cell.metric:20s}"
        typer.echo(f"{where} paper {cell.paper:8.2f}, here {cell.simulated:8.2f}, {cell.error:+.1%}")
    typer.echo(f"{within} of {len(cells)} cells within {BAR:.0%}")


def _say_skipped(path: Path, skipped: dict[str, list[str]]) -> None:
    for why, ids in skipped.items():
        typer.echo(one_line(f"{path.name}: skipped {len(ids)} rows: {why} ({_few(ids)})", MOST_REASON), err=True)


def _say_all(found: dict[str, Any]) -> None:
    for line in found["table"]:
        medians = f"TTFT {line['ttft_median']:6.1%} and TPOT {line['tpot_median']:6.1%}"
        typer.echo(f"{line['what']:60s} {line['rows']:4d} rows, median absolute error of {medians}")
    for source, places in found["places"].items():
        less = ", so one place less than clients" if places["one_less"] else ""
        slope = "n/a" if places["slope"] is None else f"{places['slope']:.2f}"
        typer.echo(f"{source}: slope of TTFT over the answer's time {slope}, {places['pairs']} pairs{less}")


def _few(ids: list[str]) -> str:
    return ", ".join(ids[:FEW]) + (f" and {len(ids) - FEW} more" if len(ids) > FEW else "")


def _write(out: Path | None, found: dict[str, Any], seed: int | None) -> None:
    from pdplugins.provenance import command_line, record  # noqa: PLC0415

    if out is not None:
        words = [
            Path(word).name if "/" in word else word for word in sys.argv[1:]
        ]  # folders of this machine do not help a reader
        made = record("simulated", seed=seed, command=command_line(words=words))
        write_whole(out, json.dumps({**found, **made}, indent=1) + "\n")
