"""`pdplugins explain`: a logged run is told, and replays to the same decisions."""

from __future__ import annotations

import errno
import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pdplugins import config as configs
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision import Fault
from pdplugins.runtime.decision_log import DecisionLog
from pdplugins.runtime.decision_reader import read
from pdplugins.runtime.journal import build_journal
from pdplugins.runtime.planner import build_safe_planner
from pdplugins.runtime.policies import build_policies
from pdplugins.runtime.power import SafePowerController
from pdplugins.runtime.records import cut
from pdplugins.types import GpuView, PlannerView, Pool, Role, Traffic
from tests.runtime.decision_logs import See, explained


@pytest.fixture
def log(tmp_path: Path, config_data: dict[str, Any], see: See) -> Path:
    """A run with a scale-up, a scale-down, a policy error, bad metrics, stale metrics and a door that failed."""
    config_data["planner"]["fail_at"] = 4
    planner = build_safe_planner(configs.parse(config_data), decision_log=tmp_path / "d.jsonl")
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
    assert explained(str(log), "--verify") == (0, "run 1: 10 decisions, the same again\n")


def test_a_decision_that_comes_out_differently_is_shown_and_fails(log: Path) -> None:
    lines = log.read_text().splitlines()
    line = json.loads(lines[2])
    assert line["answer"]["prefill"] == 3
    line["answer"]["prefill"] = 4
    log.write_text("\n".join([*lines[:2], json.dumps(line), *lines[3:]]) + "\n")
    code, output = explained(str(log), "--verify")
    assert code == 1
    assert "run 1, decision 2, logged by pdplugins" in output
    assert "logged 4P 2D  25.0 requests/s" in output
    assert "now    3P 2D  25.0 requests/s" in output


def test_only_changes_are_shown_with_what_was_seen(log: Path) -> None:
    code, output = explained(str(log))
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
    assert explained(str(log), "--all")[1].count("ready") == 2 * 9  # one decision had no view


def test_json_holds_the_header_and_the_decisions(log: Path) -> None:
    code, output = explained(str(log), "--json", "--all")
    (run,) = json.loads(output)
    assert code == 0
    assert run["header"]["planner"] == "scripted"
    assert len(run["decisions"]) == 10
    assert run["decisions"][1]["plan"]["reason"] == "25.0 requests/s"


def test_every_kind_is_named_in_the_first_line_and_counted_in_the_last(mixed: Path) -> None:
    code, output = explained(str(mixed))
    lines = output.splitlines()
    assert code == 0
    for name in ("planner scripted", "router (the host's own)", "power rapid"):
        assert name in lines[0]
    assert lines[-5:] == [
        "planner: 3 decisions, 0 with a fault",
        "router: 1 of at least 1 decisions, 0 with a fault",
        "flow: 2 of at least 2 decisions, 0 with a fault",
        "batch_scheduler: 1 of at least 1 decisions, 0 with a fault",
        "power: 3 decisions, 0 with a fault",
    ]
    assert "3P 2D" in output
    assert "flow  refuse r8, retry after 1 s  1 requests wait already" in output  # refusals are shown unasked
    assert "router  r7" not in output


def test_one_kind_can_be_picked(mixed: Path) -> None:
    code, output = explained(str(mixed), "--kind", "router")
    assert code == 0
    assert "router  r7 → p1 → d1, split 1200" in output
    assert "* p1 prefill: 0 queued" in output
    assert "  p0 prefill: 3 queued (300 tokens)" in output
    assert "flow  " not in output
    assert explained(str(mixed), "--kind", "batch_scheduler")[1].count("prefill r7 512  cautious") == 1


def test_all_that_was_decided_for_one_request_can_be_picked(mixed: Path) -> None:
    output = explained(str(mixed), "--request", "r7")[1]
    assert "flow  go r7" in output
    assert "router  r7" in output
    assert "waited 1.000 s" in output
    assert "batch scheduler  prefill r7 512" in output
    assert "3P 2D" not in output
    assert "r8" not in output.replace("flow  refuse r8", "")


def test_why_a_request_has_no_line_is_said(mixed: Path, log: Path, tmp_path: Path) -> None:
    assert "nothing here about request" not in explained(str(mixed), "--request", "r7")[1]
    all_kept = explained(str(mixed), "--request", "r9")[1]
    assert "→" not in all_kept
    assert "nothing here about request r9: ids are as in r8, r7; where clients are served" in all_kept
    sampled = tmp_path / "sampled.jsonl"
    sampled.write_text(mixed.read_text().replace('"sample":1,', '"sample":100,'))
    said = explained(str(sampled), "--request", "r9")[1]
    assert "keeps one in 100, as of r8, r7; to keep all, put decision_log: {sample: 1} into the config" in said
    assert "has no router" in explained(str(log), "--request", "r9")[1]
    other = explained(str(mixed), "--request", "r8", "--kind", "router")[1]
    assert "nothing here about request r8: it was decided about by flow; leave out --kind" in other
    assert "None in service" not in explained(str(mixed), "--request", "r8")[1]
    (run,) = json.loads(explained(str(sampled), "--request", "r9", "--json")[1])
    assert run["missing"] in said
    assert "missing" not in json.loads(explained(str(sampled), "--json")[1])[0]


def test_a_request_with_a_long_name_is_found_under_another_kind(mixed: Path, tmp_path: Path) -> None:
    """The log keeps the beginning of such a name."""
    name, long = "n" * 200, tmp_path / "long.jsonl"
    long.write_text(mixed.read_text().replace('"r8"', json.dumps(cut(name))))
    said = explained(str(long), "--request", name, "--kind", "router")[1]
    assert "it was decided about by flow; leave out --kind" in said


def test_json_holds_all_kinds(mixed: Path) -> None:
    (run,) = json.loads(explained(str(mixed), "--json", "--all")[1])
    kinds = [decision.get("kind", "planner") for decision in run["decisions"]]
    assert sorted(set(kinds)) == ["batch_scheduler", "flow", "planner", "power", "router"]
    assert [decision["seen"]["waiting"] for decision in run["decisions"] if decision.get("kind") == "flow"] == [1, 0]


def test_json_has_null_for_what_is_no_number_in_json(mixed: Path) -> None:
    """Python writes NaN and Infinity, which no other program reads."""
    text = mixed.read_text()
    changed = re.sub('"draw_w":500.0', '"draw_w":NaN', re.sub('"cap_w":400.0', '"cap_w":Infinity', text))
    assert changed.count("NaN") == changed.count("Infinity") > 0
    mixed.write_text(changed)
    output = explained(str(mixed), "--json", "--all")[1]

    def no_number(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(output, parse_constant=no_number)


def test_planners_and_power_are_verified_and_the_others_said_to_be_not(mixed: Path) -> None:
    code, output = explained(str(mixed), "--verify")
    assert (code, output.splitlines()) == (
        0,
        [
            "run 1: 3 decisions, the same again",
            "run 1, router: not verified, only a sample of its decisions is kept",
            "run 1, flow: not verified, only a sample of its decisions is kept",
            "run 1, batch_scheduler: not verified, only a sample of its decisions is kept",
            "run 1, power: 3 decisions, the same again",
        ],
    )


def test_caps_that_come_out_differently_are_shown_and_fail(mixed: Path) -> None:
    lines = mixed.read_text().splitlines()
    numbers = [n for n, line in enumerate(lines) if '"kind":"power"' in line]
    data = json.loads(lines[numbers[1]])
    data["answer"]["caps_w"]["0"] = 123.0
    lines[numbers[1]] = json.dumps(data)
    mixed.write_text("\n".join(lines) + "\n")
    code, output = explained(str(mixed), "--verify")
    assert code == 1
    assert "run 1, power, decision 2, logged by pdplugins" in output


def test_a_change_of_the_pools_says_what_it_was_worth(tmp_path: Path, config_data: dict[str, Any], see: See) -> None:
    """DOPD expects an attainment of its plan and of the pools before; decisions that change nothing say nothing."""
    config = configs.parse(config_data | {"planner": "dopd"})
    planner = build_safe_planner(config, decision_log=tmp_path / "d.jsonl")
    for tick, rate in enumerate([2, 2, 12, 12, 12]):
        planner.plan(see(100.0 + 5 * tick, rate))
    planner.close()
    code, output = explained(str(tmp_path / "d.jsonl"), "--all")
    assert code == 0
    (run,) = read(tmp_path / "d.jsonl")
    pools = [(1, 1), *((entry.plan.prefill, entry.plan.decode) for entry in run.entries)]
    changed = sum(before != after for before, after in pairwise(pools))
    worth = [line for line in output.splitlines() if line.split()[:1] == ["worth"]]
    assert len(worth) == changed > 0
    assert re.fullmatch(
        r" +worth  [\d.]+% of the requests expected inside the SLO, [\d.]+% without the change", worth[0]
    )
    assert explained(str(tmp_path / "d.jsonl"), "--verify")[0] == 0


@pytest.mark.parametrize("full", [False, True])
def test_a_policy_that_was_built_anew_begins_another_run(
    tmp_path: Path, config_data: dict[str, Any], see: See, monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    """As at a reload of the power daemon: the budget of before is not that of now. The disk may be full just then."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path, journal = tmp_path / "d.jsonl", None
    gpus = tuple(GpuView(n, Role.PREFILL if n < 4 else Role.DECODE, 500.0, 400.0) for n in range(8))
    for budget_w in (4800, 4000):
        config = configs.parse(
            config_data
            | {"deployment": config_data["deployment"] | {"gpu_budget": 8}}
            | {"power": {"name": "rapid", "budget_w": budget_w}}
        )
        deployment = build_deployment(config)
        if journal is None:
            journal = build_journal(config, deployment, decision_log=path)
        else:
            with monkeypatch.context() as patch:
                if full:
                    patch.setattr(DecisionLog, "_put", refuse)
                journal.begin(config, deployment)
        power = build_policies(config, deployment).power()
        assert power is not None
        controller = SafePowerController(power, deployment, budget_w=float(budget_w), journal=journal)
        for tick in range(3):
            controller.control(gpus, see(100.0 + 5 * tick, 5))
    assert journal is not None
    journal.close()
    code, said = explained(str(path), "--verify")
    assert code == 0, said
    assert [[entry.number for entry in run.entries] for run in read(path)] == [[1, 2, 3]] * 2
