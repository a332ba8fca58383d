"""The programs `pdplugins` and `dynamo`: in processes of their own, and `pdplugins` in this one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer

from pdplugins import cli

PDPLUGINS = (sys.executable, "-c", "from pdplugins.cli import main; main()")
PROGRAMS = {
    "pdplugins": PDPLUGINS,
    "dynamo": (sys.executable, "-c", "from pdplugins.cli import dynamo_main; dynamo_main()"),
}


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with these changes of the environment."""
    env = {**os.environ, **environment}
    return subprocess.run([*PROGRAMS[program], *arguments], env=env, capture_output=True, text=True, check=False)


def exit_code(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Run `pdplugins` in this process. Each time its commands are collected anew."""
    monkeypatch.setattr(sys, "argv", ["pdplugins", *arguments])
    monkeypatch.setattr(cli, "app", typer.Typer(**cli._SETTINGS))
    cli.app.command()(cli.config)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code
