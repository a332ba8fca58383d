"""The plugins of docs/writing-a-plugin.md install, are found, pass the conformance tests of their kind, and run."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pdplugins.testing import deployment
from pdplugins.testing.policies import FlowConformance, PlannerConformance, RouterConformance
from pdplugins.types import Flow, Planner, Router

sys.path.insert(0, str(Path(__file__).parents[1] / "docs/example-plugins"))

import pdplugins_backlog
import pdplugins_earliest_due
import pdplugins_queue_step
import pdplugins_stay_home

from tests.programs import run

pytestmark = pytest.mark.moderate

EXAMPLES = Path(__file__).parents[1] / "docs/example-plugins"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a process needs in its environment to find the example plugins beside pdplugins."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(EXAMPLES)], check=True, capture_output=True)
    return {"PYTHONPATH": str(target)}


def test_they_install_beside_either_distribution_of_pdplugins() -> None:
    project = tomllib.loads((EXAMPLES / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [name for name in project["dependencies"] if name.startswith("pdplugins")] == []


def test_it_is_listed_with_its_distribution(installed: dict[str, str]) -> None:
    done = run("pdplugins", "plugins", "--json", **installed)
    rows = {(row["kind"], row["name"]): row for row in json.loads(done.stdout)}
    assert rows["planner", "queue_step"] == {
        "kind": "planner",
        "name": "queue_step",
        "plugin": "queue_step",
        "distribution": "pdplugins-examples",
        "version": "1.0",
        "hooks": ["pd_register_planners"],
    }


def test_its_settings_are_checked(installed: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("planner: {name: queue_step, quue: 2}")
    done = run("pdplugins", "config", str(path), **installed)
    assert done.returncode == 2
    assert done.stderr == (
        f"pdplugins: {path}: planner queue_step: unknown key 'quue'; valid keys here are interval_s, queue\n"
    )


@pytest.mark.dynamo
def test_it_scales_a_simulated_deployment(installed: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(
        "pdplugins", "replay", "--planner", "queue_step", "--trace", "synthetic", "--json", str(out), **installed
    )
    assert done.returncode == 0, done.stderr
    scaling = json.loads(out.read_text())["scaling"]
    assert max(change["prefill"] for change in scaling) > 1
    assert "waiting" in scaling[0]["reason"]


def simulated(env: dict[str, str], tmp_path: Path, config: str, *more: str) -> dict[str, Any]:
    out = tmp_path / "out.json"
    done = run("pdplugins", "simulate", str(EXAMPLES / config), *more, "--json", str(out), **env)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(out.read_text())
    assert not [name for name in result["counts"] if name.startswith("faults.")], result["counts"]
    return result


def test_the_router_and_the_flow_policy_serve_sessions(installed: dict[str, str], tmp_path: Path) -> None:
    result = simulated(installed, tmp_path, "sessions.yaml", "--trace", "sessions", "--rate", "2", "--clip-s", "60")
    assert result["requests"]["total"] > 100
    assert result["metrics"]["slo_attainment"] > 0.5


def test_the_flow_policy_refuses_what_comes_too_late(installed: dict[str, str], tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    more = ("--trace", "azure-like", "--rate", "60", "--clip-s", "30", "--records", str(records))
    result = simulated(installed, tmp_path, "sessions.yaml", *more)
    errors = [json.loads(line)["error"] for line in records.read_text().splitlines()]
    assert result["requests"]["failed"] == sum(error is not None for error in errors) > 0
    assert {error.split(":")[0] for error in errors if error} == {"refused"}


def test_the_bundle_scales_by_what_its_flow_policy_holds(installed: dict[str, str], tmp_path: Path) -> None:
    more = ("--trace", "azure-like", "--rate", "10", "--clip-s", "120")
    result = simulated(installed, tmp_path, "backlog.yaml", *more)
    assert result["requests"]["failed"] == 0
    assert result["metrics"]["slo_attainment"] > 0.8
    assert any("requests wait" in change["reason"] for change in result["scaling"])
    assert max(change["decode"] for change in result["scaling"]) > 1


@pytest.mark.parametrize(
    ("kind", "name"),
    [("planner", "queue_step"), ("router", "stay_home"), ("flow", "earliest_due"), ("bundle", "backlog")],
)
def test_each_is_listed(installed: dict[str, str], kind: str, name: str) -> None:
    rows = json.loads(run("pdplugins", "plugins", "--json", **installed).stdout)
    assert (kind, name) in {(row["kind"], row["name"]) for row in rows}


class TestQueueStep(PlannerConformance):
    def make(self) -> Planner:
        made: Planner = pdplugins_queue_step.QueueStepPlanner(pdplugins_queue_step.QueueStepSettings(), deployment())
        return made


class TestStayHome(RouterConformance):
    def make(self) -> Router:
        made: Router = pdplugins_stay_home.StayHomeRouter(pdplugins_stay_home.StayHomeSettings(), deployment())
        return made


class TestEarliestDue(FlowConformance):
    def make(self) -> Flow:
        made: Flow = pdplugins_earliest_due.EarliestDue(pdplugins_earliest_due.EarliestDueSettings(), deployment())
        return made


def bundle() -> Any:
    return pdplugins_backlog.backlog(pdplugins_backlog.BacklogSettings(), deployment())


class TestBacklogPlanner(PlannerConformance):
    def make(self) -> Planner:
        made: Planner = bundle().planner()
        return made


class TestBacklogFlow(FlowConformance):
    def make(self) -> Flow:
        made: Flow = bundle().flow()
        return made
