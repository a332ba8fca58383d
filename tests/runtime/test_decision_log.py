"""The decision log: exact, appendable, and readable after a crash."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.config import Config
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import ConfigError
from pdplugins.runtime.decision import Decision, Fault
from pdplugins.runtime.decision_log import DecisionLog, read
from pdplugins.types import Deployment, PlannerView, Pool, ScalePlan, Traffic, WorkerLoad

START = ScalePlan(1, 1, "start")

numbers = st.one_of(st.floats(allow_nan=False), st.integers(-(10**12), 10**12))
maybe = st.none() | numbers
loads = st.builds(WorkerLoad, st.text(max_size=5), numbers, numbers, numbers, numbers)
pools = st.builds(
    Pool, st.integers(0, 99), st.integers(0, 9), st.integers(0, 9), st.lists(loads, max_size=3).map(tuple)
)
traffics = st.none() | st.builds(Traffic, numbers, numbers, maybe, maybe, maybe, maybe)
views = st.builds(PlannerView, numbers, traffics, pools, pools)
plans = st.builds(
    ScalePlan, st.integers(1, 99), st.integers(1, 99), st.text(), st.dictionaries(st.text(max_size=9), st.floats())
)


def opened(path: Path, config: Config, deployment: Deployment) -> DecisionLog:
    return DecisionLog(path, config, deployment, START, clock=lambda: 1_700_000_000.25)


@given(view=views, plan=plans, fault=st.none() | st.sampled_from(Fault))
def test_what_is_written_reads_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, view: PlannerView, plan: ScalePlan, fault: Fault | None
) -> None:
    path = tmp_path_factory.mktemp("log") / "d.jsonl"
    deployment = Deployment(None, None, 8, 1, 2, 30.0, 256)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pdplugins.runtime.decision_log._limits", lambda deployment: {})
        with DecisionLog(path, Config(), deployment, START) as log:
            log.write(Decision(Kind.PLANNER, plan, fault, 0.25), view)
    (run,) = read(path)
    (entry,) = run.entries
    assert entry.view == view
    assert repr(entry.view) == repr(view)  # an int stays an int: reasons are formatted from these numbers
    assert repr(entry.plan) == repr(plan)
    assert (entry.fault, entry.step_s) == (fault, 0.25)


def test_nan_survives(tmp_path: Path, config: Config, deployment: Deployment) -> None:
    view = PlannerView(1.0, Traffic(5.0, math.nan), Pool(1), Pool(1))
    with opened(tmp_path / "d", config, deployment) as log:
        log.write(Decision(Kind.PLANNER, START, Fault.BAD_METRICS, 0.0), view)
    entry = read(tmp_path / "d")[0].entries[0]
    assert entry.view is not None
    assert entry.view.traffic is not None
    assert math.isnan(entry.view.traffic.requests)


def test_the_header_tells_all_that_a_replay_needs(tmp_path: Path, config: Config, deployment: Deployment) -> None:
    opened(tmp_path / "d", config, deployment).close()
    header = json.loads((tmp_path / "d").read_text())
    assert header["schema"] == 1
    assert header["at"] == "2023-11-14T22:13:20.250Z"
    assert header["planner"] == "scripted"
    assert Config.model_validate(header["config"]) == config
    assert header["initial"] == {"prefill": 1, "decode": 1, "reason": "start", "signals": {}}
    assert header["deployment"]["gpu_budget"] == 8
    assert header["deployment"]["slo"] == {"ttft_s": 2.0, "tpot_s": 0.08}


def test_every_line_is_on_disk_at_once(tmp_path: Path, config: Config, deployment: Deployment) -> None:
    log = opened(tmp_path / "d", config, deployment)
    log.write(Decision(Kind.PLANNER, START, None, 0.0), None)
    assert len(read(tmp_path / "d")[0].entries) == 1
    log.close()


def test_a_line_torn_by_a_crash_costs_only_itself(tmp_path: Path, config: Config, deployment: Deployment) -> None:
    path = tmp_path / "d"
    with opened(path, config, deployment) as log:
        log.write(Decision(Kind.PLANNER, START, None, 0.0), None)
        log.write(Decision(Kind.PLANNER, START, None, 0.0), None)
    path.write_bytes(path.read_bytes()[:-20])
    assert [len(run.entries) for run in read(path)] == [1]
    with opened(path, config, deployment) as log:
        log.write(Decision(Kind.PLANNER, ScalePlan(5, 5, "after"), None, 0.0), None)
    first, second = read(path)
    assert [entry.plan.reason for entry in (*first.entries, *second.entries)] == ["start", "after"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no run in it; name a decision log"),
        ("hello\nworld\n", "no run in it; name a decision log"),
        ('{"schema": 99}\n', ":1: schema 99; this pdplugins reads schema 1"),
        ('{"schema": 1}\n{"at": 1}\n', r":2: not a line of a decision log \('view'\)"),
        ('{"schema": 1}\nxx\n{"at": 1}\n', ":2: not a line of a decision log"),
        ('{"at": 1}\n', ":1: not a line of a decision log"),
    ],
)
def test_what_is_not_a_log_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "d"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(path)


def test_a_file_that_cannot_be_is_said_in_one_line(tmp_path: Path, config: Config, deployment: Deployment) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "missing")
    with pytest.raises(ConfigError, match="Is a directory; choose a file"):
        opened(tmp_path, config, deployment)
