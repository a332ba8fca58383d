"""Door (b): the stock planner of Dynamo 1.4.2 runs our planner from its YAML alone."""

from __future__ import annotations

import atexit
import inspect
import itertools
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdplugins.config import parse
from pdplugins.runtime.decision_reader import read
from pdplugins.runtime.planner import build_safe_planner
from pdplugins.runtime.replaying import verify
from pdplugins.runtime.shadows import as_data
from pdplugins.runtime.signals import SignalBoard

Start = Callable[..., Any]
pytestmark = pytest.mark.dynamo

inprocess = pytest.importorskip("pdplugins.hosts.dynamo.doors.inprocess")


def test_our_decision_is_what_dynamo_applies(stock: Start, config_data: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "scripted.yaml"
    path.write_text(json.dumps(config_data))
    planner = stock({"config": str(path), "decision_log": str(tmp_path / "d.jsonl")})
    assert [planner.tick(rate) for rate in (5, 25, 45, 0)] == [(1, 1), (3, 2), (5, 3), (1, 1)]
    (run,) = read(tmp_path / "d.jsonl")
    assert [entry.view.now_s for entry in run.entries if entry.view] == [5.0, 10.0, 15.0, 20.0]
    assert verify(run) is None


def test_the_same_dopd_scales_up_and_down_again(stock: Start, tmp_path: Path) -> None:
    """The shipped config by name; the log of the run replays to the same decisions."""
    planner = stock({"config": "dopd", "decision_log": str(tmp_path / "d.jsonl")})
    up = [planner.tick(12, isl=3000, osl=300) for _ in range(12)]
    down = [planner.tick(0) for _ in range(120)]
    assert up[-1][0] > 1
    assert sum(down[-1]) < sum(up[-1])
    (run,) = read(tmp_path / "d.jsonl")
    assert (run.entries[-1].plan.prefill, run.entries[-1].plan.decode) == down[-1]
    assert verify(run) is None


def test_a_policy_that_raises_leaves_the_last_good_plan(stock: Start, config_data: dict[str, Any]) -> None:
    config_data["planner"]["fail_at"] = 2
    planner = stock({"config": config_data})
    assert [planner.tick(rate) for rate in (25, 99, 45)] == [(3, 2), (3, 2), (5, 3)]


def test_before_its_first_good_decision_dynamo_decides(stock: Start, config_data: dict[str, Any]) -> None:
    config_data["planner"]["fail_at"] = 1
    planner = stock({"config": config_data})
    planner.pools = (2, 2)
    assert planner.tick(99) == (2, 2)
    assert planner.tick(25) == (3, 2)


def test_in_shadow_it_decides_and_logs_and_dynamo_decides(
    stock: Start, config_data: dict[str, Any], tmp_path: Path
) -> None:
    log = tmp_path / "d.jsonl"
    planner = stock({"config": config_data, "decision_log": str(log), "shadow": True})
    planner.pools = (2, 2)
    assert [planner.tick(rate) for rate in (25, 45)] == [(2, 2), (2, 2)]
    (run,) = read(log)
    assert run.header["shadow"] is True
    assert [(entry.plan.prefill, entry.plan.decode) for entry in run.entries] == [(3, 2), (5, 3)]
    assert [entry.view and (entry.view.prefill.ready, entry.view.prefill.starting) for entry in run.entries] == [
        (2, 0),
        (2, 0),
    ]
    told = as_data(log)[0]["planner"]
    assert told["agrees"] == 0
    assert told["shadow_workers_h"] > told["followed_workers_h"]


def test_traffic_that_stays_away_holds(stock: Start, config_data: dict[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "d.jsonl"
    planner = stock({"config": config_data, "decision_log": str(log)})
    for rate in (45, None, None, None, None, 25):
        planner.tick(rate)
    assert [entry.fault for entry in read(log)[0].entries] == [None, None, None, None, "stale_metrics", None]
    assert planner.pools == (3, 2)


def test_a_dead_frontend_is_not_idleness(stock: Start, config_data: dict[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "d.jsonl"
    planner = stock({"config": config_data, "decision_log": str(log), "frontend_url": "http://127.0.0.1:9"})
    planner.pools = (4, 3)
    assert [planner.tick(45) for _ in range(2)] == [(4, 3), (4, 3)]
    entry = read(log)[0].entries[0]
    assert entry.fault == "observation"
    assert "Connection refused" in entry.plan.reason


def test_the_first_tick_already_sees_traffic(
    stock: Start, config_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The frontend is read once at Bootstrap, so that the first decision need not wait for a second tick."""
    totals = itertools.count(0, 25)
    page = 'dynamo_frontend_requests_started_total{{model="tiny"}} {}\n'
    monkeypatch.setattr("pdplugins.hosts.dynamo.fetching.fetch", lambda _url: page.format(next(totals)))
    log = tmp_path / "d.jsonl"
    stock({"config": config_data, "decision_log": str(log), "frontend_url": "http://frontend"}).tick(None)
    (entry,) = read(log)[0].entries
    assert entry.view is not None
    assert entry.view.traffic is not None
    assert entry.view.traffic.requests == 25


def test_ticks_between_our_own_keep_our_plan(stock: Start, config_data: dict[str, Any]) -> None:
    planner = stock({"config": config_data}, entry={"execution_interval_seconds": 15})
    seen = [planner.tick(45) for _ in range(3)]
    assert seen[-1] == (5, 3)
    planner.pools = (1, 1)  # as if nothing had come of it
    assert planner.tick(45) == (5, 3)


def test_dynamos_own_budget_still_bounds_us(stock: Start, config_data: dict[str, Any]) -> None:
    planner = stock({"config": config_data}, changes={"max_gpu_budget": 8})
    prefill, decode = planner.tick(75)
    assert prefill + 2 * decode <= 8


def test_a_planner_of_this_process_decides_as_it_is(stock: Start, config_data: dict[str, Any]) -> None:
    """The launcher builds its planner once, and asks that object what it decided last and why."""
    safe = build_safe_planner(parse(config_data))
    planner = stock({"planner": safe})
    assert planner.tick(25) == (3, 2) == (safe.last.prefill, safe.last.decode)


def test_it_takes_its_signals_back_when_the_process_ends(
    stock: Start, config_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher closes the planner itself. The next stack in the same folder would hear what this one forecast."""
    at_end: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", at_end.append)
    folder = tmp_path / "signals"
    planner = stock({"planner": build_safe_planner(parse(config_data)), "board": SignalBoard(folder)})
    planner.tick(25)
    assert len(list(folder.iterdir())) == 1
    for end in at_end:
        end()
    assert not list(folder.iterdir())


def test_a_tick_that_comes_too_often_is_said_once(
    stock: Start, config_data: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pdplugins.dynamo")  # whatever Dynamo made of DYN_LOG
    config_data["planner"]["interval_s"] = 20
    planner = stock({"config": config_data})
    for _ in range(4):
        planner.tick(5)
    (said,) = [r.getMessage() for r in caplog.records if r.name == "pdplugins.dynamo"]
    assert "Dynamo asks every 5.0 s, the planner expects 20.0 s; set the plugin's execution_interval_seconds" in said


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"config": "dopdd"}, "dopdd.yaml: No such file"),
        ({"config": {"planner": "nobody"}}, "there is no 'nobody'; choose from"),
        ({}, "kwargs: no config"),
    ],
)
def test_a_bad_entry_stops_dynamos_start_with_its_reason(stock: Start, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        stock(kwargs)


@pytest.mark.parametrize("block", [0, 1], ids=["in-process", "external"])
def test_the_yaml_in_the_docs_is_valid(block: int, planner_data: dict[str, Any]) -> None:
    from dynamo.planner.config.planner_config import PlannerConfig  # noqa: PLC0415 - slow, and may be missing

    page = (Path(__file__).parents[3] / "docs/hosts.md").read_text()
    shown = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.S)[block])
    config = PlannerConfig.model_validate(planner_data | shown)
    for entry in config.plugin_registration.in_process_plugins:
        inspect.signature(inprocess.PdPlanner).bind(**entry.kwargs)
    assert config.scheduling.gateway.enabled == (block == 1)
