"""Hand-overs that take longer than the profile says: predictions follow, and in the end nobody prefills for others."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.config import parse
from pdplugins.policies.fusion.batching import FusionBatchScheduler
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.handovers import BAND, HALF_S, MOST, MOST_KNOWN, HandOvers
from pdplugins.policies.fusion.router import FusionRouter
from pdplugins.sim.run.simulate import simulate
from pdplugins.testing import fleet, request, worker
from pdplugins.types import Ending, Outcome, Placement, TraceRequest

Cores = Callable[..., Core]
TTFT_S = 2.0


def heard(hand_overs: HandOvers, late_s: float, count: int = 100, ending: Ending = Ending.FINISHED) -> float:
    """Let first tokens come so much later than predicted; return what is added to predictions then."""
    for index in range(count):
        asked = request(str(index))
        hand_overs.begins(asked, asked.arrival_s + 0.5)
        hand_overs.ended(asked, Outcome(ending, 5, 0.5 + late_s))
    return hand_overs.delay_s


def test_a_delay_is_learned_from_what_comes_late() -> None:
    assert heard(HandOvers(TTFT_S), 0.8) == pytest.approx(0.8, rel=0.2)


def test_a_prediction_that_is_about_right_stays_as_it_is() -> None:
    assert heard(HandOvers(TTFT_S), 0.9 * BAND * TTFT_S) == 0.0
    assert heard(HandOvers(TTFT_S), -0.5) == 0.0


def test_what_did_not_finish_says_nothing() -> None:
    assert heard(HandOvers(TTFT_S), 1.0, ending=Ending.CANCELLED) == 0.0


def test_errors_to_both_sides_teach_nothing() -> None:
    hand_overs = HandOvers(TTFT_S)
    for index in range(200):
        heard(hand_overs, 0.7 if index % 2 else -0.7, 1)
    assert hand_overs.delay_s == 0.0


def test_a_request_that_is_placed_anew_teaches_nothing() -> None:
    """Its worker failed: what that took is no delay of a hand-over."""
    hand_overs = HandOvers(TTFT_S)
    for _ in range(100):
        hand_overs.begins(request("a"), 0.5)
        hand_overs.placed(request("a"), None)
        hand_overs.ended(request("a"), Outcome(Ending.FINISHED, 5, 1.9))
    assert hand_overs.delay_s == 0.0


@pytest.mark.parametrize("done", [True, False])
def test_the_whole_way_from_a_placement_counts_once_its_prefill_is_done(done: bool) -> None:
    """Prefill beside contention takes longer, too. An answer whose prefill never ended came another way."""
    hand_overs = HandOvers(TTFT_S)
    for _ in range(100):
        hand_overs.placed(request("a"), 0.5)
        if done:
            hand_overs.begins(request("a"), 1.1)
        hand_overs.ended(request("a"), Outcome(Ending.FINISHED, 5, 1.3))
    assert hand_overs.delay_s == (pytest.approx(0.8, rel=0.2) if done else 0.0)


def test_what_was_late_by_its_prediction_says_nothing() -> None:
    """Beyond capacity it waits for what else is late, and not for its hand-over."""
    hand_overs, asked = HandOvers(TTFT_S), request("a")
    for _ in range(100):
        hand_overs.begins(asked, asked.arrival_s + 1.1 * TTFT_S)
        hand_overs.ended(asked, Outcome(Ending.FINISHED, 5, 9.0))
    assert hand_overs.delay_s == 0.0


def test_what_is_known_fades_so_that_hand_overs_are_tried_again() -> None:
    """Where nobody prefills for others, nobody hears that it would be quick by now."""
    hand_overs = HandOvers(TTFT_S)
    hand_overs.at(1000.0)
    known_s = heard(hand_overs, 1.0)
    hand_overs.at(1000.0)
    assert hand_overs.delay_s == known_s
    hand_overs.at(1000.0 + HALF_S)
    assert 0.0 < hand_overs.delay_s < known_s
    hand_overs.at(1000.0 + 10 * HALF_S)
    assert hand_overs.delay_s == 0.0


@given(st.lists(st.floats(), max_size=60))
def test_whatever_hosts_report_the_delay_has_bounds(times: list[float]) -> None:
    hand_overs = HandOvers(TTFT_S)
    for ttft_s in times:
        heard(hand_overs, ttft_s, 1)
    assert 0.0 <= hand_overs.delay_s <= MOST * TTFT_S
    assert math.isfinite(hand_overs.delay_s)


def test_a_host_that_tells_of_no_end_fills_no_memory() -> None:
    hand_overs = HandOvers(TTFT_S)
    for index in range(2 * MOST_KNOWN + 20):
        hand_overs.placed(request(str(index)), 0.1)
        if index < MOST_KNOWN + 10:
            hand_overs.begins(request(str(index)), 0.1)
    assert (len(hand_overs._begun_s), len(hand_overs._predicted_s)) == (MOST_KNOWN, MOST_KNOWN)


BUSY = fleet(1, 0)[0], worker("d0", decode_requests=8.0, decode_tokens=8000.0)


def placed(router: FusionRouter, late_s: float, count: int) -> Placement:
    """Place requests whose first token comes so long after they came; return the last placement."""
    placement = None
    for index in range(count):
        asked = request(f"r{index}", 1000)
        placement = router.on_arrival(asked, BUSY, 0.0)
        if placement.second is None:
            router.on_prefill_done(asked, placement, BUSY, 0.1)
        router.on_ended(asked, Outcome(Ending.FINISHED, 5, late_s))
    assert placement is not None
    return placement


def test_prompts_stay_where_they_decode_once_hand_overs_are_known_to_be_late(core: Cores) -> None:
    router = FusionRouter(core(composition=False))
    assert placed(router, 0.3, 50).first == "p0"
    assert router.signals["hand_over_delay_s"] == 0.0
    assert placed(router, 1.9, 50).first == "d0"
    assert router.signals["hand_over_delay_s"] > 1.0


def test_engines_of_this_process_hand_over_as_the_profile_says(core: Cores) -> None:
    shared = core(composition=False)
    FusionBatchScheduler(shared)
    assert placed(FusionRouter(shared), 1.9, 50).first == "p0"


@pytest.mark.parametrize(("late_s", "prefill_only"), [(0.1, True), (1.7, False)])
def test_nobody_prefills_for_others_where_that_is_late(core: Cores, late_s: float, prefill_only: bool) -> None:
    shared = core(dwell_s=0.0)
    for index in range(300):
        asked = request(f"a{index}", 12_000)
        shared.lengths.began(asked)
        shared.ended(asked, Outcome(Ending.FINISHED, 10, 1.0, 0.01))
    heard(shared.hand_overs, late_s)
    shared.compose(12, 6, 1_000_000, 0.0)
    wanted = shared.compose(12, 6, 1_000_000, 100.0)
    assert wanted is not None
    assert (wanted > 0) is prefill_only


def test_where_hand_overs_are_slow_the_pool_serves_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's take a step of the worker that has prefilled, which looks for them only between its steps."""
    config = parse(
        {
            "deployment": {"prefill": {"replicas": 2, "tp": 2}, "decode": {"replicas": 2, "tp": 2}},
            "router": "fusion",
            "flow": "fusion",
            "simulation": {"flip": "label", "late_handoff_s": 1.9, "polled_handoff": True, "step_tokens": 512},
        }
    )
    trace = [TraceRequest(index / 8, 2000, 60) for index in range(720)]

    def attained() -> float:
        return simulate(config, trace, trace_name="steady", command="test")[0].metrics.slo_attainment or 0.0

    assert attained() > 0.9
    monkeypatch.setattr(HandOvers, "delay_s", 0.0)
    assert attained() < 0.5
