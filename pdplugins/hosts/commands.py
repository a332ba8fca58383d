"""Adds the command that serves every host: ``pdplugins doctor``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pdplugins import hookimpl


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


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
