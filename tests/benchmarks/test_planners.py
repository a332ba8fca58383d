"""The planners benchmark: what it tunes on, what it reports, and that it goes on where it was stopped."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import planners
import planners_report
import pytest
from planners import GRIDS, TRACES, Cells, OutOfTimeError, reported, tried

from pdplugins.hosts.dynamo.offline import stock


def row(label: str, attainment: float = 0.5) -> dict[str, Any]:
    return {"label": label, "metrics": {"slo_attainment": attainment, "gpu_hours": 1.0}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(planners, "RESULTS", tmp_path)
    monkeypatch.setattr(planners, "commit", lambda: "0123456789ab")
    return tmp_path


def never() -> dict[str, Any]:
    raise AssertionError("it ran again")


def test_a_stopped_benchmark_goes_on_where_it_was() -> None:
    assert Cells("x", math.inf).of("rest", "a", lambda: row("a"))["label"] == "a"
    again = Cells("x", math.inf)
    assert again.of("rest", "a", never) == row("a")
    assert again.of("tuning", "a", lambda: row("a", 0.9)) == row("a", 0.9), "the two parts of a trace are apart"


def test_runs_of_another_commit_are_not_mixed_in(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    Cells("x", math.inf).of("rest", "a", lambda: row("a"))
    monkeypatch.setattr(planners, "commit", lambda: "ba9876543210")
    assert Cells("x", math.inf).of("rest", "a", lambda: row("a", 0.7)) == row("a", 0.7)
    assert len((folder / ".cells" / "x.jsonl").read_text().splitlines()) == 1
    monkeypatch.setattr(planners, "commit", lambda: "ba9876543210-dirty")
    assert Cells("x", math.inf).of("rest", "a", lambda: row("a", 0.8)) == row("a", 0.8)


def test_when_the_time_is_over_nothing_more_is_run() -> None:
    Cells("x", math.inf).of("rest", "a", lambda: row("a"))
    late = Cells("x", 0.0)
    assert late.of("rest", "a", never) == row("a")
    with pytest.raises(OutOfTimeError):
        late.of("rest", "b", never)


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.key)
def test_what_was_best_on_the_first_third_is_reported_and_nothing_else_is_picked(trace: planners.Trace) -> None:
    """Each run of a grid costs one more GPU-hour. Two of each family serve more than all that are cheaper."""
    tuning = []
    for index, run in enumerate(tried()):
        metrics = {"slo_attainment": {0: 0.6, 3: 0.9}.get(index % 8, 0.1), "gpu_hours": 1.0 + index % 8}
        tuning.append({"label": run.label, "group": run.group, "metrics": metrics})
    picked = [run for run in reported(trace, "kv_router", tuning) if run.group.endswith("-tuned")]
    for family in GRIDS:
        wanted = {row["label"] for row in planners_report.front([row for row in tuning if row["group"] == family])}
        assert len(wanted) == 2
        for start in (None, trace.start):
            of = [run for run in picked if (run.group, run.start) == (f"{family}-tuned", start)]
            assert {run.label.removesuffix(f" from {start}") for run in of} == wanted


def test_every_setting_of_the_grid_is_one_of_dynamos() -> None:
    settings = [settings for _, settings in GRIDS["stock"]]
    assert len(settings) == 16
    assert set().union(*settings) <= stock.TUNABLE


def test_the_labels_of_a_table_are_unique() -> None:
    labels = [run.label for run in tried()]
    assert len(set(labels)) == len(labels)
