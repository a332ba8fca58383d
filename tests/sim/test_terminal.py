"""Tables fit the terminal: no cell is ever cut."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from pdplugins.cli import app
from pdplugins.studies import commands as plugin

pytestmark = pytest.mark.moderate


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_a_comparison_is_readable_in_any_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdplugins.terminal.PIPE_WIDTH", columns)  # what a test runs in is no terminal
    if not any(command.callback is plugin.compare for command in app.registered_commands):
        plugin.pd_register_commands(app)
    done = CliRunner().invoke(app, ["compare", "stock-random", "stock-cache-aware", "dopd", "--max-requests", "30"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in done.stdout
    assert re.search(r"SLO\s+att", " ".join(lines))
