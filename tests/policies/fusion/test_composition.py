"""The programme: what a look at the curve says is what trying every rate says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.fusion.composition import MOST_COUNTS, Frontier, Lengths, Point, curve
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.lengths import EARLY, RECENT
from pdplugins.runtime.assembly import load_profile
from pdplugins.testing import deployment, request

numbers = st.floats(1.0, 1000.0)


def knows(shared: Core, isl: float, osl: float) -> Core:
    """Let so many answers have come that nobody doubts their mean."""
    for number in range(RECENT):
        shared.lengths.began(request(str(number), int(isl)))
        shared.lengths.ended(request(str(number)), int(osl))
    shared.lengths.osl = osl
    return shared


points = st.lists(
    st.builds(Point, numbers, st.one_of(st.just(0.0), numbers), st.just(math.inf)), min_size=1, max_size=12
)


def served(does: Frontier, rate: float, prefill_only: int, mixed: int) -> bool:
    """Return whether workers serve a rate: all that decode are at the point of the curve that decodes as much."""
    xs, ys, *_ = np.array(does.mixed).T
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
    sagging = Frontier(Lengths(100.0, 100.0), 1000.0, (Point(0.0, 1000.0), Point(100.0, 10.0), Point(1000.0, 0.0)))
    assert sagging.rate(0, 2) < 2.0
    assert sagging.rate(1, 1) == pytest.approx(10.0)


@given(numbers, st.floats(1.0, 4.0), st.floats(0.001, 10.0), st.integers(1, 8))
def test_less_time_to_wait_serves_less(isl: float, spread: float, wait_s: float, workers: int) -> None:
    lengths = Lengths(isl, 10.0, spread=spread)
    whole, hasty, less = (
        Frontier(lengths, 1000.0, (Point(1.0, 1000.0, each_s), Point(1e4, 0.0, each_s)), each_s)
        for each_s in (math.inf, wait_s, wait_s / 2)
    )
    assert 0 < hasty.rate(workers, workers) < whole.rate(workers, workers)
    assert less.rate(0, workers) < hasty.rate(0, workers)
    assert replace(hasty, mixed=less.mixed).rate(workers, 0) == hasty.rate(workers, 0)


def test_a_point_at_which_prompts_are_in_time_beats_one_that_prefills_more() -> None:
    """Larger steps prefill more, but where a prompt may hardly wait for them it counts for little."""
    hasty, patient = Point(100.0, 1000.0, 0.001), Point(100.0, 900.0, 10.0)
    assert curve([hasty, patient], own_s=0.1) == (patient,)
    assert curve([hasty, patient]) == (hasty,)


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
    assert [x for x, *_ in kept] == sorted(x for x, *_ in kept)
    for x, y, *_ in columns:
        assert any(kept_x >= x and kept_y >= y for kept_x, kept_y, *_ in kept)
    assert not any(
        (x >= kept_x and y > kept_y) or (x > kept_x and y >= kept_y)
        for x, y, *_ in columns
        for kept_x, kept_y, *_ in kept
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


def test_prompts_that_take_many_steps_beside_decodes_leave_less_time_to_wait(core: Callable[..., Core]) -> None:
    """A TTFT that a prompt alone keeps easily is missed in small chunks: then some workers prefill only."""
    shared = core()
    share = 2 * shared.costs.prefill_s(2000) / shared.deployment.slo.ttft_s
    short, long = (each.frontier(2000.0, 400.0, 400_000) for each in (core(ttft_share=share), shared))
    (crowded, unhurried) = short.mixed[-2], long.mixed[-2]
    assert short.mixed[0].wait_s > crowded.wait_s
    assert crowded.wait_s < unhurried.wait_s
    assert short.rate(0, 8) < 0.8 * long.rate(0, 8)
    assert short.best(8) > long.best(8)


def test_what_decodes_at_one_time_has_longer_contexts_than_the_mean_request(core: Callable[..., Core]) -> None:
    plain, leaning = core(), core()
    leaning.lengths.decoding = 2.0
    does, less = (each.frontier(1000.0, 500.0, 50_000) for each in (plain, leaning))
    assert less.lengths.context == 2 * does.lengths.context
    assert less.mixed[-1].decoded < 0.7 * does.mixed[-1].decoded


def test_composition_plans_with_longer_answers_than_the_mean(core: Callable[..., Core]) -> None:
    """Places to decode that are short delay all requests, so it does not choose a number that is just enough."""
    shared = knows(core(dwell_s=0.0, gain=0.0), 2000.0, 80.0)
    assert shared.frontier(2000.0, 80.0, 60_000).best(8) == 2
    assert shared.compose(8, 7, 60_000, 0.0) == 1


FEW = deployment(load_profile("h800/llama-3.1-8b"), ttft_s=0.058, tpot_s=0.018, prefill_tp=4, decode_tp=4, max_batch=16)
"""Workers that could decode many more requests within the TPOT SLO than they have places for."""


def test_where_places_to_decode_are_few_all_workers_have_some() -> None:
    """One that prefills only has none; beside decodes a prompt costs them a single longer step."""
    does = Core(FusionSettings(), FEW).frontier(755.0, 180.0, 900_000)
    assert does.best(4) == 0
    assert does.rate(0, 4) > 1.04 * does.rate(1, 3)


def test_steps_without_prompts_are_as_short_as_they_are() -> None:
    """Few prompts beside few decodes: most steps only decode, and take a fifth of what the TPOT SLO allows."""
    core = Core(FusionSettings(), FEW)
    does, costs = core.frontier(755.0, 180.0, 900_000), core.costs
    rate = does.rate(0, 4) / 4
    decode_s = rate * 180.0 / 16 * costs.decode_s(16, does.lengths.context)
    prefill_s = rate * costs.added_s(755, 0, 16)
    assert decode_s + prefill_s == pytest.approx(1.0, abs=0.1)


def test_short_prompts_are_counted_on_in_short_steps() -> None:
    """Charged a step as long as the TPOT, which takes most of their TTFT, a worker would seem to serve half."""
    perf = load_profile("h100/llama-3.1-70b-fp8")
    slo = {"ttft_s": 0.094, "tpot_s": 0.117}
    pool = deployment(perf, prefill_tp=4, decode_tp=4, gpu_budget=16, any_role=True, max_batch=16, **slo)
    does = Core(FusionSettings(), pool).frontier(200, 20, perf.kv_capacity_tokens(4))
    assert does.rate(0, 4) > 90


def test_few_steps_with_prompts_are_counted_on_where_places_to_decode_are_few() -> None:
    """With prompts in each step, or in half of them at least, its decodes would seem to hold their places longer."""
    perf = load_profile("h200/deepseek-r1")
    slo = {"ttft_s": 5 * perf.prefill_s(800, 16), "tpot_s": 4 * perf.decode_step_s(1, 800, 16)}
    pool = deployment(perf, prefill_tp=16, decode_tp=16, gpu_budget=64, any_role=True, max_batch=16, **slo)
    does = Core(FusionSettings(), pool).frontier(800, 400, perf.kv_capacity_tokens(16))
    assert does.rate(0, 4) > 1.05 * does.rate(1, 3)


def test_the_largest_batch_and_the_largest_step_within_the_slo_are_choices(core: Callable[..., Core]) -> None:
    """Sizes that are tried lie a quarter apart. The rate at the ends must not depend on where they happen to lie."""
    shared = core()
    costs, most = shared.costs, shared.deployment.max_batch
    for osl in (900.0, 930.0, 960.0, 990.0):
        does = shared.frontier(1000.0, osl, 10**9)
        context = does.lengths.context
        batch = costs.most_decodes(context, most)
        assert does.mixed[-1][0] == pytest.approx(batch / costs.decode_s(batch, context))
        decoded, prefilled, *_ = does.mixed[0]
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


def test_silence_is_solved_once(core: Callable[..., Core]) -> None:
    """A night without requests would cost a solution each second, in a simulation and in a live gateway."""
    shared = core(dwell_s=0.0, interval_s=1.0)
    shared.lengths.began(request("a", 20_000), 0.0)
    first = [shared.compose(8, 7, 200_000, float(now_s)) for now_s in range(100)]
    assert sum(wanted is not None for wanted in first) == 1
    shared.lengths.began(request("b", 20_000), 100.0)
    assert shared.compose(8, 7, 200_000, 101.0) is not None
    assert shared.compose(8, 6, 200_000, 102.0) is not None, "with other roles"
    assert shared.compose(8, 6, 200_000, 103.0) is None


def test_a_pool_of_thousands_is_looked_at_in_a_bounded_number_of_places(core: Callable[..., Core]) -> None:
    """What is found between them is as good but for a few thousandths."""
    does, looks = core().frontier(2000.0, 100.0, 200_000), []

    class Counting(Frontier):
        def rate(self, prefill_only: int, mixed: int) -> float:
            looks.append(prefill_only)
            return super().rate(prefill_only, mixed)

    counting = Counting(does.lengths, does.prefill, does.mixed, does.wait_s)
    found = counting.best(4096)
    assert len(looks) <= MOST_COUNTS
    best = max(does.rate(count, 4096 - count) for count in range(4096))
    assert does.rate(found, 4096 - found) > 0.99 * best
