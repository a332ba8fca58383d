"""The programme: what a look at the curve says is what trying every rate says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.fusion.composition import MOST_COUNTS, Frontier, Lengths, Point, curve
from pdplugins.policies.fusion.core import RESERVE, Core
from pdplugins.policies.fusion.lengths import EARLY, RECENT
from pdplugins.testing import request

numbers = st.floats(1.0, 1000.0)


def knows(shared: Core, isl: float, osl: float) -> Core:
    """Let so many answers have come that nobody doubts their mean."""
    for number in range(RECENT):
        shared.lengths.began(request(str(number), int(isl)))
        shared.lengths.ended(request(str(number)), int(osl))
    shared.lengths.osl = osl
    return shared


points = st.lists(st.tuples(numbers, st.one_of(st.just(0.0), numbers)), min_size=1, max_size=12)


def served(does: Frontier, rate: float, prefill_only: int, mixed: int) -> bool:
    """Return whether workers serve a rate: all that decode are at the point of the curve that decodes as much."""
    xs, ys = np.array(does.mixed).T
    decoded = rate * does.lengths.osl / mixed if mixed else np.inf
    if decoded > xs[-1]:
        return False
    beside = mixed * np.interp(decoded, xs, ys)
    return bool(prefill_only * does.prefill + beside >= rate * does.lengths.isl)


@pytest.mark.moderate
@given(points, numbers, numbers, numbers, st.integers(0, 6), st.integers(1, 6))
def test_the_rate_is_the_largest_that_the_workers_serve(
    columns: list[Point], prefill: float, isl: float, osl: float, prefill_only: int, mixed: int
) -> None:
    does = Frontier(Lengths(isl, osl), prefill, curve(columns))
    rate = does.rate(prefill_only, mixed)
    if does.mixed[0][0] * mixed / osl <= rate:  # below the first point the curve says nothing
        assert served(does, rate * (1 - 1e-6), prefill_only, mixed)
    assert not served(does, rate * (1 + 1e-6) + 1e-9, prefill_only, mixed)


def test_workers_that_decode_are_alike(core: Callable[..., Core]) -> None:
    """Half of them at each end of a sagging curve would do more, but the router keeps them alike."""
    sagging = Frontier(Lengths(100.0, 100.0), 1000.0, ((0.0, 1000.0), (100.0, 10.0), (1000.0, 0.0)))
    assert sagging.rate(0, 2) < 2.0
    assert sagging.rate(1, 1) == pytest.approx(10.0)


@given(numbers, st.floats(1.0, 4.0), st.floats(0.001, 10.0), st.integers(1, 8))
def test_less_time_to_wait_serves_less(isl: float, spread: float, wait_s: float, workers: int) -> None:
    whole = Frontier(Lengths(isl, 10.0, spread=spread), 1000.0, ((1.0, 1000.0), (1e4, 0.0)))
    hasty = replace(whole, waits_s=(wait_s, wait_s))
    assert 0 < hasty.rate(workers, workers) < whole.rate(workers, workers)
    assert hasty.rate(0, workers) < replace(whole, waits_s=(wait_s, 2 * wait_s)).rate(0, workers)


@pytest.mark.moderate
@given(points, numbers, numbers, numbers, st.integers(2, 12), st.sampled_from([0.0, 0.03, 0.3]))
def test_the_number_is_the_smallest_that_is_good_enough(
    columns: list[Point], prefill: float, isl: float, osl: float, workers: int, gain: float
) -> None:
    does = Frontier(Lengths(isl, osl), prefill, curve(columns))
    rates = [does.rate(n, workers - n) for n in range(workers)]
    found = does.best(workers, gain)
    assert rates[found] >= max(rates) / (1 + gain) * (1 - 1e-9)
    assert all(rate < max(rates) / (1 + gain) * (1 + 1e-9) for rate in rates[:found])


@given(points)
def test_no_point_beats_one_of_the_curve_in_both_numbers(columns: list[Point]) -> None:
    kept = curve(columns)
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    for x, y in columns:
        assert any(kept_x >= x and kept_y >= y for kept_x, kept_y in kept)
    assert not any(
        (x >= kept_x and y > kept_y) or (x > kept_x and y >= kept_y) for x, y in columns for kept_x, kept_y in kept
    )


def test_long_prompts_need_prefill_workers_and_long_answers_need_none(core: Callable[..., Core]) -> None:
    """Both ends are legal: co-location, and one decode worker behind seven that prefill."""
    assert core().frontier(300.0, 2000.0, 200_000).best(8, 0.03) == 0
    assert core().frontier(20_000.0, 10.0, 200_000).best(8) == 7


def test_workers_that_cannot_mix_need_both_kinds(core: Callable[..., Core]) -> None:
    does = core().frontier(1000.0, 200.0, 200_000, mixes=False)
    assert does.rate(0, 8) == does.rate(8, 0) == 0.0
    assert 0 < does.best(8) < 8


def test_a_tighter_slo_serves_less(core: Callable[..., Core]) -> None:
    loose, strict = (core(tpot_share=share).frontier(1000.0, 200.0, 200_000) for share in (0.95, 0.4))
    assert 0 < strict.rate(2, 6) < loose.rate(2, 6)


def test_less_kv_cache_serves_less(core: Callable[..., Core]) -> None:
    large, small = (core().frontier(2000.0, 500.0, tokens) for tokens in (200_000, 8_000))
    assert 0 < small.rate(0, 4) < large.rate(0, 4)


def test_decodes_read_the_history_of_a_session_too(core: Callable[..., Core]) -> None:
    """A round with a history decodes as slowly as a request that computes all of that context."""
    round_, whole = core().frontier(200.0, 500.0, 50_000, history=3800.0), core().frontier(4000.0, 500.0, 50_000)
    assert round_.lengths.context == whole.lengths.context
    assert round_.mixed[-1][0] == whole.mixed[-1][0]


def test_a_history_costs_those_that_prefill_only(core: Callable[..., Core]) -> None:
    """They fetch it. So fewer workers prefill only than where as much is computed and nothing is fetched."""
    new, later = (core().frontier(500.0, 50.0, 200_000, history=history) for history in (0.0, 8000.0))
    assert later.prefill < 0.8 * new.prefill
    assert later.best(8) < replace(later, prefill=new.prefill).best(8)


def test_places_of_requests_that_wait_for_their_prefill_do_not_decode(core: Callable[..., Core]) -> None:
    """A request has its place for `held + OSL * t` seconds, of which it decodes in the last ones: Little's law."""
    shared = core()
    all_decode, some_wait = (shared.frontier(1000.0, 50.0, 50_000, held_s=held_s) for held_s in (0.0, 0.3))
    places = int(0.85 * 50_000 / all_decode.lengths.context)
    step_s = shared.costs.decode_s(places, all_decode.lengths.context)
    assert all_decode.mixed[-1][0] == pytest.approx(places / step_s)
    assert some_wait.mixed[-1][0] == pytest.approx(places / (step_s + 0.3 / 50.0))
    assert some_wait.prefill == all_decode.prefill


def test_places_of_requests_that_are_not_prefilled_yet_cost_those_that_decode_alone_most(
    core: Callable[..., Core],
) -> None:
    """Two workers that decode for six have few places, and many of these wait. Eight have more than they need."""
    shared = core()
    full, held = (shared.frontier(3000.0, 80.0, 60_000, held_s=held_s) for held_s in (0.0, shared.held_s(3000.0)))
    assert held.rate(6, 2) < 0.85 * full.rate(6, 2)
    assert held.rate(0, 8) > 0.98 * full.rate(0, 8)


def test_composition_plans_with_longer_answers_than_the_mean(core: Callable[..., Core]) -> None:
    """Places to decode that are short delay all requests, so it does not choose a number that is just enough."""
    shared = knows(core(dwell_s=0.0, gain=0.0), 3000.0, 80.0)
    just_enough = shared.frontier(3000.0, 80.0, 60_000, held_s=shared.held_s(3000.0))
    assert just_enough.best(8) == 2
    assert shared.compose(8, 7, 60_000, 0.0) == 1


def test_the_largest_batch_and_the_largest_step_within_the_slo_are_choices(core: Callable[..., Core]) -> None:
    """Sizes that are tried lie a quarter apart. The rate at the ends must not depend on where they happen to lie."""
    shared = core()
    costs, most = shared.costs, shared.deployment.max_batch
    for osl in (900.0, 930.0, 960.0, 990.0):
        does = shared.frontier(1000.0, osl, 10**9)
        context = does.lengths.context
        batch = costs.most_decodes(context, most)
        assert does.mixed[-1][0] == pytest.approx(batch / costs.decode_s(batch, context))
        decoded, prefilled = does.mixed[0]
        assert decoded == pytest.approx(1 / costs.step_s, rel=0.01)
        assert prefilled / decoded > 0.99 * costs.most_tokens or costs.added_s(costs.most_tokens, 0, 1) > costs.step_s


def test_the_operators_composition_stays_until_answers_come(core: Callable[..., Core]) -> None:
    """A guessed length must not move workers that the operator has placed; after the dwell time it may."""
    shared = core(dwell_s=10.0)
    for number in range(EARLY + 1):
        shared.lengths.began(request(str(number), 20_000), 0.1 * number)
    assert shared.compose(8, 1, 200_000, 1.0) is None
    assert shared.compose(8, 1, 200_000, 3.0) is None
    for number in range(EARLY):
        shared.lengths.ended(request(str(number), 20_000), 10, 0.02, 4.0)
    assert shared.compose(8, 1, 200_000, 4.0) == 7

    silent = core(dwell_s=10.0, prior_tokens=10)
    silent.lengths.began(request("r", 20_000))
    assert [silent.compose(8, 1, 200_000, now_s) for now_s in (0.0, 9.0, 10.0)] == [None, None, 7]


def test_a_composition_changes_for_more_than_the_mean_may_be_wrong_by(core: Callable[..., Core]) -> None:
    """None that prefills only serves a seventh less than five would: eight answers are too few to say so."""
    few, many = core(dwell_s=0.0), knows(core(dwell_s=0.0), 2000.0, 100.0)
    for number in range(EARLY):
        few.lengths.began(request(str(number), 2000))
        few.lengths.ended(request(str(number)), 100)
    few.lengths.osl = 100.0
    top = many.frontier(2000.0, RESERVE * 100.0, 200_000, held_s=many.held_s(2000.0)).best(8, many.settings.gain)
    assert top == 5
    assert few.compose(8, 0, 200_000, 0.0) == 0
    assert many.compose(8, 0, 200_000, 0.0) == top
    assert many.compose(8, top + 1, 200_000, 100.0) == top + 1


def test_a_pool_of_thousands_is_looked_at_in_a_bounded_number_of_places(core: Callable[..., Core]) -> None:
    """What is found between them is as good but for a few thousandths."""
    does, looks = core().frontier(2000.0, 100.0, 200_000), []

    class Counting(Frontier):
        def rate(self, prefill_only: int, mixed: int) -> float:
            looks.append(prefill_only)
            return super().rate(prefill_only, mixed)

    counting = Counting(does.lengths, does.prefill, does.mixed, does.waits_s)
    found = counting.best(4096)
    assert len(looks) <= MOST_COUNTS
    best = max(does.rate(count, 4096 - count) for count in range(4096))
    assert does.rate(found, 4096 - found) > 0.99 * best
