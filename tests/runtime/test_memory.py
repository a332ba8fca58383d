"""What a planner learned is kept on disk, and a file that is no such memory stops nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pdplugins.config import Config, parse
from pdplugins.errors import ConfigError
from pdplugins.runtime.memory import SAVE_S
from pdplugins.runtime.planner import SafePlanner, build_safe_planner
from pdplugins.types import PlannerView, Pool, Traffic


def config(path: Path, planner: str = "dopd", **settings: object) -> Config:
    given: dict[str, Any] = {
        "planner": {"name": planner, **settings},
        "deployment": {"profile": "h100/llama-3.1-70b-fp8", "gpu_budget": 64, "startup_s": 30},
        "planner_memory": str(path),
    }
    return parse(given, "test")


def served(planner: SafePlanner, windows: int = 100, rate: float = 9.0, begin_s: float = 0.0) -> None:
    """Bursts of two minutes, every four."""
    for at in range(windows):
        busy = rate if at % 48 < 24 else 2.0
        planner.plan(PlannerView(begin_s + 5.0 * (at + 1), Traffic(5.0, 5 * busy, 1800.0, 60.0), Pool(9), Pool(2)))


def first_plan(planner: SafePlanner) -> Any:
    """Ten requests within the first second; none of them has ended, so that nobody knows their lengths."""
    return planner.plan(PlannerView(1.0, Traffic(1.0, 10.0), Pool(1), Pool(1)))


def test_the_next_run_begins_with_what_the_last_one_learned(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    planner = build_safe_planner(config(path))
    assert first_plan(planner).prefill == 1, "without lengths there is no plan"
    served(planner, begin_s=1.0)
    planner.close()
    warm = first_plan(build_safe_planner(config(path)))
    assert warm.prefill > 5, "lengths and bursts are known from the first second"


def test_it_is_written_every_minute_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    planner = build_safe_planner(config(path))
    served(planner, windows=round(SAVE_S / 5))
    assert not path.exists()
    served(planner, windows=2, begin_s=SAVE_S)
    assert json.loads(path.read_text())["planner"] == "dopd"
    assert [file.name for file in tmp_path.iterdir()] == ["memory.json"], "no temporary file is left"
    assert path.stat().st_mode & 0o077 == 0, "for its owner only"


def kept(path: Path) -> dict[str, Any]:
    planner = build_safe_planner(config(path))
    served(planner)
    planner.close()
    return dict(json.loads(path.read_text()))


def errors_of(size: int) -> list[list[float]]:
    return [[1.0, 2.0]] * size


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda _: "", "ignored"),
        (lambda _: "{" * 100_000, "ignored"),
        (lambda _: "x" * 2_000_000, "more than"),
        (lambda it: json.dumps({**it, "version": 99}), "not the memory of planner dopd, version 1"),
        (lambda it: json.dumps({**it, "planner": "rapid"}), "not the memory of planner dopd"),
        (lambda it: json.dumps({**it, "learned": 3}), "nothing under"),
        (lambda it: json.dumps({**it, "learned": {**it["learned"], "steps": 3}}), "3 windows of 5 s ahead, not 7"),
        (lambda it: json.dumps({**it, "learned": {**it["learned"], "means": {"ISL": -1}}}), "ISL"),
        (lambda it: json.dumps({**it, "learned": {**it["learned"], "means": {"ISL": float("nan")}}}), "ISL"),
        (
            lambda it: json.dumps(
                {**it, "learned": {**it["learned"], "rate": {**it["learned"]["rate"], "errors": errors_of(9000)}}}
            ),
            "errors",
        ),
    ],
    ids=["empty", "nested", "large", "version", "planner", "no memory", "horizon", "negative", "nan", "long"],
)
def test_a_file_that_is_no_memory_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any, said: str
) -> None:
    path = tmp_path / "memory.json"
    path.write_text(damage(kept(path)))
    with caplog.at_level(logging.WARNING, "pdplugins.memory"):
        planner = build_safe_planner(config(path))
    assert said in caplog.text
    assert first_plan(planner).prefill == 1, "it begins without"


def test_a_folder_that_is_gone_stops_nothing_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    planner = build_safe_planner(config(tmp_path / "gone" / "memory.json"))
    served(planner, windows=60)
    planner.close()
    assert caplog.text.count("is not written") == 1


def test_a_planner_that_keeps_nothing_is_refused_a_memory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="planner_memory: planner static keeps nothing"):
        build_safe_planner(config(tmp_path / "memory.json", "static"))


def test_without_the_key_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    planner = build_safe_planner(config(tmp_path / "m.json").model_copy(update={"planner_memory": None}))
    served(planner)
    planner.close()
    assert list(tmp_path.iterdir()) == []
