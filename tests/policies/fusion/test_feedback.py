"""What is missed, and what steps really take, correct the programme."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pdplugins.policies.fusion.composition import Frontier, Lengths, Point
from pdplugins.policies.fusion.core import RESERVE, Core
from pdplugins.policies.fusion.doubt import Cases
from pdplugins.policies.fusion.flow import FusionFlow
from pdplugins.policies.fusion.lengths import LATELY
from pdplugins.policies.fusion.router import FusionRouter
from pdplugins.testing import fleet, request
from pdplugins.types import Ending, Go, Outcome, Terms, Waiting

Cores = Callable[..., Core]


def served(core: Core, ttft_s: float, tpot_s: float, count: int = 300, terms: Terms | None = None) -> None:
    """Let clients see these latencies, with lengths that leave the programme near its optimum."""
    for index in range(count):
        asked = request(f"{ttft_s}{tpot_s}{index}", 12_000, terms=terms)
        core.lengths.began(asked)
        core.ended(asked, Outcome(Ending.FINISHED, 100, ttft_s, tpot_s))


@pytest.mark.parametrize(("ttft_s", "tpot_s", "asks"), [(9.0, 0.01, 1), (0.1, 0.2, -1), (9.0, 0.2, 0), (0.1, 0.01, 0)])
def test_the_objective_that_is_missed_asks_for_a_worker(core: Cores, ttft_s: float, tpot_s: float, asks: int) -> None:
    shared = core()
    served(shared, ttft_s, tpot_s)
    assert shared.feedback.asks == asks


def test_a_ttft_missed_for_places_to_decode_asks_for_one_that_decodes(core: Cores) -> None:
    """One more that prefills only would leave even fewer places."""
    shared = core()
    flow, now_s = FusionFlow(shared), 0.0
    served(shared, 9.0, 0.01)
    for index in range(1000):
        asked = request(str(index), 100)
        flow.on_arrival(Waiting(asked, now_s, now_s + 2.0), now_s)
    assert shared.feedback.asks == 1
    while isinstance(flow.next(fleet(0, 1), now_s), Go):
        pass
    for _ in range(100):
        flow.next(fleet(0, 1), now_s)
    assert shared.feedback.asks == -1


def test_a_request_is_measured_by_its_own_objectives(core: Cores) -> None:
    shared = core()
    served(shared, 3.0, 0.01, terms=Terms(ttft_s=10.0))
    assert shared.feedback.asks == 0


def test_what_did_not_finish_or_was_not_seen_says_nothing(core: Cores) -> None:
    shared = core()
    for index in range(300):
        shared.lengths.began(request(str(index)))
        shared.ended(request(str(index)), Outcome((Ending.FAILED, Ending.FINISHED)[index % 2], 5))
    assert (shared.feedback.ttft_missed, shared.feedback.tpot_missed) == (0.0, 0.0)


def test_the_composition_moves_by_one_worker_and_stays_for_the_dwell_time(core: Cores) -> None:
    shared, workers = core(feedback=1.0, dwell_s=60.0), fleet(0, 12)
    served(shared, 0.1, 0.01)
    router = FusionRouter(shared)
    router.plan_ahead(workers, 0.0)
    before = shared.wanted
    assert before is not None
    pool = fleet(before, 12 - before)
    for ttft_s, tpot_s, moved in ((9.0, 0.01, 1), (0.1, 0.2, -1)):
        served(shared, ttft_s, tpot_s, 600)
        now_s = 100.0 if moved > 0 else 300.0
        router.plan_ahead(pool, now_s)
        assert shared.wanted == before + moved
        router.plan_ahead(pool, now_s + 59.0)
        assert shared.wanted == before + moved
        served(shared, 0.1, 0.01, 600)


def test_it_does_not_move_where_that_would_cost_capacity(core: Cores) -> None:
    shared = core(feedback=0.0, gain=0.0)
    served(shared, 9.0, 0.01)
    assert shared.feedback.asks == 1
    shared.compose(12, 0, 200_000, 0.0)
    isl = shared.lengths.isl or 0.0
    does = shared.frontier(isl, RESERVE * shared.lengths.osl, 200_000)
    assert shared.wanted is not None
    assert does.rate(shared.wanted, 12 - shared.wanted) == pytest.approx(shared.capacity)


def test_slow_steps_lower_the_capacity_and_move_the_composition(core: Cores) -> None:
    """Prefill steps that take twice as long: more workers must prefill."""
    slow, known = core(), core()
    for _ in range(1000):
        slow.costs.measured(0.1, 0.2, decodes=False)
        slow.costs.measured(0.1, math.nan, decodes=False)
        slow.costs.measured(0.1, 0.1, decodes=True)
    ours, theirs = (each.frontier(4000.0, 100.0, 200_000) for each in (slow, known))
    assert ours.prefill == pytest.approx(theirs.prefill / 2, rel=0.01)
    assert ours.mixed == theirs.mixed
    for _ in range(1000):
        slow.costs.measured(0.1, 0.2, decodes=True)
    assert slow.frontier(4000.0, 100.0, 200_000).rate(0, 8) < 0.7 * theirs.rate(0, 8)


def test_the_next_number_that_costs_little_may_be_several_more_or_fewer(core: Cores) -> None:
    """The rates of 0 to 5 that prefill only fall and rise, and do so again."""

    class Valley(Frontier):
        def rate(self, prefill_only: int, mixed: int) -> float:
            return (100.0, 80.0, 80.0, 100.0, 80.0, 100.0)[prefill_only]

    does, shared = Valley(Lengths(1.0, 1.0), 1.0, (Point(1.0, 0.0),)), core()
    cases = Cases(6, 100, lambda part: does)
    served(shared, 0.1, 0.2)
    assert shared.feedback.asks == -1
    assert shared._corrected(cases, 3, 6, 0.0) == 0
    served(shared, 9.0, 0.01, 2000)
    for index in range(LATELY):
        shared.lengths.began(request(f"late{index}"), 200.0)
    assert shared.feedback.asks == 1
    for now_s, moves in ((210.0, {0: 3, 3: 5, 5: 5}), (201.0, {0: 0, 3: 3})):  # with room, and without
        for present, wanted in moves.items():
            assert shared._corrected(cases, present, 6, now_s) == wanted
