"""The command line with the commands of all plugins, as `pdplugins` has it once it runs."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from pdplugins.cli import app
from pdplugins.registry import default_registry

__all__ = ["app", "invoke", "printed"]

default_registry().add_commands(app)


def invoke(*arguments: str | Path) -> Result:
    """Run a command in this process. Its `exception` is an error that a user can put right, if there was one."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def printed(*arguments: str | Path) -> str:
    """Run a command in this process; return what it prints, or raise its error."""
    done = invoke(*arguments)
    if done.exception is not None:
        raise done.exception
    return done.stdout
