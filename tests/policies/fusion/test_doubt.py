"""A composition changes where that pays whatever the mean length of answers is, and not while nobody needs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.contracts.router import Ending, Outcome
from pdplugins.policies.fusion.composition import Frontier, Lengths, Point
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.doubt import Cases, parts
from pdplugins.policies.fusion.lengths import EARLY, RECENT
from pdplugins.testing import request

Cores = Callable[..., Core]
WORKERS = 8


class Table(Frontier):
    """Serves what a table says for each number of workers that only prefill."""

    rates: tuple[float, ...]

    def rate(self, prefill_only: int, mixed: int) -> float:
        assert prefill_only + mixed == len(self.rates)
        return self.rates[prefill_only]


def table(rates: tuple[float, ...]) -> Table:
    does = Table(Lengths(1.0, 1.0), 1.0, (Point(1.0, 0.0),))
    object.__setattr__(does, "rates", rates)
    return does


def cases(*rates: tuple[float, ...], answers: int = 100) -> Cases:
    of = dict(zip(parts(answers), rates, strict=True))
    return Cases(len(rates[0]), answers, lambda part: table(of[part]))


rows = st.tuples(*[st.floats(0.1, 100.0)] * 4)


@given(rows, rows, rows, st.integers(0, 3), st.floats(0.0, 0.2))
def test_a_change_pays_in_every_case(
    mean: tuple[float, ...], longer: tuple[float, ...], shorter: tuple[float, ...], present: int, gain: float
) -> None:
    def least(count: int) -> float:
        return min(rates[count] / rates[present] for rates in (mean, longer, shorter))

    chosen = cases(mean, longer, shorter).better(present, gain)
    best = max(map(least, range(4)))
    if chosen == present:
        assert least(present) * (1 + gain) >= best * (1 - 1e-9)
    else:
        assert least(chosen) > 1 - 1e-9
        assert least(chosen) * (1 + gain) >= best * (1 - 1e-9)


def test_what_only_pays_for_short_answers_is_not_done() -> None:
    """With three that prefill only one is left to decode: the best number if answers are as short as they seem."""
    mean, longer, shorter = (10.0, 9.0, 9.0, 12.0), (9.0, 8.0, 8.0, 4.0), (11.0, 10.0, 9.0, 15.0)
    assert cases(mean, longer, shorter).better(2, 0.03) == 0
    assert cases(mean, mean, mean).better(2, 0.03) == 3


def test_a_correction_costs_little_in_every_case() -> None:
    found = cases((10.0, 9.9, 9.9, 9.9), (10.0, 9.9, 8.0, 9.9), (10.0, 9.9, 9.9, 5.0))
    assert [found.keeps(count, 0.02) for count in range(4)] == [True, True, False, False]


@given(st.integers(0, 10_000))
def test_answers_may_be_longer_by_more_than_shorter(answers: int) -> None:
    mean, longer, shorter = parts(answers)
    assert mean == 1 < longer
    assert shorter < 1 < longer * shorter
    assert longer > parts(4 * answers + 4)[1]


def answered(shared: Core, count: int, prompt: int, output: int, *, ttft_s: float = 0.1, tpot_s: float = 0.01) -> None:
    """Let so many requests come, one each tenth of a second, and end."""
    for number in range(count):
        asked = request(f"{prompt} {output} {number}", prompt)
        shared.lengths.began(asked, number / 10)
        shared.ended(asked, Outcome(Ending.FINISHED, output, ttft_s, tpot_s))
    shared.lengths.osl = float(output)


def test_after_more_answers_less_is_doubted(core: Cores) -> None:
    """Many that prefill only serve the most if answers have 100 tokens, and few if they have far more."""
    few, many = (core(dwell_s=0.0, feedback=0.0) for _ in range(2))
    answered(few, EARLY, 2000, 100)
    answered(many, RECENT, 2000, 100)
    first, later = (each.compose(WORKERS, 0, 200_000, 1e4) for each in (few, many))
    assert first is not None
    assert later is not None
    assert first < later <= many.frontier(2000.0, 105.0, 200_000).best(WORKERS)


@pytest.mark.parametrize(("rate", "ttft_s", "stays"), [(0.1, 0.1, True), (10.0, 0.1, False), (0.1, 1e3, False)])
def test_a_pool_that_has_room_and_misses_nothing_stays_as_it_is(
    core: Cores, rate: float, ttft_s: float, stays: bool
) -> None:
    shared = core(dwell_s=0.0)
    capacity = shared.frontier(2000.0, 10.5, 200_000).rate(1, WORKERS - 1)
    for number in range(RECENT):
        asked = request(str(number), 2000)
        shared.lengths.began(asked, number / (rate * capacity))
        shared.ended(asked, Outcome(Ending.FINISHED, 10, ttft_s, 0.01))
    wanted = shared.compose(WORKERS, 1, 200_000, RECENT / (rate * capacity))
    assert (wanted == 1) == stays


@pytest.mark.parametrize(("answers", "stays"), [(EARLY, False), (RECENT, True)])
def test_there_is_room_only_if_there_is_for_longer_answers(core: Cores, answers: int, stays: bool) -> None:
    """One worker that decodes has room for answers of 1,000 tokens, and none if they are twice as long."""
    shared = core(dwell_s=0.0)
    rate = shared.frontier(100.0, 1050.0, 200_000).rate(WORKERS - 1, 1) / 1.5
    for number in range(2 * answers):
        asked = request(str(number), 100)
        shared.lengths.began(asked, number / rate)
        if number % 2:
            shared.ended(asked, Outcome(Ending.FINISHED, 1000, 0.1, 0.01))
    shared.lengths.osl = 1000.0
    assert shared.lengths.answers == answers
    wanted = shared.compose(WORKERS, WORKERS - 1, 200_000, 2 * answers / rate)
    assert (wanted == WORKERS - 1) == stays


def test_nothing_is_saved_while_tpot_is_what_is_missed(core: Cores) -> None:
    shared = core()
    shared.sizes_steps = True
    for tpot_s, saves in ((0.01, True), (1.0, False), (0.01, True)):
        answered(shared, RECENT, 2000, 400, tpot_s=tpot_s)
        shared.look((), 0.0)
        saved_s = shared.costs.most_saved_s(0.0, shared.costs.step_s)
        assert (saved_s > shared.costs.step_s) == saves
