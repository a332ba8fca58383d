"""Bars and tables on a terminal: names are shown as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdplugins.config import find, load
from pdplugins.hosts.dynamo.offline import commands
from pdplugins.sim.run.simulate import simulate
from pdplugins.terminal import progress
from pdplugins.types import TraceRequest

NAME = "[/x].yaml"


def test_a_bar_shows_a_name_that_looks_like_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress([NAME, "\x1b]0;owned\x07"]) as shares:
        shares([0.5, 0.5])
    drawn = capsys.readouterr().err
    assert NAME in drawn
    assert "\x1b]0;owned" not in drawn


def test_the_table_of_a_replay_shows_a_name_that_looks_like_markup(capsys: pytest.CaptureFixture[str]) -> None:
    result, _ = simulate(load(find("dopd")), [TraceRequest(0.0, 100, 5)], trace_name="one", command="test")
    result.config["run"]["planner"] = "none"
    commands._show(result, Path(NAME))
    assert NAME in capsys.readouterr().out
