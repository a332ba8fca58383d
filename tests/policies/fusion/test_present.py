"""Loads of now from reports of some time ago."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.flow import FusionFlow
from pdplugins.policies.fusion.present import MOST_KNOWN, Present
from pdplugins.policies.fusion.router import FusionRouter
from pdplugins.testing import Load, Worker, request, worker
from pdplugins.types import Ending, Go, Hold, Outcome, Placement, Waiting

Cores = Callable[..., Core]
RATE = 1000.0


@dataclass
class Dated(Load):
    reported_s: float | None = 0.0


def old(name: str, reported_s: float | None = 0.0, **load: float) -> Worker:
    """Return a worker with a report of some time ago."""
    counts = {"decode_requests": 0.0, "decode_tokens": 0.0, "prefill_tokens": 0.0} | load
    return worker(name, load=Dated(name, reported_s=reported_s, **counts))


def present(now_s: float = 0.0) -> Present:
    """Return what follows workers that prefill a thousand tokens a second."""
    it = Present(lambda *_: RATE)
    it.at((old("d0"), old("p0")), now_s)
    return it


def here(name: str) -> Placement:
    return Placement(name, name, 0)


def test_a_load_without_a_time_is_one_of_now() -> None:
    it, now = present(5.0), worker("d0", queued_tokens=700.0, decode_requests=3.0, decode_tokens=900.0)
    assert (it.ahead(now), it.decodes(now), it.follows) == (700.0, (3, 900), True)
    it.at((now,), 5.0)
    assert (it.ahead(now), it.decodes(now), it.follows) == (700.0, (3, 900), False)


@pytest.mark.parametrize("reported_s", [None, math.nan, math.inf, -math.inf, 6.0])
def test_a_time_that_is_none_or_not_past_says_nothing(reported_s: float | None) -> None:
    it, odd = present(5.0), old("d0", reported_s, queued_tokens=700.0)
    assert it.ahead(odd) == 700.0


def test_what_was_queued_is_worked_off_and_then_decodes_here() -> None:
    decodes = {"running_requests": 1.0, "decode_requests": 1.0, "decode_tokens": 50.0}
    it, d0 = present(0.5), old("d0", queued_tokens=2000.0, queued_requests=2.0, **decodes)
    assert (it.ahead(d0), it.decodes(d0)) == (1500.0, (1, 50))
    it.now_s = 3.0
    assert (it.ahead(d0), it.decodes(d0)) == (0.0, (3, 2050))


def test_a_worker_that_prefills_only_decodes_nothing_of_it() -> None:
    it, p0 = present(9.0), old("p0", queued_tokens=2000.0, queued_requests=2.0)
    assert (it.ahead(p0), it.decodes(p0)) == (0.0, (0, 0))


def test_contexts_grow_by_the_steps_since() -> None:
    it, d0 = present(1.0), old("d0", decode_requests=4.0, decode_tokens=400.0, recent_tbt_s=0.1)
    assert it.decodes(d0) == (4, 440)


def test_own_placements_since_the_report_join_and_those_before_it_are_in_it() -> None:
    it = present(1.0)
    assert it.ahead(old("d0", 0.0)) == 0.0
    it.placed(request("a", 3000), Placement("d0", "d0", 3000), 500)
    assert it.ahead(old("d0", 0.0)) == 2500.0
    it.now_s = 2.0
    assert it.ahead(old("d0", 0.0)) == 1500.0
    assert it.ahead(old("d0", 1.5, queued_tokens=2000.0)) == 1500.0
    it.now_s = 4.0
    assert it.ahead(old("d0", 1.5, queued_tokens=2000.0)) == 0.0


def test_a_bound_decode_is_there_and_one_that_ended_is_not() -> None:
    it, p0, d0 = present(1.0), old("p0"), old("d0", decode_requests=1.0, decode_tokens=100.0)
    assert it.ahead(p0) + it.decodes(d0)[0] == 1
    it.placed(request("a", 3000), Placement("p0", None, 3000), 0)
    it.now_s = 2.0
    it.bound(request("a", 3000), "p0", "d0")
    assert (it.ahead(p0), it.decodes(d0)) == (0.0, (2, 3100)), "its prefill is done, however long it should take"
    it.left("a", 7)
    it.left("a", 7)
    assert it.decodes(d0) == (1, 93)


def test_one_that_ends_while_it_waits_leaves_the_queue() -> None:
    it, d0 = present(1.0), old("d0")
    assert it.ahead(d0) == 0
    it.placed(request("a", 3000), Placement("d0", "d0", 3000), 0)
    it.left("a", 0)
    assert (it.ahead(d0), it.decodes(d0)) == (0.0, (0, 0))


def test_a_host_that_tells_of_no_end_does_not_fill_the_memory() -> None:
    it, d0 = present(1.0), old("d0")
    assert it.ahead(d0) == 0
    for number in range(2 * MOST_KNOWN):
        it.placed(request(str(number), 10), Placement("d0", "d0", 10), 0)
    assert len(it._places) == MOST_KNOWN
    assert it.ahead(d0) == 10.0 * MOST_KNOWN
    it.keep({"d1"})
    assert not it._workers


def test_one_old_report_does_not_draw_all_requests(core: Cores) -> None:
    """The fault that this mends: the least loaded worker of a report got all until the next one."""
    router = FusionRouter(core(composition=False))
    workers = (old("d0"), old("d1", queued_tokens=500.0))
    for number in range(8):
        router.on_arrival(request(str(number), 1000), workers, 0.5)
    asked = [router.on_arrival(request(f"later {number}", 1000), workers, 0.5).first for number in range(4)]
    assert sorted(set(asked)) == ["d0", "d1"]


def test_the_flow_lets_no_more_go_on_than_a_worker_can_start_on_one_old_report(core: Cores) -> None:
    shared = core(composition=False)
    router, flow, workers = FusionRouter(shared), FusionFlow(shared), (old("d0"),)
    for number in range(9):
        flow.on_arrival(Waiting(request(str(number), 4000), 0.4, 2.4), 0.4)
    went = 0
    while isinstance(flow.next(workers, 0.5), Go):
        router.on_arrival(request(f"went {went}", 4000), workers, 0.5)
        went += 1
    assert went == 1
    assert isinstance(flow.next(workers, 0.5), Hold)


def test_ends_are_heard(core: Cores) -> None:
    shared = core(composition=False)
    router, workers = FusionRouter(shared), (old("d0"),)
    for _ in range(2):
        router.on_arrival(request("a", 1000), workers, 0.5)
    assert shared.present.ahead(workers[0]) > 0
    router.on_ended(request("a", 1000), Outcome(Ending.FINISHED, 3))
    assert shared.present.ahead(workers[0]) == 0
