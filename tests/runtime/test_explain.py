"""`pdplugins explain`: a logged run is told, and replays to the same decisions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pdplugins import config as configs
from pdplugins.hosts import commands
from pdplugins.runtime.decision_log import read
from pdplugins.runtime.planner import Fault, build_guarded
from pdplugins.types import PlannerView, Pool, Traffic

See = Callable[..., PlannerView]


def cli(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    commands.pd_register_commands(app)
    done = CliRunner().invoke(app, ["explain", *arguments])
    return done.exit_code, done.output


@pytest.fixture
def log(tmp_path: Path, config_data: dict[str, Any], see: See) -> Path:
    """A run with a scale-up, a scale-down, a policy error, bad metrics, stale metrics and a door that failed."""
    config_data["planner"]["fail_at"] = 4
    planner = build_guarded(configs.parse(config_data), decision_log=tmp_path / "d.jsonl")
    for tick, rate in enumerate([5, 25, 25, 25, 25, 3]):
        planner.plan(see(100.0 + 5 * tick, rate))
    planner.plan(PlannerView(130.0, Traffic(5.0, math.nan), Pool(1), Pool(1)))
    planner.plan(see(125.0))  # the time of the last good view
    planner.hold("KeyError: 'isl'")
    planner.plan(see(145.0, 40))
    planner.close()
    return tmp_path / "d.jsonl"


def test_the_log_of_a_run_replays_to_the_same_decisions(log: Path) -> None:
    (run,) = read(log)
    held = [Fault.BAD_METRICS, Fault.STALE_METRICS, Fault.OBSERVATION]
    faults = [None, None, None, Fault.POLICY_ERROR, None, None, *held, None]
    assert [entry.fault for entry in run.entries] == faults
    assert cli(str(log), "--verify") == (0, "run 1: 10 decisions, the same again\n")


def test_a_decision_that_comes_out_differently_is_shown_and_fails(log: Path) -> None:
    lines = log.read_text().splitlines()
    line = json.loads(lines[2])
    assert line["plan"]["prefill"] == 3
    line["plan"]["prefill"] = 4
    log.write_text("\n".join([*lines[:2], json.dumps(line), *lines[3:]]) + "\n")
    code, output = cli(str(log), "--verify")
    assert code == 1
    assert "run 1, decision 2, logged by pdplugins" in output
    assert "logged 4P 2D  25.0 requests/s" in output
    assert "now    3P 2D  25.0 requests/s" in output


def test_only_changes_are_shown_with_what_was_seen(log: Path) -> None:
    code, output = cli(str(log))
    assert code == 0
    lines = output.splitlines()
    assert lines[0].startswith("run 1, ")
    assert "planner scripted" in lines[0]
    assert lines[1].split() == ["start", "1P", "1D"]
    assert lines[2].split() == ["+5.0", "s", "3P", "2D", "25.0", "requests/s"]
    assert lines[3].split(None, 1) == ["saw", "25.00 requests/s in 5 s, ISL 1000, OSL 100"]
    assert "prefill 1 ready, 0 queued (0 tokens), 0 running; decode 1 ready" in lines[4]
    assert "hold, policy_error: ScriptedPlanner raised RuntimeError: the forecaster fell over" in output
    assert lines[-1] == "10 decisions, 4 with a fault"
    assert output.count("25.0 requests/s") == 2  # at the change, and when the policy came back


def test_all_shows_every_decision(log: Path) -> None:
    assert cli(str(log), "--all")[1].count("ready") == 2 * 9  # one decision had no view


def test_json_holds_the_header_and_the_decisions(log: Path) -> None:
    code, output = cli(str(log), "--json", "--all")
    (run,) = json.loads(output)
    assert code == 0
    assert run["header"]["planner"] == "scripted"
    assert len(run["decisions"]) == 10
    assert run["decisions"][1]["plan"]["reason"] == "25.0 requests/s"
