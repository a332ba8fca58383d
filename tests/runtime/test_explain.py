"""`pdplugins explain`: a logged run is told, and replays to the same decisions."""

from __future__ import annotations

import errno
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pdplugins import config as configs
from pdplugins.errors import ConfigError, PdpluginsError
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.runtime import commands
from pdplugins.runtime import explain as explaining
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.batching import SafeBatchScheduler
from pdplugins.runtime.decision import Fault
from pdplugins.runtime.decision_log import DecisionLog
from pdplugins.runtime.decision_reader import read
from pdplugins.runtime.flow import SafeFlow
from pdplugins.runtime.journal import build_journal
from pdplugins.runtime.planner import build_safe_planner
from pdplugins.runtime.policies import build_policies
from pdplugins.runtime.power import SafePowerController
from pdplugins.runtime.records import cut
from pdplugins.runtime.router import SafeRouter
from pdplugins.types import (
    BatchPlan,
    BatchView,
    FlowDecision,
    Go,
    GpuView,
    Hold,
    PlannerView,
    Pool,
    QueuedPrefill,
    Request,
    Role,
    ScalePlan,
    Traffic,
    Waiting,
    WorkerLoad,
)
from tests.refusals import refusal

See = Callable[..., PlannerView]


def cli(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.callback()(lambda: None)  # so that the only command keeps its name
    commands.pd_register_commands(app)
    done = CliRunner().invoke(app, ["explain", *arguments])
    return done.exit_code, done.output


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
    assert cli(str(log), "--verify") == (0, "run 1: 10 decisions, the same again\n")


def test_a_decision_that_comes_out_differently_is_shown_and_fails(log: Path) -> None:
    lines = log.read_text().splitlines()
    line = json.loads(lines[2])
    assert line["answer"]["prefill"] == 3
    line["answer"]["prefill"] = 4
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


# --- all kinds -------------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path: Path, config_data: dict[str, Any], see: See) -> Path:
    """A log of one process with a policy of each kind."""
    config = configs.parse(config_data | {"power": {"name": "rapid", "budget_w": 8000}, "decision_log": {"sample": 1}})
    deployment = build_deployment(config)
    journal = build_journal(
        config, deployment, initial=ScalePlan(1, 1, "workers at start"), decision_log=tmp_path / "mixed.jsonl"
    )
    planner = build_safe_planner(config, journal=journal)
    power = build_policies(config, deployment).power()
    assert power is not None
    controller = SafePowerController(power, deployment, budget_w=8000.0, journal=journal)
    gpus = tuple(GpuView(n, Role.PREFILL if n < 4 else Role.DECODE, 500.0, 400.0) for n in range(8))
    request = Request("r7", 101.0, 1200, session="alice", bound_worker="d1")
    router = SafeRouter(LeastLoaded(RouterSettings.model_validate({}), deployment), deployment, journal=journal)
    flow = SafeFlow(InOrder(), most_waiting=1, journal=journal)
    scheduler = SafeBatchScheduler(Cautious(), journal=journal)
    workers = (
        SimpleWorker("p0", Role.PREFILL, 3.0),
        SimpleWorker("p1", Role.PREFILL, 0.0),
        SimpleWorker("d1", Role.DECODE),
    )
    for tick, rate in enumerate([5, 25, 25]):
        planner.plan(see(100.0 + 5 * tick, rate))
        controller.control(gpus, see(100.0 + 5 * tick, rate))
    flow.arrived(Waiting(request, 101.0, 103.0), 101.0)
    flow.arrived(Waiting(Request("r8", 101.5, 50), 101.5, 103.5), 101.5)
    flow.next(workers, 102.0, 0)
    router.on_arrival(request, workers, 102.0, {"p0", "p1", "d1"})
    scheduler.next_batch(BatchView((QueuedPrefill(request, 1200, 102.0),), 2, 4000), 102.5)
    journal.close()
    return tmp_path / "mixed.jsonl"


class InOrder:
    """Lets requests go on in the order of arrival."""

    def __init__(self) -> None:
        self.waiting: list[str] = []

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        self.waiting.append(waiting.request.id)

    def next(self, workers: object, now_s: float) -> FlowDecision:
        return Go(self.waiting.pop(0)) if self.waiting else Hold()

    def on_left(self, request_id: str) -> None:
        self.waiting.remove(request_id)


class Cautious:
    """Prefills what waits, up to 512 tokens of each."""

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        return BatchPlan({item.request.id: min(item.remaining_tokens, 512) for item in view.queue}, 0.0, "cautious")

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        pass


class SimpleWorker:
    """A worker with a queue."""

    tp = 1
    kv_capacity_tokens = 50_000
    free_kv_tokens = 20_000
    capabilities = None
    cached_blocks: frozenset[int] = frozenset()

    def __init__(self, name: str, role: Role, queued: float = 0.0) -> None:
        self.id = name
        self.role = role
        self.load = WorkerLoad(name, queued, 100 * queued)


def test_every_kind_is_named_in_the_first_line_and_counted_in_the_last(mixed: Path) -> None:
    code, output = cli(str(mixed))
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
    code, output = cli(str(mixed), "--kind", "router")
    assert code == 0
    assert "router  r7 → p1 → d1, split 1200" in output
    assert "* p1 prefill: 0 queued" in output
    assert "  p0 prefill: 3 queued (300 tokens)" in output
    assert "flow  " not in output
    assert cli(str(mixed), "--kind", "batch_scheduler")[1].count("prefill r7 512  cautious") == 1


def test_all_that_was_decided_for_one_request_can_be_picked(mixed: Path) -> None:
    output = cli(str(mixed), "--request", "r7")[1]
    assert "flow  go r7" in output
    assert "router  r7" in output
    assert "waited 1.000 s" in output
    assert "batch scheduler  prefill r7 512" in output
    assert "3P 2D" not in output
    assert "r8" not in output.replace("flow  refuse r8", "")


def test_why_a_request_has_no_line_is_said(mixed: Path, log: Path, tmp_path: Path) -> None:
    assert "nothing here about request" not in cli(str(mixed), "--request", "r7")[1]
    all_kept = cli(str(mixed), "--request", "r9")[1]
    assert "→" not in all_kept
    assert "nothing here about request r9: ids are as in r8, r7; where clients are served" in all_kept
    sampled = tmp_path / "sampled.jsonl"
    sampled.write_text(mixed.read_text().replace('"sample":1,', '"sample":100,'))
    said = cli(str(sampled), "--request", "r9")[1]
    assert "keeps one in 100, as of r8, r7; to keep all, put decision_log: {sample: 1} into the config" in said
    assert "has no router" in cli(str(log), "--request", "r9")[1]
    other = cli(str(mixed), "--request", "r8", "--kind", "router")[1]
    assert "nothing here about request r8: it was decided about by flow; leave out --kind" in other
    assert "None in service" not in cli(str(mixed), "--request", "r8")[1]
    (run,) = json.loads(cli(str(sampled), "--request", "r9", "--json")[1])
    assert run["missing"] in said
    assert "missing" not in json.loads(cli(str(sampled), "--json")[1])[0]


def test_a_request_with_a_long_name_is_found_under_another_kind(mixed: Path, tmp_path: Path) -> None:
    """The log keeps the beginning of such a name."""
    name, long = "n" * 200, tmp_path / "long.jsonl"
    long.write_text(mixed.read_text().replace('"r8"', json.dumps(cut(name))))
    said = cli(str(long), "--request", name, "--kind", "router")[1]
    assert "it was decided about by flow; leave out --kind" in said


def test_json_holds_all_kinds(mixed: Path) -> None:
    (run,) = json.loads(cli(str(mixed), "--json", "--all")[1])
    kinds = [decision.get("kind", "planner") for decision in run["decisions"]]
    assert sorted(set(kinds)) == ["batch_scheduler", "flow", "planner", "power", "router"]
    assert [decision["seen"]["waiting"] for decision in run["decisions"] if decision.get("kind") == "flow"] == [1, 0]


def test_json_has_null_for_what_is_no_number_in_json(mixed: Path) -> None:
    """Python writes NaN and Infinity, which no other program reads."""
    text = mixed.read_text()
    changed = re.sub('"draw_w":500.0', '"draw_w":NaN', re.sub('"cap_w":400.0', '"cap_w":Infinity', text))
    assert changed.count("NaN") == changed.count("Infinity") > 0
    mixed.write_text(changed)
    output = cli(str(mixed), "--json", "--all")[1]

    def no_number(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(output, parse_constant=no_number)


def test_planners_and_power_are_verified_and_the_others_said_to_be_not(mixed: Path) -> None:
    code, output = cli(str(mixed), "--verify")
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
    code, output = cli(str(mixed), "--verify")
    assert code == 1
    assert "run 1, power, decision 2, logged by pdplugins" in output


# --- broken logs -----------------------------------------------------------------------------------------------------

MODES = ((), ("--all",), ("--json", "--all"), ("--verify",), ("--request", "r7"), ("--kind", "router"))
JUNK = (None, True, -1, 1e999, math.nan, 10**40, "", "x\n\x1b[31m\ud800", [], [[]], {}, {"a": 1}, [1, "a", None])


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def told_well(path: Path, changed: int | None = None, modes: Sequence[tuple[str, ...]] = MODES) -> None:
    """Every way to show a log ends well, or with one line of error, which names no other line than the changed one."""
    for mode in modes:
        app = typer.Typer()
        app.callback()(lambda: None)
        commands.pd_register_commands(app)
        done = CliRunner().invoke(app, ["explain", str(path), *mode])
        error = done.exception
        if error is None or isinstance(error, SystemExit):
            assert done.exit_code in (0, 1), (mode, done.output)
            assert done.output.replace("\n", "").isprintable(), mode
            continue
        assert isinstance(error, PdpluginsError), (mode, error)
        said = str(error).removeprefix(str(path))
        assert said.isprintable(), mode
        assert len(said) < 400, mode
        assert changed is None or re.match(r":\d+: ", said) is None or said.startswith(f":{changed}: "), (mode, said)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.moderate
@pytest.mark.parametrize(
    "raw",
    [
        b"\x00" * 100,
        b"\x1f\x8b\x08\x00junk",
        b"\xff\xfe{\x00}\x00",
        b"null\n1\n[]\n",
        b'{"schema": true}\n',
        b'{"schema": 2.0}\n',
        b'{"schema": [2]}\n',
        b'{"schema": "2"}\n',
        b'{"schema": 2}\n',
        b'{"schema": 2, "initial": 5, "config": [], "deployment": null, "at": 3, "pdplugins": {}}\n',
        b'{"schema": 2, "initial": null}\n{"kind": "planner"}\n',
        b'{"schema": 2, "initial": null}\n{"kind": ["planner"]}\n',
        b'{"schema": 2, "initial": null}\n{"view": 5, "fault": null, "plan": {}}\n',
        b'{"schema": ' + b"9" * 5000 + b"}\n",
        b"[" * 100_000,
        b'{"schema": 2, "initial": ' + b'{"a":' * 900 + b"1" + b"}" * 901 + b"\n",
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_what_is_no_log_is_one_line(tmp_path: Path, raw: bytes) -> None:
    (path := tmp_path / "broken").write_bytes(raw)
    with pytest.raises(ConfigError):
        list(explaining.explain(path))
    told_well(path)


def test_a_line_without_end_is_one_line() -> None:
    with pytest.raises(ConfigError, match="/dev/zero:1: longer than any line of a decision log"):
        read(Path("/dev/zero"))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on it can be shown")
def test_a_decision_that_is_nested_too_deeply_to_be_shown_is_named(mixed: Path) -> None:
    rows = lines_of(mixed)
    place = next(n for n, row in enumerate(rows) if row.get("kind") == "router")
    rows[place]["seen"]["now_s"] = nested(900)
    mixed.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ConfigError, match=f"{mixed}:{place + 1}: not a line of a decision log"):
        explaining.as_data(mixed, explaining.Choose(every=True))
    told_well(mixed, place + 1)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside of `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.moderate
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_log_with_any_one_value_changed_is_told_or_named(mixed: Path, data: st.DataObject) -> None:
    whole = mixed.with_name("whole")
    if not whole.exists():
        mixed.rename(whole)
    rows = lines_of(whole)
    line = data.draw(st.integers(0, len(rows) - 1))
    *way, last = data.draw(st.sampled_from(list(places(rows[line]))))
    inside = rows[line]
    for key in way:
        inside = inside[key]
    if data.draw(st.booleans()):
        inside[last] = data.draw(st.sampled_from(JUNK) | st.text(max_size=3))
    else:
        del inside[last]
    mixed.write_text("\n".join(map(json.dumps, rows)))
    told_well(mixed, line + 1, [data.draw(st.sampled_from(MODES))])


@pytest.mark.moderate
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_log_with_any_bytes_changed_is_told_or_an_error_in_one_line(mixed: Path, data: st.DataObject) -> None:
    whole = mixed.with_name("whole")
    if not whole.exists():
        mixed.rename(whole)
    raw = whole.read_bytes()
    begin = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(begin, min(begin + 200, len(raw))))
    mixed.write_bytes(raw[:begin] + data.draw(st.binary(max_size=8)) + raw[end:])
    assert "\n" not in refusal(lambda: explaining.as_data(mixed, explaining.Choose(every=True)))


def test_a_change_of_the_pools_says_what_it_was_worth(tmp_path: Path, config_data: dict[str, Any], see: See) -> None:
    """DOPD expects an attainment of its plan and of the pools before; decisions that change nothing say nothing."""
    config = configs.parse(config_data | {"planner": "dopd"})
    planner = build_safe_planner(config, decision_log=tmp_path / "d.jsonl")
    for tick, rate in enumerate([2, 2, 12, 12, 12]):
        planner.plan(see(100.0 + 5 * tick, rate))
    planner.close()
    code, output = cli(str(tmp_path / "d.jsonl"), "--all")
    assert code == 0
    (run,) = read(tmp_path / "d.jsonl")
    pools = [(1, 1), *((entry.plan.prefill, entry.plan.decode) for entry in run.entries)]
    changed = sum(before != after for before, after in pairwise(pools))
    worth = [line for line in output.splitlines() if line.split()[:1] == ["worth"]]
    assert len(worth) == changed > 0
    assert re.fullmatch(
        r" +worth  [\d.]+% of the requests expected inside the SLO, [\d.]+% without the change", worth[0]
    )
    assert cli(str(tmp_path / "d.jsonl"), "--verify")[0] == 0


@pytest.mark.parametrize("name", [".", "/", ".."])
def test_a_folder_is_no_log(name: str) -> None:
    with pytest.raises(ConfigError, match="is a folder; name a decision log in it"):
        read(Path(name))


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
    code, said = cli(str(path), "--verify")
    assert code == 0, said
    assert [[entry.number for entry in run.entries] for run in read(path)] == [[1, 2, 3]] * 2
