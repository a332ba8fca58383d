"""Adds ``pdplugins explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pdplugins import hookimpl
from pdplugins.contracts.kinds import Kind


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(explain)


def explain(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A decision log.")],
    every: Annotated[bool, typer.Option("--all", help="Show every decision that was kept, not only changes.")] = False,
    kind: Annotated[list[Kind] | None, typer.Option(help="Show this kind of policy only; may be repeated.")] = None,
    request: Annotated[str | None, typer.Option(metavar="ID", help="Show what was decided for this request.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verify: Annotated[bool, typer.Option(help="Replay the log: say whether decisions come out the same.")] = False,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Estimate what policies in shadow would have gained.")
    ] = False,
) -> None:
    """Show what policies saw, what they decided and why."""
    from pdplugins.runtime import explain as explaining  # noqa: PLC0415 - only this command needs it
    from pdplugins.runtime import replaying, shadows  # noqa: PLC0415

    if shadow:
        lines = [json.dumps(shadows.as_data(log), indent=1)] if as_json else shadows.shadowed(log)
        for line in lines:
            typer.echo(line)
        return
    choose = explaining.Choose(every, tuple(kind or ()), request)
    if as_json:
        typer.echo(json.dumps(explaining.as_data(log, choose), indent=1))
    elif not verify:
        for line in explaining.explain(log, choose):
            typer.echo(line)
    if verify:
        same, lines = replaying.verified(log)
        typer.echo("\n".join(lines), err=as_json or not same)
        raise typer.Exit(0 if same else 1)
