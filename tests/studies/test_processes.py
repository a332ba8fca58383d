"""How many processes commands start: no more than there are runs, whatever `--jobs` says."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
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


@pytest.mark.parametrize("words", [["compare", "dopd", "arrow"], ["advise"], ["backtest"]])
def test_very_many_jobs_are_refused(words: list[str]) -> None:
    app = typer.Typer()
    commands.pd_register_commands(app)
    done = CliRunner().invoke(app, [*words, "--jobs", str(MOST_JOBS + 1)])
    assert done.exit_code == 2
    assert str(MOST_JOBS) in done.output
