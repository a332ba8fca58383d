"""Adds the command ``pdplugins gateway``."""

from __future__ import annotations

import typer

from pdplugins import hookimpl
from pdplugins.gateway.command import gateway


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(gateway)
