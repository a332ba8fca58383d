"""The published tables say what the result files say, and the front that planners are held against is the front."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.results import Result

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


report = load("planners_report")


def run(attainment: float, gpu_hours: float, group: str = "static") -> dict[str, Any]:
    return {"group": group, "metrics": {"slo_attainment": attainment / 100, "gpu_hours": gpu_hours}}


@pytest.mark.parametrize("page", report.BLOCKS, ids=lambda page: page.name)
def test_the_page_says_what_the_results_say(page: Path) -> None:
    assert report.rendered(page) == page.read_text(encoding="utf-8")


def test_every_trace_has_its_results_and_its_plot() -> None:
    assert {path.stem for path in (FOLDER / "results").glob("planners-*.json")} == {
        f"planners-{key}" for key in report.TITLES
    }
    assert all((FOLDER / f"results/planners-{key}.svg").is_file() for key in report.TITLES)


@pytest.mark.parametrize("key", report.TITLES)
def test_every_run_is_of_the_one_schema_and_says_how_it_was_made(key: str) -> None:
    data = json.loads((FOLDER / f"results/planners-{key}.json").read_text())
    assert {run["group"] for run in data["runs"]} >= {"static", "stock", "stock-tuned", "dopd", "dopd-tuned"}
    for run in data["runs"]:
        result = Result.model_validate({k: v for k, v in run.items() if k not in {"label", "group", "changes"}})
        assert result.kind == "simulated"
        assert result.command.startswith("pdplugins replay --planner ")
        assert result.versions["ai-dynamo"].startswith("1.4.")
        assert result.commit == data["commit"] or not run["label"].startswith("dopd"), "DOPD's runs are of one commit"
    assert len({run["commit"] for run in data["runs"]} - {data["commit"]}) <= 1, "others may be older, of one commit"


@pytest.mark.parametrize("key", report.TITLES)
def test_what_is_reported_was_not_tuned_on(key: str) -> None:
    data = json.loads((FOLDER / f"results/planners-{key}.json").read_text())
    split = data["trace"]["split_s"]
    assert all(row["command"].endswith((f"--clip-s {split}", f"--duration {split}")) for row in data["tuning"])
    assert all(run["command"].endswith(f"--skip {split}") for run in data["runs"])
    tried = {row["label"] for row in data["tuning"]}
    for family in ("stock", "dopd"):
        best = {row["label"] for row in report.front([row for row in data["tuning"] if row["group"] == family])}
        tuned = {run["label"].split(" from ")[0] for run in report.of_group(data, f"{family}-tuned")}
        assert tuned == best <= tried


def test_the_front_leaves_out_pools_that_others_beat_alone_or_mixed() -> None:
    pools = [run(40, 2.0), run(30, 2.5), run(50, 2.6), run(80, 3.0), run(80, 3.5)]
    assert [report.point(r) for r in report.front(pools)] == [(40.0, 2.0), (80.0, 3.0)]


def test_the_front_is_linear_between_two_pools_and_flat_after_the_last() -> None:
    front = report.front([run(40, 2.0), run(80, 3.0)])
    assert report.front_at(front, 2.5) == pytest.approx(60.0)
    assert report.front_at(front, 9.0) == 80.0
    assert report.front_at(front, 1.9) is None


@pytest.mark.moderate
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 50)), min_size=1, max_size=12))
def test_no_pool_is_above_the_front(points: list[tuple[float, float]]) -> None:
    pools = [run(*point) for point in points]
    front = report.front(pools)
    for attainment, gpu_hours in map(report.point, pools):
        assert (report.front_at(front, gpu_hours) or 0.0) >= attainment - 1e-6
