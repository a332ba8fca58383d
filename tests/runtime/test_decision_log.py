"""The decision log: exact, appendable, and readable after a crash."""

from __future__ import annotations

import io
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.config import Config
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import ConfigError, HostError
from pdplugins.runtime.decision import Decision, Fault
from pdplugins.runtime.decision_log import DecisionLog, none_of_refused
from pdplugins.runtime.decision_reader import read
from pdplugins.runtime.explain import explain
from pdplugins.runtime.replaying import verified
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


def planned(plan: ScalePlan, fault: Fault | None = None, step_s: float = 0.0) -> Decision[ScalePlan]:
    return Decision(Kind.PLANNER, plan, fault, step_s)


def opened(path: Path, config: Config, deployment: Deployment) -> DecisionLog:
    return DecisionLog(path, config, deployment, START, clock=lambda: 1_700_000_000.25)


@pytest.mark.moderate
@given(view=views, plan=plans, fault=st.none() | st.sampled_from(Fault))
def test_what_is_written_reads_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, view: PlannerView, plan: ScalePlan, fault: Fault | None
) -> None:
    path = tmp_path_factory.mktemp("log") / "d.jsonl"
    deployment = Deployment(None, None, 8, 1, 2, 30.0, 256)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pdplugins.runtime.decision_log._limits", lambda deployment: {})
        with DecisionLog(path, Config(), deployment, START) as log:
            log.write(planned(plan, fault, 0.25), {"view": view})
    (run,) = read(path)
    (entry,) = run.entries
    assert entry.view == view
    assert repr(entry.view) == repr(view)  # an int stays an int: reasons are formatted from these numbers
    assert repr(entry.plan) == repr(plan)
    assert (entry.fault, entry.step_s) == (fault, 0.25)


def test_nan_survives(tmp_path: Path, config: Config, deployment: Deployment) -> None:
    view = PlannerView(1.0, Traffic(5.0, math.nan), Pool(1), Pool(1))
    with opened(tmp_path / "d", config, deployment) as log:
        log.write(planned(START, Fault.BAD_METRICS), {"view": view})
    entry = read(tmp_path / "d")[0].entries[0]
    assert entry.view is not None
    assert entry.view.traffic is not None
    assert math.isnan(entry.view.traffic.requests)


def test_the_header_tells_all_that_a_replay_needs(tmp_path: Path, config: Config, deployment: Deployment) -> None:
    opened(tmp_path / "d", config, deployment).close()
    header = json.loads((tmp_path / "d").read_text())
    assert header["schema"] == 2
    assert header["at"] == "2023-11-14T22:13:20.250Z"
    assert header["planner"] == "scripted"
    assert Config.model_validate(header["config"]) == config
    assert header["initial"] == {"prefill": 1, "decode": 1, "reason": "start", "signals": {}}
    assert header["deployment"]["gpu_budget"] == 8
    assert header["deployment"]["slo"] == {"ttft_s": 2.0, "tpot_s": 0.08}


def test_every_line_is_on_disk_at_once(tmp_path: Path, config: Config, deployment: Deployment) -> None:
    log = opened(tmp_path / "d", config, deployment)
    log.write(planned(START), {"view": None})
    assert len(read(tmp_path / "d")[0].entries) == 1
    log.close()


def test_a_line_torn_by_a_crash_costs_only_itself(tmp_path: Path, config: Config, deployment: Deployment) -> None:
    path = tmp_path / "d"
    with opened(path, config, deployment) as log:
        log.write(planned(START), {"view": None})
        log.write(planned(START), {"view": None})
    path.write_bytes(path.read_bytes()[:-20])
    assert [len(run.entries) for run in read(path)] == [1]
    with opened(path, config, deployment) as log:
        log.write(planned(ScalePlan(5, 5, "after")), {"view": None})
    first, second = read(path)
    assert [entry.plan.reason for entry in (*first.entries, *second.entries)] == ["start", "after"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no run in it; name a decision log"),
        ("hello\nworld\n", "no run in it; name a decision log"),
        ('{"schema": 99}\n', ":1: schema 99; this pdplugins reads schema 2"),
        ("hello\n" * 1001, ":1: not a line of a decision log; name a decision log"),
        ('{"schema": 2}\n' + "hello\n" * 2000, ":2: not a line of a decision log; name a decision log"),
        ('{"schema": 2}\n{"at": 1}\n', r":2: not a line of a decision log \(kind: must be given"),
        ('{"schema": 2}\nxx\n{"at": 1}\n', ":2: not a line of a decision log"),
        ('{"at": 1}\n', ":1: not a line of a decision log; name a decision log, as --decision-log FILE writes it"),
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


# --- the limit, and older logs ---------------------------------------------------------------------------------------


def test_a_log_at_its_limit_goes_on_in_a_new_file_and_reads_as_one_run(
    tmp_path: Path, config: Config, deployment: Deployment
) -> None:
    path = tmp_path / "d"
    header = len(config.model_dump_json()) + 500
    with DecisionLog(path, config, deployment, START, most_bytes=2 * header) as log:
        for number in range(1, 6):
            log.write(planned(START), {"view": None}, number)
        assert not (tmp_path / "d.1").exists()
        while not (tmp_path / "d.1").exists():
            number += 1
            log.write(planned(START), {"view": None}, number)
    (run,) = read(path)
    assert [entry.number for entry in run.entries] == list(range(1, number + 1))
    assert json.loads(path.read_text().splitlines()[0])["continued"] is True


def test_two_files_are_all_that_is_kept_and_what_is_lost_is_told(
    tmp_path: Path, config: Config, deployment: Deployment
) -> None:
    path, most_bytes = tmp_path / "d", 8000
    with DecisionLog(path, config, deployment, START, most_bytes=most_bytes) as log:
        for number in range(1, 501):
            log.write(planned(START), {"view": None}, number)
    assert {each.name for each in tmp_path.iterdir()} == {"d", "d.1"}
    assert all(each.stat().st_size < most_bytes + 1000 for each in tmp_path.iterdir())
    (run,) = read(path)
    assert run.entries[0].number > 1
    assert run.entries[-1].number == 500
    same, lines = verified(path)
    assert (same, lines) == (True, ["run 1: not verified, decision 1 is not in the log"])


@pytest.mark.parametrize("when", [1, 2])
def test_a_log_that_is_moved_while_it_is_read_has_no_gap(
    tmp_path: Path, config: Config, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    """A large one takes a minute to read. It is moved once so many of its files have been opened."""
    path, numbers, real, opens = tmp_path / "d", itertools.count(1), Path.open, []

    def write_until_moved() -> None:
        before = path.stat().st_ino
        while path.stat().st_ino == before:
            log.write(planned(START), {"view": None}, next(numbers))

    def opening(one: Path, mode: str, **more: Any) -> Any:
        file = real(one, mode, **more)
        if mode == "rb":
            opens.append(one)
            if len(opens) == when:
                write_until_moved()
        return file

    with DecisionLog(path, config, deployment, START, most_bytes=8000) as log:
        write_until_moved()
        monkeypatch.setattr(Path, "open", opening)
        (run,) = read(path)
    seen = [entry.number for entry in run.entries]
    assert seen == list(range(seen[0], seen[-1] + 1))
    assert len(opens) == 2


def test_a_file_that_cannot_be_moved_stops_growing_and_goes_on_later(
    tmp_path: Path, config: Config, deployment: Deployment
) -> None:
    path = tmp_path / "d"
    (tmp_path / "d.1" / "in the way").mkdir(parents=True)
    with DecisionLog(path, config, deployment, START, most_bytes=1) as log:
        size = path.stat().st_size
        with pytest.raises(OSError, match="directory"):
            log.write(planned(START), {"view": None})
        assert path.stat().st_size == size
        (tmp_path / "d.1" / "in the way").rmdir()
        (tmp_path / "d.1").rmdir()
        log.write(planned(START), {"view": None})
    assert len(read(path)[0].entries) == 1


def test_a_disk_that_fills_up_in_the_middle_of_a_line_leaves_whole_lines(
    tmp_path: Path, config: Config, deployment: Deployment
) -> None:
    class Short(io.FileIO):
        def write(self, line: Any) -> int:
            return super().write(line[: len(line) // 2])

    with opened(tmp_path / "d", config, deployment) as log:
        good, log._file = log._file, Short(str(tmp_path / "d"), "ab")
        with log._file, pytest.raises(OSError, match="No space left"):
            log.write(planned(START), {"view": None}, 1)
        log._file = good
        log.write(planned(START), {"view": None}, 2)
    assert [entry.number for entry in read(tmp_path / "d")[0].entries] == [2]


def test_a_disk_that_is_full_when_a_new_file_begins_costs_one_decision_and_no_log(
    tmp_path: Path, config: Config, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header is owed then, and comes before the next decision."""
    path = tmp_path / "d"
    with opened(path, config, deployment) as log:
        log.write(planned(START), {"view": None}, 1)
        monkeypatch.setattr(log, "_most_bytes", 1)
        put, full = log._put, [True]

        def sometimes(data: Any) -> None:
            if full[0]:
                raise OSError(28, "No space left on device")
            put(data)

        monkeypatch.setattr(log, "_put", sometimes)
        with pytest.raises(OSError, match="No space left"):
            log.write(planned(START), {"view": None}, 2)
        full[0] = False
        monkeypatch.setattr(log, "_most_bytes", 10**6)
        log.write(planned(START), {"view": None}, 3)
    assert [entry.number for run in read(path) for entry in run.entries] == [1, 3]


def test_standard_output_is_no_decision_log(
    tmp_path: Path, config: Config, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="moved when it is full; name a file"):
        DecisionLog(Path("-"), config, deployment)
    assert list(tmp_path.iterdir()) == []


def ended(path: Path, config: Config, deployment: Deployment, error: BaseException, decisions: int = 0) -> None:
    """Let a run of a host end by an error, after so many decisions."""
    with none_of_refused(path), opened(path, config, deployment) as log:
        for _ in range(decisions):
            log.write(planned(START), {"view": None})
        raise error


@pytest.mark.parametrize("before", [None, b"", b'{"schema":2}\n{"kind"', b'{"schema":2}\n'])
def test_a_run_that_is_refused_leaves_the_log_as_it_was(
    tmp_path: Path, config: Config, deployment: Deployment, before: bytes | None
) -> None:
    path = tmp_path / "d"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(HostError, match="no port"):
        ended(path, config, deployment, HostError("no port"))
    assert (path.read_bytes() if path.exists() else None) == before


def test_what_was_decided_before_an_error_stays_in_the_log(
    tmp_path: Path, config: Config, deployment: Deployment
) -> None:
    with pytest.raises(HostError, match="no worker"):
        ended(tmp_path / "d", config, deployment, HostError("no worker"), decisions=1)
    assert len(read(tmp_path / "d")[0].entries) == 1


def test_a_run_that_is_interrupted_before_its_first_decision_keeps_its_header(
    tmp_path: Path, config: Config, deployment: Deployment
) -> None:
    with pytest.raises(KeyboardInterrupt):
        ended(tmp_path / "d", config, deployment, KeyboardInterrupt())
    assert len(read(tmp_path / "d")) == 1


@pytest.mark.parametrize("path", [None, Path("/dev/null"), Path("/no/such/folder/d")])
def test_a_refused_run_without_a_file_of_its_own_is_only_refused(path: Path | None) -> None:
    with pytest.raises(HostError, match="no port"), none_of_refused(path):
        raise HostError("no port")


def test_a_run_whose_beginning_is_lost_is_not_told_to_begin_anew(
    tmp_path: Path, config: Config, deployment: Deployment
) -> None:
    path, now = tmp_path / "d", ScalePlan(5, 3, "as before")
    with DecisionLog(path, config, deployment, START, most_bytes=8000) as log:
        for number in range(1, 501):
            log.write(planned(now), {"view": None}, number)
    said = "\n".join(explain(path))
    assert "start  no longer in the log; raise decision_log.most_mb to keep more" in said
    assert "5P" not in said.partition("no longer")[2].partition("decisions")[0]


def test_a_log_behind_a_link_stays_where_the_link_leads(tmp_path: Path, config: Config, deployment: Deployment) -> None:
    """Its old part lies beside it, on the disk that has the room."""
    (tmp_path / "data").mkdir()
    link, target = tmp_path / "link", tmp_path / "data" / "log"
    link.symlink_to(target)
    with DecisionLog(link, config, deployment, START, most_bytes=1) as log:
        for number in (1, 2, 3):
            log.write(planned(START), {"view": None}, number)
    assert link.is_symlink()
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["log", "log.1"]
    assert sorted(tmp_path.iterdir()) == [tmp_path / "data", link]
    assert [entry.number for run in read(link) for entry in run.entries] == [2, 3]
