"""Results keep runs that can be made again, and a run that comes out otherwise shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equality
import manifest
import measure
import pytest

KEYS: dict[str, Any] = {"duration_s": 20, "seed": 3, "arrivals": {"kind": "poisson", "rate": 2.0}}
EXPERIMENT = manifest.Experiment("pdplugins nothing", ("x",), ("stock",), tolerance=0.01)


def config(router: str, **deployment: Any) -> dict[str, Any]:
    return {"router": router, "deployment": {"gpu_budget": 4, **deployment}}


@pytest.fixture
def samples() -> list[measure.Row]:
    """Of three runs under two routers."""
    measure.samples()
    for router, seconds in (("random", 20), ("random", 10), ("least-loaded", 20)):
        measure.run(config(router), measure.workload(**{**KEYS, "duration_s": seconds}), seed=5)
    return measure.samples()


@pytest.fixture
def published(samples: list[measure.Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> manifest.Data:
    """A result with these samples, of code that has changed since."""
    monkeypatch.setattr(manifest, "RESULTS", tmp_path)
    monkeypatch.setattr(equality, "RESULTS", tmp_path)
    origin = {"kind": "simulated", "command": "pdplugins nothing", "commit": "0" * 12, "versions": {}, "seed": 5}
    data = {**origin, "code": {"stock": "old"}, "samples": samples}
    manifest.dump("x", data)
    return data


def test_the_smallest_run_of_each_combination_of_policies_is_kept(samples: list[measure.Row]) -> None:
    assert [(row["config"]["router"], row["workload"]["duration_s"]) for row in samples] == [
        ("random", 10),
        ("least-loaded", 20),
    ]
    assert measure.samples() == []


def test_a_run_that_nobody_could_make_again_is_not_kept(tmp_path: Path) -> None:
    measure.samples()
    requests = measure.workload(**KEYS)
    measure.run(config("random"), requests[:5])
    profile = tmp_path / "mine.json"
    profile.write_text((manifest.ROOT / "profiles/h100/llama-3.1-70b-fp8.json").read_text())
    measure.run(config("random", profile=str(profile)), requests)
    assert measure.samples() == []


def test_samples_that_come_out_the_same_show_a_result_equal(published: manifest.Data) -> None:
    assert manifest.changed(EXPERIMENT, published) == ["stock"]
    assert equality.differences(EXPERIMENT, None) == []
    noted = manifest.read("x")
    assert manifest.changed(EXPERIMENT, noted) == []
    assert noted["shown_equal"]["computed again"] == ["x, sample 0", "x, sample 1"]
    assert noted["code"] == published["code"]


@pytest.mark.parametrize(("factor", "differs"), [(1.005, 0), (1.05, 1)])
def test_a_sample_that_comes_out_otherwise_is_named(published: manifest.Data, factor: float, differs: int) -> None:
    published["samples"][1]["metrics"]["ttft_p99_s"] *= factor
    manifest.dump("x", published)
    found = equality.differences(EXPERIMENT, None)
    assert found is not None
    assert len(found) == differs
    assert all(text.startswith("x, sample 1: ttft_p99_s was ") for text in found)
    assert ("shown_equal" in manifest.read("x")) is not bool(differs)


def test_nothing_is_shown_equal_without_anything_to_compare(published: manifest.Data) -> None:
    manifest.dump("x", {**published, "samples": []})
    assert equality.differences(EXPERIMENT, None) is None


@pytest.mark.dynamo
@pytest.mark.long
def test_runs_of_dynamos_replay_are_made_again_by_their_own_command(published: manifest.Data) -> None:
    command = "pdplugins replay --planner static:1P1D --trace synthetic --duration 20"
    first = equality._replayed("x", {"label": "static", "command": command, "metrics": {}}, None)
    assert first.now["slo_attainment"] > 0
    again = equality._replayed("x", {"label": "static", "command": command, "metrics": first.now}, None)
    assert list(again.differences(0.0)) == []
