"""How many processes commands start: no more than there are runs, whatever `--jobs` says. All of them end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pdplugins.config import MOST_JOBS, find, load
from pdplugins.processes import pools
from pdplugins.sim.run import compare
from pdplugins.studies.advise import race
from pdplugins.studies.advise.candidates import Question, systems
from pdplugins.types import TraceRequest
from tests.command_line import invoke
from tests.programs import PDPLUGINS
from tests.waiting import runs, until

TRACE = [TraceRequest(float(index), 300, 5) for index in range(5)]
QUESTION = Question("h100/llama-3.1-70b-fp8", 8, 2.0, 0.08, 30.0, 1000, repeats=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the pools that the code has started, in order; none of them is larger than 4."""
    sizes: list[int] = []

    class Counted(ProcessPoolExecutor):
        def __init__(self, workers: int, *others: Any) -> None:
            sizes.append(workers)
            super().__init__(min(workers, 4), *others)

    for module in (compare, race):
        monkeypatch.setattr(module, "ProcessPoolExecutor", Counted)
    return sizes


def test_runs_side_by_side_have_a_process_each_at_most(started: list[int]) -> None:
    plan = compare.Plan({name: load(find("dopd")) for name in ("a", "b", "c")}, TRACE, "five", "test")
    assert [run.name for run in compare.run_all(plan, jobs=70_000)] == ["a", "b", "c"]
    assert started == [3]


def test_a_race_has_a_process_for_each_of_its_runs_at_most(started: list[int]) -> None:
    cells = list(systems(QUESTION)[0].cells(QUESTION, 4, 0))[:1]
    candidates = (cells * 3)[:3]
    with race.race({"all": TRACE}, 70_000, 0) as running:
        assert running.run([]) == []
        counts = [len(running.run([(one, "all") for one in candidates[:count]])) for count in (2, 1, 3)]
    assert counts == [2, 1, 3]
    assert started == [2, 3]


def test_the_flag_that_stops_a_race_has_no_lock() -> None:
    """A process that is killed while it looks at the flag would keep the lock, and its command would wait for ever."""
    with race.race({"all": TRACE}, 2, 0) as running:
        assert not hasattr(running._stop, "get_lock")


@pytest.mark.parametrize("words", [["compare", "dopd", "arrow"], ["advise"], ["backtest"]])
def test_very_many_jobs_are_refused(words: list[str]) -> None:
    done = invoke(*words, "--jobs", str(MOST_JOBS + 1))
    assert done.exit_code == 2
    assert str(MOST_JOBS) in done.output


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextmanager
def ended(running: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill a process after the block, if it still runs."""
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@pytest.fixture
def long_trace(tmp_path: Path) -> None:
    """Write a trace that no command is through with before a test is."""
    row = '{{"timestamp": {}, "input_length": 900, "output_length": 400}}\n'
    (tmp_path / "long.jsonl").write_text("".join(row.format(200 * index) for index in range(20_000)))


SLOWLY_FORKED = """
import os

forks = []
os.register_at_fork(before=lambda: forks.append(1), after_in_child=lambda: len(forks) == 2 and sum(range(50_000_000)))
from pdplugins.cli import main

main()
"""
"""`pdplugins` whose second process of a pool takes a second to set up, in which no handler of a signal runs."""


@pytest.mark.moderate
@pytest.mark.usefixtures("long_trace")
@pytest.mark.parametrize(
    ("number", "group", "code"),
    [(signal.SIGKILL, False, -signal.SIGKILL), (signal.SIGTERM, False, 143), (signal.SIGTERM, True, 143)],
    ids=["killed", "ended", "ended as a group"],
)
@pytest.mark.parametrize("program", [PDPLUGINS, (sys.executable, "-c", SLOWLY_FORKED)], ids=["forked", "being forked"])
@pytest.mark.parametrize("words", [["compare", "dopd", "fusion"], ["advise"]], ids=["compare", "advise"])
def test_processes_end_with_their_command(
    words: list[str], program: tuple[str, ...], number: signal.Signals, group: bool, code: int, tmp_path: Path
) -> None:
    """`timeout` ends a group, and most others the command alone."""
    command = [*program, *words, "--trace", "long.jsonl", "--jobs", "2", "--json", "out.json"]
    with ended(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)) as running:
        assert until(lambda: len(children(running.pid)) == 2, pause_s=0.001)  # they may not be set up yet
        workers = children(running.pid)
        (os.killpg if group else os.kill)(running.pid, number)
        said = running.communicate(timeout=60)[1]
        assert until(lambda: not any(map(runs, workers)))
    assert running.returncode == code, said
    assert b"Traceback" not in said


STOPPED_BETWEEN_LOCKS = """
import os
import signal
from concurrent.futures import _base

enter = _base._AcquireFutures.__enter__


def stopped(self):
    _base._AcquireFutures.__enter__ = enter
    first, *others = self.futures
    first._condition.acquire()
    os.kill(os.getpid(), signal.SIGTERM)
    for future in others:
        future._condition.acquire()


_base._AcquireFutures.__enter__ = stopped
from pdplugins.cli import main

main()
"""
"""`pdplugins` that SIGTERM reaches while `wait` takes the locks of its futures, one after the other."""


@pytest.mark.usefixtures("long_trace")
@pytest.mark.parametrize("words", [["compare", "dopd", "fusion"], ["advise"]], ids=["compare", "advise"])
def test_a_signal_leaves_no_lock_taken(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED_BETWEEN_LOCKS, *words, "--trace", "long.jsonl", "--jobs", "2"]
    with ended(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)) as running:
        said = running.communicate(timeout=60)[1]
    assert running.returncode == 143, said
    assert b"Traceback" not in said


def test_whoever_holds_ctrl_c_down_gets_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keyboard repeats it thirty times a second, and the command looks for it five times a second."""
    monkeypatch.setattr(pools, "BEAT_S", 10.0)  # however slow the machine is, all four come within one look

    def pressed() -> str:
        time.sleep(0.05)  # until the command waits
        for _ in range(4):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.02)
        return "done"

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    with ThreadPoolExecutor(1) as pool:
        try:
            (future,), stopped = pools.finished(pool, pressed, [()])
        except KeyboardInterrupt:
            pytest.fail("it was raised")
        finally:
            signal.signal(signal.SIGINT, before)
    assert stopped
    assert future.result() == "done"
