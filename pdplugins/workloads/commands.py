"""Adds ``pdplugins trace info`` and ``pdplugins trace make``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdplugins import hookimpl
from pdplugins.files import check_apart, check_outputs, write_whole
from pdplugins.workloads.sources import inputs

if TYPE_CHECKING:
    from pdplugins.workloads.trace import TraceRequest

trace_app = typer.Typer(help="Look at traces and make them.", no_args_is_help=True)
Trace = Annotated[str, typer.Argument(metavar="TRACE", help="Trace or workload file, or a workload's name.")]
Format = Annotated[str | None, typer.Option("--format", help="Workload that reads the file; default: guessed.")]
Rate = Annotated[float | None, typer.Option(help="Mean arrivals/s: arrival times are scaled to it.")]
ClipS = Annotated[float | None, typer.Option(help="Only what arrives in the first seconds, at that rate.")]
MaxRequests = Annotated[int | None, typer.Option(help="Only the first requests or sessions.")]
MaxContext = Annotated[int | None, typer.Option(help="Longest prompt plus output, tokens.")]


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(trace_app, name="trace")


@trace_app.command()
def info(
    trace: Trace,
    *,
    workload: Format = None,
    rate: Rate = None,
    clip_s: ClipS = None,
    max_requests: MaxRequests = None,
    max_context: MaxContext = None,
    out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write the facts there.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="OUT", help="Write a plot: .png, .svg, .pdf or .html.")] = None,
) -> None:
    """Describe a trace: counts, lengths, sessions, shared prefixes, burstiness, load over time."""
    from pdplugins.terminal import shows  # noqa: PLC0415 - a command loads what it needs when it runs
    from pdplugins.workloads import info as about  # noqa: PLC0415

    check_outputs(out, plot)
    check_apart({"--json": out, "--plot": plot}, inputs("TRACE", trace))
    requests = _read(trace, workload, rate, clip_s, max_requests, max_context)
    columns = about.Columns.of(requests)
    facts = about.describe(columns)
    if plot is not None:
        about.plot(columns, Path(trace).name, plot)
    if out is not None:
        write_whole(out, json.dumps({"trace": trace, **facts}, indent=1) + "\n")
    _show(facts)
    typer.echo(about.chart(columns, bars=about.BARS if shows(about.BARS) else about.PLAIN_BARS))


@trace_app.command()
def make(
    spec: Trace,
    *,
    out: Annotated[Path, typer.Option(metavar="OUT.jsonl", help="File to write, one request or session a line.")],
    workload: Format = None,
    rate: Rate = None,
    clip_s: ClipS = None,
    max_requests: MaxRequests = None,
    max_context: MaxContext = None,
) -> None:
    """Write a workload as JSON lines (Mooncake's format plus sessions), which every command can read."""
    from pdplugins.workloads import jsonl, transform  # noqa: PLC0415 - a command loads what it needs when it runs

    check_outputs(out)
    check_apart({"--out": out}, inputs("TRACE", spec))
    requests = _read(spec, workload, rate, clip_s, max_requests, max_context)
    jsonl.write(requests, out)
    typer.echo(f"{out}: {len(requests)} arrivals, {transform.total(requests)} requests, {requests[-1].arrival_s:.0f} s")


def _read(
    trace: str,
    workload: str | None,
    rate: float | None,
    clip_s: float | None,
    max_requests: int | None,
    max_context: int | None,
) -> list[TraceRequest]:
    from pdplugins.workloads import traces  # noqa: PLC0415 - a command loads what it needs when it runs
    from pdplugins.workloads.transform import Transform  # noqa: PLC0415

    changes = Transform.of(rate=rate, clip_s=clip_s, max_requests=max_requests, max_context_tokens=max_context)
    return changes.apply(traces.read(trace, workload))


def _show(facts: dict[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415 - a command loads what it needs when it runs

    from pdplugins.terminal import console  # noqa: PLC0415

    rate = facts["arrivals_per_s"]
    typer.echo(
        f"{facts['arrivals']} arrivals ({facts['sessions']} sessions), {facts['requests']} requests in "
        f"{facts['duration_s']:.0f} s{'' if rate is None else f': {rate:.3g} arrivals/s'}"
    )
    table = Table("", "mean", "P50", "P90", "P99", "max", box=None, header_style="bold")
    names = {
        "isl_tokens": "prompt, tokens",
        "osl_tokens": "output, tokens",
        "history_tokens": "history, tokens",
        "rounds": "rounds of a session",
        "round_gap_s": "gap between rounds, s",
    }
    for key, name in names.items():
        if (row := facts[key]) is not None:
            table.add_row(name, *(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in row.values()))
    console().print(table)
    cells = ", ".join(f"{_number(value)} in {window}" for window, value in facts["dispersion"].items())
    typer.echo(f"prompt tokens seen before: {facts['shared_prompt_share']:.1%}")
    typer.echo(f"burstiness: CV of gaps {_number(facts['gap_cv'])}; index of dispersion {cells} (Poisson: 1)")


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"
