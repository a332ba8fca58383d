"""What fusion learns: lengths without a bias for short answers, and the pace of the pool."""

from __future__ import annotations

import pytest

from pdplugins.policies.fusion.lengths import EARLY, JUDGED, MOST_OPEN, FirstAnswers, MeanLengths
from pdplugins.policies.fusion.pace import LEAST_RATIO, Pace
from pdplugins.testing import request


def test_short_answers_count_only_with_the_long_ones_that_began_before() -> None:
    lengths = MeanLengths(100)
    for name in ("long", "short"):
        lengths.began(request(name, 1000))
    lengths.ended(request("short"), 1)
    assert lengths.osl == 100.0
    lengths.ended(request("long"), 2000)
    assert lengths.osl > 100.0


def test_a_request_counts_once_and_one_that_failed_says_nothing() -> None:
    lengths = MeanLengths(100)
    for _ in range(2):
        lengths.began(request("a", 1000))
    lengths.ended(request("a"), None)
    lengths.ended(request("a"), 5)
    assert (lengths.isl, lengths.osl) == (1000.0, 100.0)


def test_an_answer_that_never_ends_does_not_stop_the_learning() -> None:
    lengths = MeanLengths(100)
    lengths.began(request("endless"))
    for index in range(MOST_OPEN):
        lengths.began(request(str(index)))
        lengths.ended(request(str(index)), 500)
    assert lengths.osl > 400.0


def test_the_prior_is_forgotten_after_some_answers() -> None:
    lengths = MeanLengths(256)
    for number in range(40):
        one = request(str(number), prompt_tokens=1000)
        lengths.began(one)
        lengths.ended(one, 28)
    assert lengths.isl == 1000
    assert lengths.osl == pytest.approx((4 * 256 + 40 * 28) / 44)


def test_a_prior_that_makes_contexts_half_as_long_again_counts_no_longer() -> None:
    lengths = MeanLengths(4096)
    for number in range(JUDGED):
        one = request(str(number), prompt_tokens=1000)
        lengths.began(one)
        lengths.ended(one, 200)
    assert lengths.osl == lengths.prior == pytest.approx(200)


def test_a_prior_that_is_far_too_long_is_dropped_after_the_first_answers_though_longer_ones_go_on() -> None:
    """Nothing counts in order here: the first request still goes on."""
    lengths = MeanLengths(4096)
    for number in range(12):
        lengths.began(request(str(number), 1000), 0.0)
    for number in range(1, EARLY):
        lengths.ended(request(str(number)), 100, 0.02, 2.0)
    assert lengths.osl == 4096
    lengths.ended(request(str(EARLY)), 100, 0.02, 2.0)
    assert lengths.osl == lengths.prior == pytest.approx((EARLY * 100 + (12 - EARLY) * 100) / EARLY)


@pytest.mark.parametrize(
    ("prior", "tokens", "tpot_s", "now_s"),
    [
        pytest.param(256, 28, 0.02, 1.0, id="not so long"),
        pytest.param(4096, 100, 0.02, 500.0, id="the others go on for as long as it says"),
        pytest.param(4096, 100, None, 2.0, id="nobody saw how fast"),
        pytest.param(4096, None, 0.02, 2.0, id="none has finished"),
    ],
)
def test_a_prior_that_the_first_answers_do_not_contradict_stays(
    prior: int, tokens: int | None, tpot_s: float | None, now_s: float
) -> None:
    lengths = MeanLengths(prior)
    for number in range(12):
        lengths.began(request(str(number), 1000), 0.0)
    for number in range(1, 11):
        lengths.ended(request(str(number)), tokens, tpot_s, now_s)
    assert lengths.osl == lengths.prior == prior


def test_first_answers_do_not_fill_the_memory() -> None:
    first = FirstAnswers()
    for number in range(2 * MOST_OPEN):
        first.began(str(number), 0.0)
    assert len(first._begun_s) == MOST_OPEN


def test_history_is_not_computed_again() -> None:
    lengths = MeanLengths(100)
    lengths.began(request("a", 1000, history_tokens=900))
    assert (lengths.isl, lengths.history) == (100.0, 900.0)
    lengths.began(request("b", 500))
    assert (lengths.isl, lengths.history) == (300.0, 450.0)


@pytest.mark.parametrize(("done", "ratio"), [(1.0, 1.0), (0.5, 0.5), (0.0, LEAST_RATIO), (3.0, 1.0)])
def test_the_pace_becomes_that_of_the_pool(done: float, ratio: float) -> None:
    """Four workers are predicted, and the work of four times `done` gets done."""
    pace = Pace()
    for tick in range(400):
        pace.speed(4.0, tick * 0.1)
        pace.started(4.0 * done * 0.1)
    assert pace.ratio == pytest.approx(ratio, rel=0.1)


def test_an_idle_pool_says_nothing_about_its_pace() -> None:
    pace = Pace()
    for tick in range(400):
        pace.speed(4.0, tick * 0.1)
        pace.idle()
    assert pace.ratio == 1.0
