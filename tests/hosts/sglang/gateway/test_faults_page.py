"""The page says of the published fault runs what their result files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
RESULTS = [ROOT / "benchmarks" / "results" / f"faults-{version}.json" for version in ("0.5.16", "0.5.23")]
PAGE = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_every_row_is_that_of_both_runs() -> None:
    runs = [read(path)["kinds"] for path in RESULTS]
    for kind in runs[0]:
        rows = [run[kind] for run in runs]
        columns = [[row["faults"] for row in rows], [sum(row["requests"].values()) for row in rows]]
        columns += [[row["requests"][came] for row in rows] for came in ("right", "clear error", "client left")]
        columns += [[row["longest_s"] for row in rows]]
        cells = " | ".join(", ".join(map(str, column)) for column in columns)
        assert f"| {kind} | {cells} |" in PAGE


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_no_answer_was_wrong_or_missing_and_nothing_leaked(path: Path) -> None:
    run = read(path)
    assert run["defects"] == run["complaints"] == []
    assert sum(row["faults"] for row in run["kinds"].values()) == 1000
    assert not any(row["requests"][came] for row in run["kinds"].values() for came in ("wrong", "hung"))
    for server in ("a", "b"):
        held = [held[server] for held in run["held"]]
        assert all(each["kv_tokens"] == each["requests"] == 0 for each in held)
    assert f"commit {run['commit']}" in PAGE
    assert run["command"].split(" --tree")[0] in PAGE
