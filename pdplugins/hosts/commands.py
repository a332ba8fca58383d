"""Adds the commands that serve every host: ``pdplugins explain`` and ``pdplugins doctor``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pdplugins import hookimpl


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(explain)
    app.command()(doctor)


def explain(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A decision log.")],
    every: Annotated[bool, typer.Option("--all", help="Show every decision, not only changes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verify: Annotated[bool, typer.Option(help="Replay the log: are the decisions the same?")] = False,
) -> None:
    """Show what a planner saw, what it decided and why."""
    from pdplugins.runtime import explain as explaining  # noqa: PLC0415 - only this command needs it

    if as_json:
        typer.echo(json.dumps(explaining.as_data(log, every=every), indent=1))
    elif not verify:
        for line in explaining.explain(log, every=every):
            typer.echo(line)
    if verify:
        same, lines = explaining.verified(log)
        typer.echo("\n".join(lines), err=as_json or not same)
        raise typer.Exit(0 if same else 1)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    config: Annotated[str, typer.Option(help="A config file, or the name of a shipped one.")] = "dopd",
    port: Annotated[int, typer.Option(help="Port that the frontend would take.")] = 8000,
) -> None:
    """Check this machine, the hosts' versions and every seam that pdplugins relies on; print a fix for what fails."""
    from pdplugins.hosts.doctor import examine, summary  # noqa: PLC0415 - only this command needs it

    checks = examine(config, port)
    if as_json:
        typer.echo(json.dumps([check.as_data() for check in checks], indent=1))
    else:
        typer.echo("\n".join(summary(checks)))
    if any(check.state == "fail" for check in checks):
        raise typer.Exit(1)
