"""The pieces of work that tell how fast this machine is, and the clocks that go with it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks.rig.speed import Clock, Pieces


def test_a_clock_goes_slower_while_the_machine_does_and_is_right_in_the_end() -> None:
    """Two seconds at full speed, and two in which work takes three times as long."""
    clock = Clock([1.0, 1.0, 3.0, 3.0], 1.0)
    assert [clock.own_s(s) for s in (0.0, 1.0, 2.0, 3.0, 4.0, 6.0)] == pytest.approx([0.0, 1.5, 3.0, 3.5, 4.0, 6.0])
    for real_s in (0.0, 0.7, 2.2, 3.9, 4.0, 9.5):
        assert clock.real_s(clock.own_s(real_s)) == pytest.approx(real_s)


@pytest.mark.moderate
def test_pieces_are_worked_on_on_each_core_until_they_are_closed(tmp_path: Path) -> None:
    began_s = time.monotonic()
    with Pieces(tmp_path) as pieces:
        deadline_s = began_s + 30
        while len(list(tmp_path.glob("speed-*.txt"))) < len(os.sched_getaffinity(0)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        time.sleep(1.0)
        ended_s = time.monotonic()
        speed = pieces.speed(began_s, ended_s)
        assert 1e-5 < speed.compute_s < 0.1
        assert 1e-5 < speed.memory_s < 0.1
        for clock in pieces.clocks(began_s, ended_s):
            assert clock.own_s(ended_s - began_s) == pytest.approx(ended_s - began_s)
    lines = {path: path.read_text() for path in tmp_path.glob("speed-*.txt")}
    assert len(lines) == len(os.sched_getaffinity(0))
    time.sleep(0.3)
    assert {path: path.read_text() for path in lines} == lines, "nobody works on them any more"


def test_a_time_without_a_piece_has_no_speed(tmp_path: Path) -> None:
    """A line that is still being written does not count."""
    core = min(os.sched_getaffinity(0))
    (tmp_path / f"speed-{core}.txt").write_text("10.0 0.0001 0.001\n11.0 0.0002 0.003\n12.0 0.0003 0.0")
    pieces = Pieces(tmp_path)
    assert pieces.speed(0, 20).memory_s == pytest.approx(0.002)
    with pytest.raises(ValueError, match=r"between 11\.5 and 20\.0 s"):
        pieces.speed(11.5, 20)
