"""How many processes commands start: no more than there are runs, whatever `--jobs` says. All of them end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pdplugins.config import MOST_JOBS, find, load
from pdplugins.sim.run import compare
from pdplugins.studies import commands
from pdplugins.studies.advise import race
from pdplugins.studies.advise.candidates import Question, systems
from pdplugins.types import TraceRequest

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
    app = typer.Typer()
    commands.pd_register_commands(app)
    done = CliRunner().invoke(app, [*words, "--jobs", str(MOST_JOBS + 1)])
    assert done.exit_code == 2
    assert str(MOST_JOBS) in done.output


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def runs(pid: int) -> bool:
    """Tell whether a process is there, and not only its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def waits_until(done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
    return done()


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("number", "group", "code"),
    [(signal.SIGKILL, False, -signal.SIGKILL), (signal.SIGTERM, False, 143), (signal.SIGTERM, True, 143)],
    ids=["killed", "ended", "ended as a group"],
)
@pytest.mark.parametrize("words", [["compare", "dopd", "fusion"], ["advise"]], ids=["compare", "advise"])
def test_processes_end_with_their_command(
    words: list[str], number: signal.Signals, group: bool, code: int, tmp_path: Path
) -> None:
    """`timeout` ends a group, and most others the command alone."""
    row = '{{"timestamp": {}, "input_length": 900, "output_length": 400}}\n'
    (tmp_path / "long.jsonl").write_text("".join(row.format(200 * index) for index in range(20_000)))
    command = [*words, "--trace", "long.jsonl", "--jobs", "2", "--json", "out.json"]
    program = "from pdplugins.cli import main; main()"
    running = subprocess.Popen(
        [sys.executable, "-c", program, *command], cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert waits_until(lambda: len(children(running.pid)) == 2)
        workers = children(running.pid)
        (os.killpg if group else os.kill)(running.pid, number)
        said = running.communicate(timeout=60)[1]
        assert waits_until(lambda: not any(map(runs, workers)))
    finally:
        running.kill()
    assert running.returncode == code, said
    assert b"Traceback" not in said
