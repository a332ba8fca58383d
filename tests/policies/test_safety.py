"""What every registered policy promises, whatever a host says, on examples that Hypothesis looks for.

`test_conformance.py` holds them to the same rules on examples that plugin authors have too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplugins.config import Config
from pdplugins.runtime.assembly import build_deployment
from pdplugins.testing import Worker, check_batch_plan, check_placement, check_scale_plan, worker
from pdplugins.types import (
    BatchScheduler,
    BatchView,
    Capabilities,
    Ending,
    HearsOutcomes,
    Outcome,
    Placement,
    Planner,
    PlannerView,
    Pool,
    QueuedPrefill,
    Request,
    Role,
    Router,
    Traffic,
    WorkerLoad,
)
from tests.policies import registered

pytestmark = pytest.mark.moderate

DEPLOYMENT = build_deployment(Config())

said = st.one_of(st.floats(), st.integers(0, 10**6))
"""What hosts say, and what they should not: negative, NaN, infinite."""
maybe = st.none() | said
loads = st.builds(WorkerLoad, st.just(""), said, said, said, said, maybe, maybe)


def named(name: str, role: Role, load: WorkerLoad, capacity: int, **more: Any) -> Worker:
    return Worker(name, role, replace(load, worker=name), capacity, **more)


capabilities = st.builds(Capabilities, alone=st.booleans(), splits=st.booleans())


def workers(role: Role) -> st.SearchStrategy[list[Worker]]:
    name = st.integers(0, 4).map(lambda index: f"{role[0]}{index}")
    blocks = st.frozensets(st.integers(0, 5), max_size=3)
    one = st.builds(
        named,
        name,
        st.just(role),
        loads,
        st.integers(0, 10**6),
        cached_blocks=blocks,
        tp=st.none() | st.integers(0, 16),
        free_kv_tokens=st.none() | st.integers(0, 10**6),
        capabilities=st.none() | capabilities,
    )
    return st.lists(one, min_size=1, max_size=3, unique_by=lambda worker: worker.id)


fleets = st.tuples(workers(Role.PREFILL), workers(Role.DECODE)).map(lambda both: tuple(both[0] + both[1]))
requests = st.builds(
    Request,
    id=st.integers(0, 30).map(str),
    arrival_s=st.just(0.0),
    prompt_tokens=st.integers(1, 10**7),
    predicted_output_tokens=st.none() | st.integers(1, 10**5),
    session=st.none() | st.sampled_from(["s0", "s1"]),
    bound_worker=st.none() | st.sampled_from(["d0", "d1", "p0", "gone"]),
    blocks=st.lists(st.integers(0, 5), max_size=3).map(tuple),
)
arrivals = st.lists(st.tuples(fleets, requests, st.floats(0, 100)), min_size=1, max_size=6)


def make(kind: str, name: str) -> Any:
    return registered.make(kind, name, DEPLOYMENT)


def route(router: Router, stream: Sequence[tuple[tuple[Worker, ...], Request, float]]) -> list[Placement]:
    """Place every request, and finish it; each time check that it is placed once, where somebody is."""
    done, now_s = [], 0.0
    for fleet, request, after_s in stream:
        now_s += after_s
        placed = router.on_arrival(request, fleet, now_s)
        check_placement(placed, fleet)
        if placed.second is None:
            placed = router.on_prefill_done(request, placed, fleet, now_s)
        check_placement(placed, fleet, complete=True)
        if isinstance(router, HearsOutcomes):
            router.on_ended(request, Outcome(Ending.FINISHED, 7))
        done.append(placed)
    return done


@pytest.mark.parametrize("name", registered.names("router"))
@settings(max_examples=25)
@given(stream=arrivals)
def test_a_router_places_every_request_where_somebody_is(
    name: str, stream: list[tuple[tuple[Worker, ...], Request, float]]
) -> None:
    """NaN loads, workers that come and go, prompts beyond any KV cache, a bound worker that is gone; always alike."""
    assert route(make("router", name), stream) == route(make("router", name), stream)


@pytest.mark.parametrize("name", registered.names("router"))
@pytest.mark.parametrize("told", ["nobody", "the one that is gone"])
def test_a_prompt_whose_decode_worker_is_gone_decodes_elsewhere(name: str, told: str) -> None:
    """A gateway then asks with an open placement, the simulator with the old one."""
    router: Router = make("router", name)
    fleet = tuple(worker(f"{role}{index}") for role in Role for index in range(3))
    request = Request("r", 0.0, 3000)
    placed = router.on_arrival(request, fleet, 0.0)
    if placed.second is None:
        placed = router.on_prefill_done(request, placed, fleet, 0.1)
    left = tuple(each for each in fleet if each.id not in (placed.first, placed.second))
    asked = placed if told == "the one that is gone" else replace(placed, second=None)
    again = router.on_prefill_done(request, asked, left, 0.2)
    assert again.second in {each.id for each in left}


queued = st.builds(
    QueuedPrefill,
    request=requests,
    remaining_tokens=st.integers(1, 10**6),
    queued_s=st.floats(0, 10),
    done_tokens=st.none() | st.integers(0, 10**6),
)
queues = st.lists(queued, max_size=6, unique_by=lambda task: task.request.id).map(tuple)
batches = st.builds(BatchView, queues, st.integers(0, 300), st.integers(0, 10**6))


@pytest.mark.parametrize("name", registered.names("batch_scheduler"))
@settings(max_examples=25)
@given(views=st.lists(st.tuples(batches, said), min_size=1, max_size=6))
def test_a_batch_scheduler_asks_for_nothing_that_is_not_there(name: str, views: list[tuple[BatchView, float]]) -> None:
    scheduler: BatchScheduler = make("batch_scheduler", name)
    for now_s, (view, took_s) in enumerate(views, start=10):
        plan = scheduler.next_batch(view, float(now_s))
        check_batch_plan(plan, view)
        scheduler.on_step(view, plan, took_s)


pools = st.builds(
    Pool, st.integers(0, 20), st.integers(0, 5), st.integers(0, 5), st.lists(loads, max_size=3).map(tuple)
)
traffic = st.none() | st.builds(Traffic, said, said, *[maybe] * 8)


@pytest.mark.parametrize("name", registered.names("planner"))
@settings(max_examples=25)
@given(views=st.lists(st.tuples(traffic, pools, pools), min_size=1, max_size=8))
def test_a_planner_keeps_a_worker_of_each_role_within_the_budget(
    name: str, views: list[tuple[Traffic | None, Pool, Pool]]
) -> None:
    planner: Planner = make("planner", name)
    for tick, (seen, prefill, decode) in enumerate(views):
        plan = planner.plan(PlannerView(tick * planner.interval_s, seen, prefill, decode))
        check_scale_plan(plan, DEPLOYMENT, within_budget=True)


@pytest.mark.parametrize("name", registered.names("planner"))
def test_a_planner_scales_down_without_traffic(name: str) -> None:
    """After half an hour of silence on pools that fill the budget one worker of each role is left."""
    planner: Planner = make("planner", name)
    prefill, decode = 4, 2
    for tick in range(round(1800 / planner.interval_s)):
        idle = [Pool(count, loads=(WorkerLoad("w"),) * count) for count in (prefill, decode)]
        plan = planner.plan(PlannerView(tick * planner.interval_s, Traffic(planner.interval_s, 0.0), *idle))
        prefill, decode = plan.prefill, plan.decode
    assert (prefill, decode) == (1, 1)
