"""Adds ``pdplugins power`` to the command line."""

from __future__ import annotations

import typer

from pdplugins import hookimpl
from pdplugins.hosts.power.commands import app as power_app


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add ``power``."""
    app.add_typer(power_app, name="power")
