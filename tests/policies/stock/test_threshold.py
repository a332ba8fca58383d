"""The planner ``threshold``: utilisation decides, within a band, for long enough, within the budget."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pdplugins.policies.stock.threshold import ThresholdPlanner, ThresholdSettings
from pdplugins.testing import LinearModel, deployment
from pdplugins.types import PlannerView, Pool, ScalePlan, Traffic, WorkerLoad

MODEL = LinearModel(prefill_token_s=1e-3, decode_fixed_s=0.02, kv_tokens=1000)
"""One millisecond a prompt token; 1000 tokens of KV cache."""


def planner(gpu_budget: int = 32, **settings: Any) -> ThresholdPlanner:
    given = {"up_intervals": 1, "down_intervals": 3, **settings}
    return ThresholdPlanner(ThresholdSettings(**given), deployment(MODEL, gpu_budget=gpu_budget, max_batch=10))


def view(  # one prefill second is 1000 prompt tokens
    busy: float | None, kv_tokens: float = 0.0, prefill: int = 1, decode: int = 1, queued_tokens: float = 0.0
) -> PlannerView:
    traffic = None if busy is None else Traffic(5.0, 5 * busy, 1000.0)
    waiting = tuple(WorkerLoad(f"p{n}", queued_tokens=queued_tokens / prefill) for n in range(prefill))
    running = tuple(WorkerLoad(f"d{n}", running_tokens=kv_tokens / decode) for n in range(decode))
    return PlannerView(0.0, traffic, Pool(prefill, loads=waiting), Pool(decode, loads=running))


def pools(plan: ScalePlan) -> tuple[int, int]:
    return plan.prefill, plan.decode


def test_a_busy_pool_becomes_what_has_the_target_utilisation() -> None:
    """2.6 workers' worth of prefill at 65 % each are four; 1900 tokens in caches of 1000 at 65 % are three."""
    plan = planner().plan(view(2.6, 1900.0))
    assert pools(plan) == (4, 3)
    assert plan.reason == "prefill 260% busy, decode 190% busy"
    assert plan.signals == {"prefill_utilisation": 2.6, "decode_utilisation": 1.9}


def test_a_queue_counts_as_work_for_one_interval() -> None:
    assert pools(planner().plan(view(0.0, queued_tokens=13_000.0))) == (4, 1)


def test_full_batches_count_as_much_as_a_full_kv_cache() -> None:
    full = Pool(1, loads=(WorkerLoad("d0", running_requests=10, queued_requests=3),))
    assert pools(planner().plan(PlannerView(0.0, Traffic(5, 0), Pool(1), full)))[1] == 2


def test_a_pool_grows_and_shrinks_only_after_enough_looks_in_a_row() -> None:
    slow = planner(up_intervals=3, down_intervals=2)
    assert [pools(slow.plan(view(share)))[0] for share in (0.9, 0.9, 0.7, 0.9, 0.9, 0.9)] == [1, 1, 1, 1, 1, 2]
    assert [pools(slow.plan(view(share, prefill=4)))[0] for share in (1.3, 2.1, 1.3, 1.3)] == [4, 4, 4, 2]


def test_no_traffic_leaves_one_worker_of_each() -> None:
    idle = planner()
    assert [pools(idle.plan(view(0.0, prefill=5, decode=4))) for _ in range(3)] == [(5, 4), (5, 4), (1, 1)]


@pytest.mark.parametrize("traffic", [None, Traffic(5, math.nan), Traffic(0, 3, 10), Traffic(5, 9, math.nan)])
def test_a_pool_of_which_nothing_is_known_is_held_and_it_says_so(traffic: Traffic | None) -> None:
    blind = planner(down_intervals=1)
    plan = blind.plan(PlannerView(0.0, traffic, Pool(3), Pool(2)))
    assert pools(plan) == (3, 2)
    assert plan.reason == "prefill unknown: held, decode unknown: held"


def test_workers_that_did_not_report_count_like_the_others() -> None:
    half = Pool(4, loads=(WorkerLoad("d0", running_tokens=900), WorkerLoad("d1", running_tokens=900)))
    assert pools(planner().plan(PlannerView(0.0, Traffic(5, 0), Pool(1), half)))[1] == math.ceil(3.6 / 0.65)


def test_the_budget_binds_and_it_says_so() -> None:
    plan = planner(gpu_budget=6).plan(view(9.0, 3000.0))
    assert sum(pools(plan)) <= 6
    assert "the budget allows less" in plan.reason


@given(st.floats(0, 20), st.floats(0, 20_000), st.integers(1, 12), st.integers(1, 12))
def test_constant_load_settles(busy: float, kv_tokens: float, prefill: int, decode: int) -> None:
    steady = planner(gpu_budget=200, down_intervals=1)
    seen = []
    for _ in range(5):
        prefill, decode = pools(steady.plan(view(busy, kv_tokens, prefill, decode)))
        seen.append((prefill, decode))
    assert len(set(seen[1:])) == 1


ANY = st.floats(allow_nan=True, allow_infinity=True)
LOADS = st.lists(st.builds(WorkerLoad, st.just("w"), ANY, ANY, ANY, ANY), max_size=3).map(tuple)
POOLS = st.builds(Pool, st.integers(0, 20), st.integers(0, 5), st.integers(0, 5), LOADS)


@pytest.mark.moderate
@given(st.lists(st.tuples(st.none() | st.builds(Traffic, ANY, ANY, st.none() | ANY), POOLS, POOLS), max_size=6))
def test_whatever_a_host_says_there_is_a_plan_within_the_budget(views: list[tuple[Any, Pool, Pool]]) -> None:
    safe = planner(gpu_budget=8, down_intervals=1)
    for traffic, prefill, decode in views:
        plan = safe.plan(PlannerView(0.0, traffic, prefill, decode))
        assert min(pools(plan)) >= 1
        assert sum(pools(plan)) <= 8


def test_a_band_that_would_oscillate_is_refused() -> None:
    with pytest.raises(ValidationError, match="down <= target <= up"):
        ThresholdSettings(up=0.5, target=0.6)
