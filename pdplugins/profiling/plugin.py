"""Adds the command group ``pdplugins profile``."""

from __future__ import annotations

import typer

from pdplugins import hookimpl


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the commands."""
    from pdplugins.profiling.command import profile  # noqa: PLC0415 - other commands need not load it

    app.add_typer(profile, name="profile")
