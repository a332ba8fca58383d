"""The global scheduler: what Algorithm 1 balances, whom it chooses, and what it does with bad views."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.errors import ConfigError
from pdplugins.policies.dynaserve.config import DynaServeRouterSettings
from pdplugins.policies.dynaserve.predict import ExecutionPredictor
from pdplugins.policies.dynaserve.router import DynaServeRouter
from pdplugins.testing import Worker
from pdplugins.types import Capabilities, Deployment, Ending, Outcome, Placement, Request, Role, WorkerLoad
from tests.policies.dynaserve.model import Model, deployment_of, worker

BUSY = WorkerLoad("w", 1, 100, 8, 8000)
"""Busy enough that a clock is not set back to idle, with hardly anything that waits."""


def router(deployment: Deployment, **settings: object) -> DynaServeRouter:
    return DynaServeRouter(DynaServeRouterSettings.model_validate(settings), deployment)


def pair(load: WorkerLoad = BUSY) -> tuple[Worker, Worker]:
    return worker("a", Role.PREFILL, load), worker("b", Role.DECODE, load)


def request(prompt: int, output: int | None, name: str = "r", **more: object) -> Request:
    return replace(Request(name, 0.0, prompt, output), **more)  # type: ignore[arg-type]


def test_two_idle_workers_get_equal_times(deployment: Deployment) -> None:
    """Lines 3 to 10: the split is where both micro-requests take equally long, within the K probes' resolution."""
    placement = router(deployment, margin_tokens=0).on_arrival(request(1024, 1024), pair(), 0.0)
    predictor = ExecutionPredictor(deployment)
    ahead = predictor.span(1024, 0, placement.split)
    behind = predictor.span(1024, placement.split, 2048)
    one, other = (work.with_s(type(work)()) for work in (ahead, behind))
    assert placement.first != placement.second
    assert one == pytest.approx(other, rel=0.1)


@given(st.integers(512, 20_000), st.integers(64, 4_000))
def test_six_probes_come_close_to_the_best_split(prompt: int, output: int) -> None:
    """The paper: within one percent of an oracle. Here against the best of all splits, on two idle workers."""
    deployment = deployment_of(Model())
    route = router(deployment, margin_tokens=0, least_tokens=0, tolerance_s=0)
    placement = route.on_arrival(request(prompt, output), pair(), 0.0)
    predictor, length = ExecutionPredictor(deployment), prompt + output

    def longer(split: int) -> float:
        none = predictor.span(0, 0, 0)
        return max(predictor.span(prompt, 0, split).with_s(none), predictor.span(prompt, split, length).with_s(none))

    whole = predictor.span(prompt, 0, length).with_s(predictor.span(0, 0, 0))
    best = min(longer(split) for split in range(0, length, max(length // 400, 1)))
    assert longer(placement.split) <= best + max(whole * 2**-5, 1e-3)


def test_the_busier_worker_gets_less(deployment: Deployment) -> None:
    """Section 4.1: fewer tokens to heavily loaded GPUs."""
    idle, (a, b) = pair(), pair()
    a.load = WorkerLoad("a", 4, 4000, 4, 4000)
    free = router(deployment, pairs="roles").on_arrival(request(2048, 512), idle, 0.0)
    loaded = router(deployment, pairs="roles").on_arrival(request(2048, 512), (a, b), 0.0)
    assert loaded.split < free.split


@pytest.mark.parametrize("limited", [0, 1])
def test_a_worker_that_cannot_split_gets_whole_phases(deployment: Deployment, limited: int) -> None:
    """A host that does not know what its workers can do is asked for splits as before."""
    workers, asked = pair(), request(2048, 512)
    workers[0].load = WorkerLoad("a", 4, 4000, 4, 4000)
    free = router(deployment, pairs="roles").on_arrival(asked, workers, 0.0)
    assert free.split not in (0, 2048)
    workers[limited].capabilities = Capabilities(splits=True)
    assert router(deployment, pairs="roles").on_arrival(asked, workers, 0.0) == free
    workers[limited].capabilities = Capabilities(splits=False)
    placed = router(deployment, pairs="roles").on_arrival(asked, workers, 0.0)
    assert (placed.first, placed.second, placed.split) == ("a", "b", 2048)


def test_work_is_done_as_time_passes(deployment: Deployment) -> None:
    """A clock that has run out counts nothing: the second request is placed as the first."""
    route, workers = router(deployment, pairs="roles"), pair()
    first = route.on_arrival(request(2048, 512), workers, 0.0)
    route.on_arrival(request(6000, 8), workers, 0.01)
    assert route.on_arrival(request(2048, 512), workers, 1000.0).split == first.split


def test_the_worker_with_less_to_do_goes_first(deployment: Deployment) -> None:
    """Of the next workers in turn the least busy is taken; with one choice the workers take turns."""
    workers = tuple(worker(name, load=BUSY) for name in "abcd")
    route = router(deployment)
    served = [route.on_arrival(request(1000, 100), workers, 0.0) for _ in range(2)]
    assert {name for placement in served for name in (placement.first, placement.second)} == set("abcd")
    turns = router(deployment, choices=1)
    assert [turns.on_arrival(request(1000, 100), workers, 0.0).first for _ in range(5)] == list("abcda")


def test_roles_bind_each_half_to_its_pool(deployment: Deployment) -> None:
    workers = (*(worker(f"p{i}", Role.PREFILL, BUSY) for i in range(3)), worker("d0", Role.DECODE, BUSY))
    route = router(deployment, pairs="roles")
    for _ in range(9):
        placement = route.on_arrival(request(1000, 500), workers, 0.0)
        assert placement.first.startswith("p") or placement.first == placement.second == "d0"


def test_the_margin_is_part_of_the_length(deployment: Deployment) -> None:
    """Section 5: 20 tokens against underestimation."""
    reason = router(deployment).on_arrival(request(1000, 500), pair(), 0.0).reason
    assert reason.endswith("of 1520")


def test_one_worker_does_everything(deployment: Deployment) -> None:
    placement = router(deployment).on_arrival(request(1000, 500), (worker("a"),), 0.0)
    assert placement == Placement("a", "a", 1000, "whole")


def test_a_short_piece_is_not_handed_over(deployment: Deployment) -> None:
    """A request of a few tokens stays whole, as the paper's D in Figure 4."""
    placement = router(deployment, margin_tokens=0).on_arrival(request(20, 20), pair(), 0.0)
    assert placement.first == placement.second


def test_a_request_that_only_one_worker_can_hold_goes_there(deployment: Deployment) -> None:
    small = tuple(worker(f"small-{index}", kv_capacity_tokens=1000) for index in range(5))
    large = worker("large", kv_capacity_tokens=10_000)
    for workers in ((*small, large), (large, *small), (small[0], large)):
        placement = router(deployment).on_arrival(request(5000, 100), workers, 0.0)
        assert placement.second == "large"


def test_a_prompt_longer_than_any_kv_cache_is_placed_for_the_host_to_refuse(deployment: Deployment) -> None:
    placement = router(deployment).on_arrival(request(10**9, 10**9), pair(), 0.0)
    assert placement.first == placement.second


def test_no_worker_is_an_error_that_says_what_to_do(deployment: Deployment) -> None:
    with pytest.raises(ConfigError, match="start at least one"):
        router(deployment).on_arrival(request(10, 10), (), 0.0)


def test_a_session_starts_where_its_cache_is(deployment: Deployment) -> None:
    workers = tuple(worker(name, load=BUSY) for name in "abcd")
    placement = router(deployment).on_arrival(request(1000, 500, bound_worker="c"), workers, 0.0)
    assert placement.first == "c"


def test_a_placement_that_is_whole_stays(deployment: Deployment) -> None:
    placement = Placement("a", "b", 5)
    assert router(deployment).on_prefill_done(request(1, 1), placement, pair(), 0.0) is placement


number = st.one_of(st.none(), st.just(math.nan), st.just(math.inf), st.floats(-1e9, 1e9))
loads = st.builds(WorkerLoad, st.just("w"), number, number, number, number)  # type: ignore[arg-type]
arrivals = st.lists(
    st.tuples(st.integers(0, 200_000), st.one_of(st.none(), st.integers(0, 50_000)), st.floats(0, 30)), max_size=12
)


@pytest.mark.moderate
@given(st.lists(loads, min_size=1, max_size=5), arrivals, st.sampled_from(["any", "roles"]))
def test_every_token_is_placed_exactly_once_whatever_the_loads_say(
    said: list[WorkerLoad], traffic: list[tuple[int, int | None, float]], pairs: str
) -> None:
    """Tokens [0, split) on one live worker, the rest on another: nothing twice, nothing lost."""
    workers = tuple(worker(f"w{i}", list(Role)[i % 2], load) for i, load in enumerate(said))
    names = {worker.id for worker in workers}

    def run() -> list[Placement]:
        route, now_s, placements = router(deployment_of(Model()), pairs=pairs), 0.0, []
        for prompt, output, gap_s in traffic:
            now_s += gap_s
            placements.append(route.on_arrival(request(prompt, output), workers, now_s))
        return placements

    placements = run()
    for (prompt, output, _), placement in zip(traffic, placements, strict=True):
        assert {placement.first, placement.second} <= names
        length = max(prompt, 1) + (256 if output is None else max(output, 1)) + 20
        if placement.first != placement.second:
            assert 0 < placement.split < length
    assert run() == placements, "the same views give the same placements"


def test_state_does_not_grow_with_history(deployment: Deployment) -> None:
    """A router keeps a few numbers of each worker, and forgets workers that left."""
    route = router(deployment, predictor="quantile", window=8)
    for fleet in range(10):
        workers = tuple(worker(f"w{fleet}-{index}", load=BUSY) for index in range(3))
        for index in range(50):
            asked = request(1000, None, str(index))
            route.on_arrival(asked, workers, float(index))
            route.on_ended(asked, Outcome(Ending.FINISHED, index))
    assert len(route._servers) == 3
    assert all(len(seen) <= 8 for seen in route._lengths._recent.values())  # type: ignore[attr-defined]
