"""The page says of the published overlap runs what their result file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "sglang.md").read_text(encoding="utf-8")
RUNS = json.loads((ROOT / "benchmarks" / "results" / "kv-overlap.json").read_text(encoding="utf-8"))["runs"]
SHORT = 16
"""Tokens of the one further push of each round, see the benchmark."""


def line(run: dict[str, Any], row: dict[str, Any]) -> str:
    """A row of the page's table."""
    low, high = row["hidden_range"]
    hidden = "-" if row["chunks"] == 1 else f"{row['hidden']:.0%} [{low:.0%} to {high:.0%}]"
    times = (f"{row[name]:.0f}" for name in ("compute_ms", "push_ms", "exposed_ms"))
    cells = [run["sglang"], row["sender"], row["chunks"], *times, hidden, f"{row['ceiling']:.0%}"]
    return f"| {' | '.join(map(str, cells))} |"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["sglang"])
def test_the_page_has_every_row(run: dict[str, Any]) -> None:
    for row in run["rows"]:
        assert line(run, row) in PAGE
    assert run["command"] in PAGE
    assert run["commit"] in PAGE


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["sglang"])
def test_every_byte_of_every_push_was_moved(run: dict[str, Any]) -> None:
    tokens = run["tokens"] * len(run["rows"]) + SHORT
    assert run["bytes_moved"] == run["rounds"] * tokens * run["model"]["kv_bytes_per_token"]
    assert run["rounds"] >= 3
