"""Tables fit the terminal: no cell is ever cut."""

from __future__ import annotations

import re

import pytest

from tests.command_line import invoke

pytestmark = pytest.mark.moderate


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_a_comparison_is_readable_in_any_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdplugins.terminal.PIPE_WIDTH", columns)  # what a test runs in is no terminal
    done = invoke("compare", "stock-random", "stock-cache-aware", "dopd", "--max-requests", "30")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in done.stdout
    assert re.search(r"SLO\s+att", " ".join(lines))
