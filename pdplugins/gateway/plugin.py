"""Adds the commands ``pdplugins gateway`` and ``pdplugins gateway-key``."""

from __future__ import annotations

import typer

from pdplugins import hookimpl
from pdplugins.gateway.command import gateway, gateway_key


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(gateway)
    app.command()(gateway_key)
