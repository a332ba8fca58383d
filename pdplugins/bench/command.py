"""Adds ``pdplugins trace info`` and ``pdplugins trace make``."""

from __future__ import annotations

import typer

trace_app = typer.Typer(help="Look at traces and make them.", no_args_is_help=True)
