"""The verdict on a run: each miss counted once, by objective, cause and time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pdplugins.types import Slo
from pdplugins.verdict import TPOT_ERROR, TTFT_ERROR, Cause, Missed, Times, lines, missed, starting_spells

SLO = Slo(1.0, 0.1)
NAN = float("nan")


def found(
    rows: list[tuple[float, float, float]], starting: tuple[tuple[float, float], ...] = (), **more: list[float]
) -> Missed:
    arrival, ttft, tpot = np.array(rows, dtype=float).T
    return missed(Times(arrival, ttft, tpot, **{name: np.array(value) for name, value in more.items()}), SLO, starting)


def test_each_miss_counts_once() -> None:
    one = found([(0, 0.5, 0.05), (1, 2, 0.05), (2, 0.5, 0.2), (3, 2, 0.2), (4, NAN, NAN)])
    assert (one.total, one.ttft, one.tpot, one.both, one.failed, one.count) == (5, 1, 1, 1, 1, 4)
    assert sum(one.causes.values()) == one.count


def test_a_late_first_token_has_one_cause() -> None:
    rows = [(0, 2.0, 0.05), (10, 2.0, 0.05), (20, 2.0, 0.05)]
    one = found(rows, starting=((5, 15),), alone_s=[1.5, 0.1, 0.1])
    assert one.causes == {Cause.HOPELESS: 1, Cause.STARTING: 1, Cause.WAITED: 1}


def test_slow_tokens_say_whether_prompts_were_beside() -> None:
    one = found([(0, 0.1, 0.2), (1, 0.1, 0.2), (2, 0.1, 0.2)], local=[1, 1, 0])
    assert one.causes == {
        Cause.MIXED: 2,
        Cause.CROWDED: 1,
    }


def test_a_step_that_is_too_long_alone_is_nobodys_crowd() -> None:
    one = found([(0, 0.1, 0.2), (1, 0.1, 0.2), (2, 0.1, 0.05)], local=[1, 0, 0], alone_tpot_s=[0.15, 0.01, 0.15])
    assert one.causes == {Cause.ALONE: 1, Cause.CROWDED: 1}


def test_the_worst_part_of_the_run_is_named() -> None:
    rows = [(float(second), 2.0 if 40 <= second < 45 else 0.1, 0.01) for second in range(101)]
    one = found(rows)
    assert one.worst is not None
    assert (one.worst.start_s, one.worst.end_s, one.worst.missed, one.worst.total) == (40, 45, 5, 5)
    assert "between 40 and 45 s, 5 of 5" in lines(one, SLO)[2]


@pytest.mark.parametrize(
    ("ttft", "low", "high"),
    [
        (0.99, 0.0, 1.0),  # inside, but not when times are longer
        (0.99 / (1 + TTFT_ERROR), 1.0, 1.0),
        (1.01, 0.0, 1.0),  # outside, but not when times are shorter
        (1.01 * (1 + TTFT_ERROR), 0.0, 0.0),
    ],
)
def test_the_known_error_of_the_simulator_moves_attainment(ttft: float, low: float, high: float) -> None:
    one = found([(0, ttft, 0.01)])
    assert (one.low, one.high) == (low, high)


def test_a_run_without_misses_says_so() -> None:
    assert lines(found([(0, 0.1, 0.01)]), SLO) == ["All 1 requests were inside both objectives."]


def test_the_known_error_is_the_published_one() -> None:
    path = Path(__file__).parents[1] / "benchmarks/results/fidelity-silicon.json"
    silicon = json.loads(path.read_text())
    published = silicon["ttft"]["median_abs_error"], silicon["tpot"]["median_abs_error"]
    assert tuple(round(error, 3) for error in published) == (TTFT_ERROR, TPOT_ERROR)


def test_a_pool_that_grows_while_the_other_shrinks_starts_workers_unless_they_move() -> None:
    changes = [(0.0, 1, 3), (60.0, 2, 2), (90.0, 2, 3), (120.0, 1, 3)]
    assert list(starting_spells(changes, 30.0)) == [(60.0, 90.0), (90.0, 120.0)]
    assert list(starting_spells(changes, 30.0, moves=True)) == [(90.0, 120.0)]
