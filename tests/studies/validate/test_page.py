"""The page of the published figures says what the result files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
RESULTS = sorted((BENCHMARKS / "results").glob("fidelity-*.json"))
PAGE = (BENCHMARKS / "fidelity.md").read_text(encoding="utf-8")


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BENCHMARKS / "results" / f"fidelity-{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_run_is_on_the_page_with_its_command(path: Path) -> None:
    command = json.loads(path.read_text(encoding="utf-8"))["command"]
    assert command.split(" --json")[0] in PAGE


def test_measured_rows_are_on_the_page_and_meet_the_bars() -> None:
    found = read("silicon")
    assert found["ttft"]["median_abs_error"] <= 0.20
    assert found["tpot"]["median_abs_error"] <= 0.10
    part = PAGE[PAGE.index("## (a)") : PAGE.index("## (b)")]
    lines = {"all rows of the report half": found, **{f"| model {k} |": v for k, v in found["by_model"].items()}}
    for start, figures in lines.items():
        (line,) = [line for line in part.splitlines() if start in line and line.startswith("|")]
        for metric in ("ttft", "tpot"):
            assert f"{100 * figures[metric]['median_abs_error']:.1f} %" in line


@pytest.mark.parametrize("path", [p for p in RESULTS if "dynamo" in p.stem], ids=lambda path: path.stem)
def test_the_replay_agrees_within_five_percent_but_where_the_page_says_so(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert f"{100 * found['ttft_s']['mean']['error']:+.2f} %" in PAGE
    assert found["largest_abs_error"] <= 0.05 or path.stem.endswith("-held")


def test_every_cell_outside_the_bar_is_explained_on_the_page() -> None:
    for cell in read("papers")["cells"]:
        if abs(cell["error"]) > 0.20:
            assert cell["note"]
            assert cell["note"] in PAGE
