"""Signals between the parts of one policy: in one process, between processes, and whatever lies in the folder."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from pdplugins.config import Config, parse
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import ConfigError
from pdplugins.policies.stock.static import StaticPlanner, StaticSettings
from pdplugins.runtime import signals
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision import Fault
from pdplugins.runtime.journal import StandardJournal
from pdplugins.runtime.metrics import Metrics
from pdplugins.runtime.planner import SafePlanner, initial_plan
from pdplugins.runtime.signals import SignalBoard, build_board, connect, hear
from pdplugins.types import Deployment, PlannerView, ScalePlan
from tests.runtime.hostile import Panic, UnshowableError

OTHER = "planner.999999999.signals.json"
"""The file of a process that is not ours: its number is larger than any that Linux gives."""


def says(folder: Path, text: str | bytes, name: str = OTHER) -> None:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def good(**values: float) -> str:
    return json.dumps({"schema": 1, "part": "planner", "signals": values})


class Teller:
    def __init__(self, **values: object) -> None:
        self.signals = values


class Hearer:
    def __init__(self) -> None:
        self.heard: Mapping[str, float] = {}

    def on_signals(self, heard: Mapping[str, float], now_s: float) -> None:
        self.heard = heard


# --- one process -----------------------------------------------------------------------------------------------------


def test_a_part_hears_the_others_and_not_itself() -> None:
    board = SignalBoard()
    board.tell("planner", {"forecast_rate": 2.0}, 0.0)
    board.tell("router", {"pool_prefill": 3}, 0.0)
    assert board.hear("router", 0.0) == {"forecast_rate": 2.0}
    assert board.hear("flow", 0.0) == {"forecast_rate": 2.0, "pool_prefill": 3.0}


def test_what_is_old_is_left_out_and_the_last_word_counts() -> None:
    board = SignalBoard(fresh_s=10.0)
    board.tell("planner", {"rate": 1.0, "old": 1.0}, 0.0)
    board.tell("router", {"rate": 2.0}, 5.0)
    assert board.hear("flow", 9.0) == {"rate": 2.0, "old": 1.0}
    assert board.hear("flow", 11.0) == {"rate": 2.0}
    assert board.hear("flow", 16.0) == {}


def test_after_a_clock_goes_back_signals_are_heard_once_they_are_told_again() -> None:
    board = SignalBoard()
    board.tell("planner", {"rate": 1.0}, 5000.0)
    assert board.hear("router", 100.0) == {}
    board.tell("planner", {"rate": 2.0}, 101.0)
    assert board.hear("router", 102.0) == {"rate": 2.0}


@given(
    st.dictionaries(
        st.one_of(st.text(max_size=80), st.integers(), st.just("rate")),
        st.one_of(st.floats(), st.text(max_size=5), st.none(), st.booleans(), st.integers(), st.just(10**400)),
        max_size=100,
    )
)
def test_whatever_a_part_tells_only_named_finite_numbers_are_heard(told: dict[object, object]) -> None:
    board = SignalBoard()
    board.tell("planner", told, 0.0)  # type: ignore[arg-type]
    heard = board.hear("router", 0.0)
    assert len(heard) <= signals.MOST_SIGNALS
    assert all(math.isfinite(value) and isinstance(value, float) for value in heard.values())
    assert all(name.isascii() and name.isprintable() and len(name) <= 64 for name in heard)
    kept = {name for name, value in told.items() if name == "rate" and type(value) in (int, float) and abs(value) < 1e9}  # type: ignore[operator, arg-type]
    if len(told) <= signals.MOST_SIGNALS:
        assert kept <= set(heard)


def test_connect_carries_signals_and_shows_them_as_metrics() -> None:
    registry, hearer = CollectorRegistry(), Hearer()
    journal = StandardJournal(metrics=[Metrics(Kind.ROUTER, registry)])
    board = SignalBoard()
    connect({Kind.FLOW: hearer, Kind.ROUTER: Teller(pool_prefill=2)}, board, 1.0, journal)
    assert hearer.heard == {"pool_prefill": 2.0}
    assert registry.get_sample_value("pdplugins_router_signal", {"name": "pool_prefill"}) == 2.0


@pytest.mark.parametrize("kind", [RuntimeError, Panic])
def test_a_part_that_fails_is_counted_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    class Fails:
        @property
        def signals(self) -> Mapping[str, float]:
            raise kind("no numbers")

        def on_signals(self, heard: Mapping[str, float], now_s: float) -> None:
            raise kind("deaf")

    hearer, board, journal = Hearer(), SignalBoard(), StandardJournal()
    parts = {Kind.PLANNER: Fails(), Kind.ROUTER: Teller(a=1), Kind.FLOW: hearer, Kind.POWER: Teller(signals=3)}
    for now_s in range(3):
        connect(parts, board, now_s, journal)
    assert hearer.heard == {"a": 1.0, "signals": 3.0}
    assert board.faults["part"] == journal.faults[Kind.PLANNER, Fault.POLICY_ERROR] == 6
    assert len(caplog.records) == 1


def test_signals_that_panic_are_none() -> None:
    class Panics:
        def items(self) -> Any:
            raise Panic

    board = SignalBoard()
    assert board.tell("router", Panics(), 0.0) == {}  # type: ignore[arg-type]
    assert board.faults == {"signal": 1}


def test_what_ends_the_process_goes_through() -> None:
    class Stops:
        def on_signals(self, heard: Mapping[str, float], now_s: float) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hear({Kind.ROUTER: Stops()}, SignalBoard(), 0.0)


def test_a_safe_planner_that_fails_to_hear_counts_that_with_its_other_faults() -> None:
    class Deaf(StaticPlanner):
        def on_signals(self, heard: Mapping[str, float], now_s: float) -> None:
            raise RuntimeError("deaf")

    config = parse({})
    registry = CollectorRegistry()
    journal = StandardJournal(metrics=[Metrics(Kind.PLANNER, registry)])
    planner = SafePlanner(
        Deaf(StaticSettings(), build_deployment(config)), build_deployment(config), initial=initial_plan(config),
        journal=journal,
    )  # fmt: skip
    hear({Kind.PLANNER: planner}, SignalBoard(), 1.0)
    assert planner.faults[Fault.POLICY_ERROR] == 1
    assert registry.get_sample_value("pdplugins_planner_errors_total", {"kind": "policy_error"}) == 1


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_of_another_process_is_heard_and_read_again_only_after_a_change(tmp_path: Path) -> None:
    board = SignalBoard(tmp_path)
    says(tmp_path, good(rate=1.0))
    assert board.hear("router", 0.0) == {"rate": 1.0}
    before = (tmp_path / OTHER).stat()
    (tmp_path / OTHER).write_text(good(rate=2.0))
    os.utime(tmp_path / OTHER, ns=(before.st_atime_ns, before.st_mtime_ns))  # no change to be seen
    assert board.hear("router", 2.0) == {"rate": 1.0}
    os.utime(tmp_path / OTHER)
    assert board.hear("router", 2.5) == {"rate": 1.0}  # looked less than a second ago
    assert board.hear("router", 4.0) == {"rate": 2.0}
    (tmp_path / OTHER).unlink()
    assert board.hear("router", 6.0) == {}


def test_own_files_are_written_once_a_second_and_taken_back(tmp_path: Path) -> None:
    board = SignalBoard(tmp_path)

    def written() -> float:
        (mine,) = tmp_path.iterdir()
        return float(json.loads(mine.read_text())["signals"]["rate"])

    board.tell("planner", {"rate": 1.0}, 0.0)
    board.tell("planner", {"rate": 2.0}, 0.9)
    assert written() == 1.0
    board.tell("planner", {"rate": 3.0}, 1.0)
    assert written() == 3.0
    board.tell("planner", {"rate": 4.0}, -50.0)  # the clock went back
    assert written() == 4.0
    assert board.hear("router", -50.0) == {"rate": 4.0}
    board.close()
    assert list(tmp_path.iterdir()) == []


def test_boards_of_processes_with_one_pid_hear_each_other(tmp_path: Path) -> None:
    """As in containers that share the folder, each of which counts its processes from 1 on."""
    planner, router, other = (SignalBoard(tmp_path) for _ in range(3))
    planner.tell("planner", {"rate": 1.0}, 0.0)
    router.tell("router", {"share": 0.5}, 0.0)
    other.tell("router", {"held": 3.0}, 0.0)
    assert planner.hear("planner", 0.0) == {"share": 0.5, "held": 3.0}
    assert router.hear("router", 0.0) == {"rate": 1.0, "held": 3.0}


def test_a_file_that_a_dead_process_left_is_not_heard_and_removed_after_an_hour(tmp_path: Path) -> None:
    says(tmp_path, good(rate=1.0))
    now = time.time()
    board = SignalBoard(tmp_path, wall=lambda: now + 30)
    assert board.hear("router", 0.0) == {}
    says(tmp_path, "not ours", "notes.txt")
    SignalBoard(tmp_path, wall=lambda: now + 2 * signals.FORGOTTEN_S)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_wall_clock_that_goes_back_silences_files_until_they_are_written_again(tmp_path: Path) -> None:
    says(tmp_path, good(rate=1.0))
    back = time.time() - 3600
    board = SignalBoard(tmp_path, wall=lambda: back)
    assert board.hear("router", 0.0) == {}
    says(tmp_path, good(rate=2.0))
    os.utime(tmp_path / OTHER, (back, back))
    assert board.hear("router", 2.0) == {"rate": 2.0}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        good(rate=1.0)[:-5],
        b"\xff\xfe\x00",
        "null",
        "[]",
        '{"schema": 1}',
        '{"schema": 2, "signals": {"rate": 1}}',
        '{"schema": 1, "signals": [1]}',
        '{"schema": 1, "signals": {"rate": "1"}}',
        '{"schema": 1, "signals": {"rate": NaN}}',
        '{"schema": 1, "signals": {"rate": 1e999}}',
        '{"schema": 1, "signals": {"rate": 1' + "0" * 400 + "}}",
        '{"schema": 1, "signals": {"\\u001b[31m": 1}}',
        "[" * 16_000,
        "9" * 16_000,
        '{"schema": 1, "signals": {"rate": 1.0}, "x": "' + "x" * signals.MOST_BYTES + '"}',
    ],
    ids=range(16),
)
def test_hostile_or_torn_content_is_counted_and_silences_only_its_part(tmp_path: Path, content: str | bytes) -> None:
    board = SignalBoard(tmp_path)
    says(tmp_path, content)
    says(tmp_path, good(good_rate=1.0), "router.999999998.signals.json")
    assert board.hear("flow", 0.0) == {"good_rate": 1.0}
    assert board.faults["content"] == 1
    board.hear("flow", 5.0)
    assert board.faults["content"] == 1  # it has not changed, so it is not read again
    says(tmp_path, good(rate=2.0))
    assert board.hear("flow", 9.0) == {"good_rate": 1.0, "rate": 2.0}


@given(st.binary(max_size=200))
def test_no_content_makes_a_reader_raise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("signals")
    says(folder, content)
    assert SignalBoard(folder).hear("router", 0.0) == {}


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(good(rate=1.0))
    folder = tmp_path / "signals"
    folder.mkdir()
    (folder / OTHER).symlink_to(secret)
    os.mkfifo(folder / "router.999999998.signals.json")  # to open it would block for ever
    (folder / "flow.999999997.signals.json").mkdir()
    assert SignalBoard(folder).hear("power", 0.0) == {}


def test_a_crowded_folder_is_read_in_part_only(tmp_path: Path) -> None:
    for number in range(signals.MOST_PARTS + 20):
        says(tmp_path, good(**{f"rate_{number}": 1.0}), f"planner.{900_000_000 + number}.signals.json")
    assert len(SignalBoard(tmp_path).hear("router", 0.0)) == signals.MOST_PARTS


def test_a_folder_that_goes_away_is_counted_and_nothing_raises(tmp_path: Path) -> None:
    folder = tmp_path / "signals"
    board = SignalBoard(folder)
    folder.rmdir()
    board.tell("planner", {"rate": 1.0}, 0.0)
    assert board.hear("router", 0.0) == {"rate": 1.0}
    assert (board.faults["write"], board.faults["read"]) == (1, 1)
    board.close()


def test_a_folder_that_cannot_be_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"signals\.folder .*; name a folder to write in"):
        SignalBoard(tmp_path / "file")


# --- two processes ---------------------------------------------------------------------------------------------------

WRITER = """
import sys, time
from pathlib import Path
from typing import Any, ClassVar
from pdplugins.policies.stock.static import StaticPlanner, StaticSettings
from pdplugins.runtime import signals
from pdplugins.runtime.assembly import build_deployment
signals.PACE_S = 0.0  # every signal is written, as fast as the disk takes them
board = signals.SignalBoard(Path(sys.argv[1]))
count = 0
while True:
    count += 1
    board.tell("planner", {f"signal_{n}": float(count) for n in range(60)}, time.monotonic())
    if count == 1:
        print("ready", flush=True)
"""


@pytest.mark.moderate
def test_a_writer_that_is_killed_while_it_writes_leaves_nothing_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "PACE_S", 0.0)
    board = SignalBoard(tmp_path)
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            heard = [board.hear("router", time.monotonic()) for _ in range(200)]
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
        heard.append(board.hear("router", time.monotonic()))
        assert all(len(set(each.values())) == 1 and len(each) == 60 for each in heard)  # whole, of one write
        for path in tmp_path.glob(f"planner.{writer.pid}.signals.json"):
            path.unlink()
    assert board.faults == {}


@pytest.mark.moderate
def test_two_processes_hear_each_other(tmp_path: Path) -> None:
    answer = """
import sys, time
from pathlib import Path
from typing import Any, ClassVar
from pdplugins.runtime.signals import SignalBoard
board = SignalBoard(Path(sys.argv[1]))
heard = board.hear("router", 0.0)
board.tell("router", {"twice": 2 * heard["rate"]}, 0.0)
"""
    board = SignalBoard(tmp_path)
    board.tell("planner", {"rate": 21.0}, 0.0)
    subprocess.run([sys.executable, "-c", answer, str(tmp_path)], check=True, timeout=60)
    assert board.hear("planner", 0.0) == {"twice": 42.0}
    board.close()


def test_a_safe_planner_tells_the_signals_of_its_last_plan_and_its_policy_hears(
    config: Config, deployment: Deployment, see: Callable[..., PlannerView]
) -> None:
    class Policy(Hearer):
        interval_s = 5.0
        signals: ClassVar[Mapping[str, float]] = {"own": 1.0}

        def plan(self, view: PlannerView) -> ScalePlan:
            return ScalePlan(1, 1, "", {"forecast_rate": 7.0})

    policy, hearer, board = Policy(), Hearer(), build_board(config)
    planner = SafePlanner(policy, deployment, initial=ScalePlan(1, 1, ""))
    parts = {Kind.PLANNER: planner, Kind.ROUTER: hearer, Kind.FLOW: Teller(queue=3)}
    planner.plan(see(0.0))
    connect(parts, board, 0.0)
    assert hearer.heard == {"own": 1.0, "forecast_rate": 7.0, "queue": 3.0}
    assert policy.heard == {"queue": 3.0}


def test_signals_that_raise_what_cannot_be_shown_are_counted() -> None:
    class Odd(dict[str, float]):
        def items(self) -> Any:
            raise UnshowableError

    board = SignalBoard()
    assert board.tell("planner", Odd(), 0.0) == {}
    assert board.faults == {"signal": 1}


def test_files_of_processes_that_have_ended_take_nobodys_place(tmp_path: Path) -> None:
    """However a folder lists them."""
    for number in range(3 * signals.MOST_PARTS):
        name = f"planner.{900_000_000 + number}.signals.json"
        says(tmp_path, good(rate=float(number)), name)
        if number != signals.MOST_PARTS + 7:
            os.utime(tmp_path / name, (time.time() - 60, time.time() - 60))
    assert SignalBoard(tmp_path).hear("router", 0.0) == {"rate": signals.MOST_PARTS + 7.0}


def test_what_a_killed_process_was_writing_is_removed_long_after(tmp_path: Path) -> None:
    left, new, other = (tmp_path / name for name in ("flow.12.signals.part", "flow.13.signals.part", "mine.part"))
    for path in (left, new, other):
        path.write_text("{")
    for path in (left, other):
        os.utime(path, (time.time() - 9999, time.time() - 9999))
    SignalBoard(tmp_path)
    assert sorted(tmp_path.iterdir()) == [new, other]
