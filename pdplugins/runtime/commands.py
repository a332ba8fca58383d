"""Adds ``pdplugins explain``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from pdplugins import hookimpl
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import ConfigError


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
        if verify or request is not None or kind:
            raise ConfigError("explain: --shadow tells of whole runs; leave out --verify, --request and --kind")
        lines = [_json(shadows.as_data(log))] if as_json else shadows.shadowed(log)
        for line in lines:
            typer.echo(line)
        return
    choose = explaining.Choose(every, tuple(kind or ()), request)
    if as_json:
        typer.echo(_json(explaining.as_data(log, choose)))
    elif not verify:
        for line in explaining.explain(log, choose):
            typer.echo(line)
    if verify:
        same, lines = replaying.verified(log)
        typer.echo("\n".join(lines), err=as_json or not same)
        raise typer.Exit(0 if same else 1)


def _json(data: Any) -> str:
    """Return data as JSON, which has no number for NaN and infinity: they are null. A log has them as Python does."""
    return json.dumps(_finite(data), indent=1, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
