"""What fusion learns: lengths without a bias for short answers, and the pace of the pool."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.lengths import (
    EARLY,
    MOST_DECODING,
    MOST_GAP_S,
    MOST_OPEN,
    MOST_TOKENS,
    PRIOR,
    MeanLengths,
)
from pdplugins.policies.fusion.pace import LEAST_RATIO, PoolPace
from pdplugins.testing import deployment, request, worker
from tests.policies.fusion.model import MODEL


def traffic(lengths: MeanLengths, outputs: list[int], rate: float, end_s: float, tpot_s: float = 0.02) -> None:
    """Let requests of these outputs come, and end where they do by `end_s`."""
    begun = [index / rate for index in range(len(outputs))]
    events = [(at_s, 0, index) for index, at_s in enumerate(begun)]
    events += [(begun[index] + tokens * tpot_s, 1, index) for index, tokens in enumerate(outputs)]
    for at_s, ends, index in sorted(event for event in events if event[0] <= end_s):
        if ends:
            lengths.ended(request(str(index)), outputs[index], tpot_s, at_s)
        else:
            lengths.began(request(str(index), 1000), at_s)


def test_requests_that_go_on_count_for_as_long_as_they_have_gone_on() -> None:
    """After 20 s only answers below 1,000 tokens can have ended: their mean alone is far below the true one."""
    rng = random.Random(0)
    outputs = [int(rng.expovariate(1 / 800)) + 1 for _ in range(400)]
    lengths = MeanLengths(256)
    traffic(lengths, outputs, 20.0, 20.0)
    ended = [tokens for index, tokens in enumerate(outputs) if index / 20.0 + tokens * 0.02 <= 20.0]
    assert fmean(ended) < 0.5 * fmean(outputs)
    assert lengths.osl == pytest.approx(fmean(outputs), rel=0.2)


def test_one_long_answer_does_not_keep_later_ones_from_counting() -> None:
    lengths = MeanLengths(256)
    traffic(lengths, [100_000] + [28] * 300, 10.0, 30.0)
    assert lengths.osl == pytest.approx((1500 + 300 * 28) / 301, rel=0.2)


@pytest.mark.parametrize("mean", [30, 300, 3000])
def test_the_mean_becomes_that_of_the_answers(mean: int) -> None:
    rng = random.Random(mean)
    outputs = [int(rng.lognormvariate(math.log(mean) - 0.32, 0.8)) + 1 for _ in range(3000)]
    lengths = MeanLengths(256)
    traffic(lengths, outputs, 10.0, 1e9)
    assert lengths.osl == pytest.approx(mean, rel=0.15)


def test_the_prior_counts_until_some_answers_have_come() -> None:
    lengths = MeanLengths(256)
    traffic(lengths, [28] * (EARLY - 1), 1.0, 1e9)
    assert (lengths.osl, lengths.answered) == (256, 0)
    lengths = MeanLengths(256)
    traffic(lengths, [28] * EARLY, 1.0, 1e9)
    trust = EARLY / (EARLY + PRIOR)
    assert lengths.osl == pytest.approx(28**trust * 256 ** (1 - trust))
    assert lengths.answered == 2


def test_what_is_decoded_counts_before_any_answer_has_ended() -> None:
    """One comes each second, and each has 50 tokens a second: after 40 s they have about 1,000 in the mean."""
    lengths = MeanLengths(256)
    for number in range(40):
        lengths.began(request(str(number)), float(number))
        lengths.decoded(number, 50.0 * number, float(number))
    assert lengths.osl == pytest.approx((1 + 39 / 40) * 50 * sum(range(40)) / 40)


def test_usual_answers_leave_the_prior_as_it_is_where_nobody_tells_of_ends() -> None:
    """Each has 300 tokens, at 50 a second, so six decode at any time."""
    lengths = MeanLengths(256)
    for number in range(400):
        lengths.began(request(str(number)), float(number))
        lengths.decoded(min(number, 6), 50.0 * min(number, 6), float(number))
    assert lengths.osl == 256


def test_a_report_after_a_long_silence_counts_for_a_few_seconds() -> None:
    lengths = MeanLengths(256)
    lengths.began(request("r"))
    for now_s in (0.0, 3600.0):
        lengths.decoded(1, 100.0, now_s)
    assert lengths.osl == 2 * 100.0 * MOST_GAP_S


def test_answers_that_have_ended_say_more_than_what_goes_on() -> None:
    lengths = MeanLengths(256)
    traffic(lengths, [28] * EARLY, 1.0, 1e9)
    told = lengths.osl
    for now_s in range(100):
        lengths.decoded(20, 1000.0, float(now_s))
    assert lengths.osl == told


def test_the_core_hears_from_workers_how_fast_they_decode() -> None:
    core = Core(FusionSettings(), deployment(MODEL))
    core.lengths.began(request("r"))
    load = {"decode_requests": 5.0, "decode_tokens": 5000.0}
    workers = [worker("a", **load, recent_tbt_s=0.02), worker("b", **load, recent_tbt_s=math.nan), worker("c")]
    core.look(workers, 20.0)
    assert core.lengths.osl == 256
    core.look(workers, 22.0)
    assert core.lengths.osl == pytest.approx(2 * 2 * 5 / 0.02)


def test_news_is_told_when_there_are_four_times_as_many_answers() -> None:
    lengths, news = MeanLengths(256), []
    for number in range(200):
        lengths.began(request(str(number)))
        lengths.ended(request(str(number)), 28)
        news.append(lengths.answered)
    assert [number + 1 for number in range(1, 200) if news[number] > news[number - 1]] == [8, 32, 128]


def test_a_request_counts_once_and_one_that_failed_says_nothing() -> None:
    lengths = MeanLengths(100)
    for _ in range(2):
        lengths.began(request("a", 1000))
    lengths.ended(request("a"), None)
    lengths.ended(request("a"), 5)
    assert (lengths.isl, lengths.osl, lengths.answers) == (1000.0, 100.0, 0)


def test_a_request_that_comes_again_counts_as_one() -> None:
    lengths = MeanLengths(100)
    for _ in range(30):
        lengths.began(request("a", 1000))
        lengths.ended(request("a"), 5)
    assert lengths.answers == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([None, 0, 5, -3, 10**400]), st.floats(allow_nan=True))))
def test_no_history_breaks_the_mean(events: list[tuple[int, int | None, float]]) -> None:
    lengths = MeanLengths(100)
    for name, tokens, number in events:
        lengths.began(request(str(name), 10), 0.0)
        lengths.ended(request(str(name)), tokens, number, 1.0)
        assert 1.0 <= lengths.osl <= MOST_TOKENS
        assert 1 / MOST_DECODING <= lengths.decoding <= MOST_DECODING
        assert lengths.answers >= 0


def test_answers_are_heard_however_many_requests_are_in_service() -> None:
    lengths, open_ = MeanLengths(256), 5000
    for index in range(20_000):
        lengths.began(request(str(index)), index * 0.01)
        if index >= open_:
            lengths.ended(request(str(index - open_)), 1000, 0.05, index * 0.01)
    assert lengths.answers > 100
    assert lengths.osl == pytest.approx(1000, rel=0.2)


def test_requests_that_never_end_do_not_fill_the_memory() -> None:
    lengths = MeanLengths(100)
    for number in range(2 * MOST_OPEN):
        lengths.began(request(str(number)))
    assert len(lengths._open) == len(lengths._recent) == MOST_OPEN


def test_short_answers_count_more_in_what_is_short() -> None:
    lengths = MeanLengths(100)
    for number in range(2000):
        lengths.began(request(str(number)))
        lengths.ended(request(str(number)), 10 if number % 2 else 1000)
    assert lengths.short == pytest.approx(2 / (1 / 10 + 1 / 1000), rel=0.1)
    assert lengths.osl == pytest.approx(505, rel=0.1)


def test_what_decodes_at_one_time_is_mostly_long_answers() -> None:
    """Half of the requests are 1000+10 and half 200+1000: nearly all that decode are of the second kind."""
    lengths = MeanLengths(100)
    for number in range(400):
        lengths.began(request(str(number), 200 if number % 2 else 1000))
        lengths.ended(request(str(number)), 1000 if number % 2 else 10)
    at_one_time = (10 * 1005 + 1000 * 700) / 1010
    assert lengths.decoding == pytest.approx(at_one_time / ((1005 + 700) / 2), rel=0.05)


def test_the_spread_is_that_of_the_prompts() -> None:
    lengths = MeanLengths(100)
    for number, tokens in enumerate([1000, 3000] * 10):
        lengths.began(request(str(number), tokens))
    assert lengths.spread == pytest.approx((1000**2 + 3000**2) / 2 / 2000**2)


def test_history_is_not_computed_again() -> None:
    lengths = MeanLengths(100)
    lengths.began(request("a", 1000, history_tokens=900))
    assert (lengths.isl, lengths.history) == (100.0, 900.0)
    lengths.began(request("b", 500))
    assert (lengths.isl, lengths.history) == (300.0, 450.0)


@pytest.mark.parametrize(("done", "ratio"), [(1.0, 1.0), (0.5, 0.5), (0.0, LEAST_RATIO), (3.0, 1.0)])
def test_the_pace_becomes_that_of_the_pool(done: float, ratio: float) -> None:
    """Four workers are predicted, and the work of four times `done` gets done."""
    pace = PoolPace()
    for tick in range(400):
        pace.speed(4.0, tick * 0.1)
        pace.started(4.0 * done * 0.1)
    assert pace.ratio == pytest.approx(ratio, rel=0.1)


def test_an_idle_pool_says_nothing_about_its_pace() -> None:
    pace = PoolPace()
    for tick in range(400):
        pace.speed(4.0, tick * 0.1)
        pace.idle(tick * 0.1)
    assert pace.ratio == 1.0


def test_what_was_measured_fades_while_nothing_waits() -> None:
    pace = PoolPace()
    for tick in range(400):
        pace.speed(4.0, tick * 0.1)
    assert pace.ratio == pytest.approx(LEAST_RATIO, rel=0.1)
    pace.idle(40.0)
    pace.idle(100.0)
    assert pace.ratio == pytest.approx(1.0, rel=0.01)
