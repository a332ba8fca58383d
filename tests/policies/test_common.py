"""What policies share: pools that fit a GPU budget, searches, the cheapest worker, random numbers."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from pdplugins import testing
from pdplugins.policies._common import (
    SplitMix64,
    cached_tokens,
    cheapest,
    fit_headroom,
    fit_pools,
    largest_within,
    reachable,
    tightest_tpot_s,
)
from pdplugins.testing import request, worker
from pdplugins.types import Deployment, Round, Slo, TraceRequest, WorkerView


def deployment(gpu_budget: int, prefill_tp: int, decode_tp: int) -> Deployment:
    return testing.deployment(gpu_budget=gpu_budget, prefill_tp=prefill_tp, decode_tp=decode_tp)


def test_a_tpot_below_the_shortest_step_is_planned_as_three_of_these() -> None:
    perf = testing.LinearModel(decode_fixed_s=0.02)
    kept = testing.deployment(perf, tpot_s=0.02)
    assert reachable(kept) is kept
    assert reachable(testing.deployment(perf, tpot_s=0.0199)).slo == Slo(kept.slo.ttft_s, 0.06)


def test_a_wish_that_fits_is_granted() -> None:
    assert fit_pools(deployment(8, 1, 2), 4, 2) == (4, 2)


def test_a_wish_that_does_not_fit_shrinks_in_proportion() -> None:
    assert fit_pools(deployment(10, 1, 2), 12, 4) == (6, 2)


@given(
    wish=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    tps=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8])),
    spare=st.integers(0, 40),
)
def test_no_other_pools_within_the_budget_serve_more(wish: tuple[int, int], tps: tuple[int, int], spare: int) -> None:
    here = deployment(tps[0] + tps[1] + spare, *tps)
    prefill, decode = fit_pools(here, *wish)
    assert 1 <= prefill <= wish[0]
    assert 1 <= decode <= wish[1]
    assert here.gpus(prefill, decode) <= here.gpu_budget
    share = min(prefill / wish[0], decode / wish[1])
    for p in range(1, wish[0] + 1):
        for d in range(1, wish[1] + 1):
            if here.gpus(p, d) <= here.gpu_budget:
                assert min(p / wish[0], d / wish[1]) <= share


@given(
    wish=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    busy=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    tps=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8])),
    spare=st.integers(0, 60),
)
def test_headroom_is_cut_before_busy_workers_and_in_equal_shares(
    wish: tuple[int, int], busy: tuple[int, int], tps: tuple[int, int], spare: int
) -> None:
    here = deployment(tps[0] + tps[1] + spare, *tps)
    least = min(max(busy[0], 1), wish[0]), min(max(busy[1], 1), wish[1])
    found = fit_headroom(here, wish, busy)
    assert here.gpus(*found) <= here.gpu_budget
    if here.gpus(*least) >= here.gpu_budget:
        assert found == fit_pools(here, *least)
        return

    def share(p: int, d: int) -> float:
        pairs = zip((p, d), least, wish, strict=True)
        return min([(got - low) / (high - low) for got, low, high in pairs if high > low], default=1.0)

    every = ((p, d) for p in range(least[0], wish[0] + 1) for d in range(least[1], wish[1] + 1))
    best = max(share(p, d) for p, d in every if here.gpus(p, d) <= here.gpu_budget)
    assert all(low <= got <= high for got, low, high in zip(found, least, wish, strict=True))
    assert share(*found) == best


def test_decode_workers_that_are_busy_outlive_a_large_headroom_for_prefill() -> None:
    here = deployment(64, 2, 2)
    assert fit_pools(here, 60, 6) == (29, 3)
    assert fit_headroom(here, (60, 6), (15, 5)) == (26, 6)


def test_a_budget_for_less_than_one_worker_of_each_role_still_leaves_one_of_each() -> None:
    assert fit_pools(deployment(2, 1, 2), 5, 5) == (1, 1)


def test_the_turns_of_a_session_say_what_each_prompt_holds() -> None:
    rounds = (Round(1.0, 10, 5), Round(1.0, 10, 5, 20), Round(1.0, 10, 5, 0), Round(1.0, 10, 5, 999))
    assert list(TraceRequest(0.0, 100, 7, rounds=rounds).turns()) == [
        (0, 100, 7), (107, 117, 5), (20, 30, 5), (0, 10, 5), (15, 25, 5),
    ]  # fmt: skip


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.floats(0, 10))
def test_the_search_finds_the_last_number_within_the_time(rises: list[float], limit_s: float) -> None:
    times = list(accumulate(rises))
    within = [number for number, time_s in enumerate(times, start=1) if time_s <= limit_s]
    assert largest_within(limit_s, len(times), lambda number: times[number - 1]) == max(within, default=0)


def test_splitmix64_gives_the_numbers_of_its_authors() -> None:
    """The first outputs for the seed 1234567, as in the test vectors of several libraries."""
    stream = SplitMix64(1234567)
    assert [stream.next() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.integers(0, 2**70))
def test_uniform_numbers_are_below_one(seed: int) -> None:
    assert all(0 <= SplitMix64(seed + index).uniform() < 1 for index in range(10))


def queued(view: WorkerView) -> float:
    return view.load.queued_tokens


HOLDERS = st.lists(
    st.tuples(st.sampled_from([0, 100, 512, 1024, 3000]), st.frozensets(st.integers(0, 3))), min_size=1, max_size=8
)


@given(HOLDERS, st.lists(st.integers(0, 3), max_size=4), st.integers(1, 3000), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_the_cheapest_worker_is_the_one_that_a_look_at_all_of_them_finds(
    holders: list[tuple[int, frozenset[int]]], blocks: list[int], prompt: int, weight: float
) -> None:
    pool = [worker(f"p{n}", queued_tokens=load, cached_blocks=cached) for n, (load, cached) in enumerate(holders)]
    asked = request(prompt_tokens=prompt, blocks=tuple(blocks))
    want = min(pool, key=lambda each: (queued(each) - weight * cached_tokens(asked, each, 512), queued(each)))
    assert cheapest(asked, pool, queued, weight, 512) is want


def test_blocks_are_counted_only_where_they_could_make_up_for_the_load() -> None:
    class Asked(frozenset[int]):
        times = 0

        def __contains__(self, block: object) -> bool:
            Asked.times += 1
            return super().__contains__(block)

    idle, *busy = [worker(f"p{n}", queued_tokens=5000 * bool(n), cached_blocks=Asked({7})) for n in range(100)]
    assert cheapest(request(prompt_tokens=600, blocks=(7,)), [idle, *busy], queued, 1.0, 512) is idle
    assert Asked.times == 1


def test_the_tightest_tpot_is_that_of_the_requests_that_decode() -> None:
    assert tightest_tpot_s((0.05, 0.03), 5, 0.08, 0.01) == 0.03
    assert tightest_tpot_s((0.2,), 5, 0.08, 0.01) == 0.08, "the other four have the deployment's"
    assert tightest_tpot_s((0.2, 0.1), 2, 0.08, 0.01) == 0.1
    assert tightest_tpot_s((0.005, 0.06), 5, 0.08, 0.01) == 0.06, "nobody keeps 5 ms"
    assert tightest_tpot_s((0.005,), 1, 0.08, 0.01) == 0.08
