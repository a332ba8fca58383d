"""Workers that are slower or faster than their profile: who is one, and what follows for whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.contracts.bundle import Bundle
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.drift import BAND, BOUND, GRAIN, MOST_KNOWN, Drift
from pdplugins.policies.fusion.router import FusionRouter
from pdplugins.testing import Worker, fleet, request, worker
from pdplugins.types import BatchPlan, BatchView, QueuedPrefill, Role

Cores = Callable[..., Core]


def drifted(drift: Drift, steps: int = 400, **slow: float) -> Drift:
    """Let each worker run steps that take so many times as long as modelled."""
    for _ in range(steps):
        for name, times in slow.items():
            drift.measured(name, 0.02, 0.02 * times)
    return drift


@given(st.lists(st.floats(-BAND, BAND), min_size=1, max_size=200))
def test_a_worker_that_does_what_its_profile_says_has_exactly_one(errors: list[float]) -> None:
    """However its steps scatter within the band: then no decision differs from one without any measurement."""
    drift = Drift()
    for error in errors:
        drift.measured("d0", 0.02, 0.02 * (1 + 0.99 * error))
    assert (drift.of("d0"), drift.typical) == (1.0, 1.0)


def test_a_slow_worker_is_known_and_does_not_change_what_is_typical() -> None:
    drift = drifted(Drift(), a=1.0, b=1.01, c=0.99, slow=2.0)
    assert drift.of("slow") == pytest.approx(2.0, rel=0.05)
    assert {drift.of(name) for name in ("a", "b", "c", "unknown")} == {1.0}


def test_a_wrong_profile_shows_in_all_workers_and_counts_for_new_ones() -> None:
    drift = drifted(Drift(), a=0.7, b=0.7, c=0.7)
    assert drift.of("new") == drift.typical == pytest.approx(0.7, abs=1 / GRAIN)


def test_few_steps_say_little() -> None:
    drift = drifted(Drift(), 1, a=2.0)
    assert 1.0 < drift.of("a") < 1.2
    assert drifted(drift, 40, a=2.0).of("a") > 1.7


@pytest.mark.parametrize("took_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_says_nothing(took_s: float) -> None:
    drift = Drift()
    drift.measured("a", 0.02, took_s)
    assert drift.of("a") == 1.0


def test_what_one_step_says_is_bounded_and_the_memory_too() -> None:
    drift = drifted(Drift(), a=1e6)
    assert drift.of("a") <= BOUND
    for index in range(MOST_KNOWN + 10):
        drift.placed(str(index), "a")
    assert (drift.whose(["0"]), drift.whose(["gone", str(MOST_KNOWN)])) == (None, "a")
    drift.keep({"b"})
    assert drift.of("a") == drift.typical


def slow_core(core: Cores, **slow: float) -> Core:
    shared = core(composition=False)
    drifted(shared.drift, **slow)
    return shared


def placed(core: Core, workers: tuple[Worker, ...]) -> tuple[str, str]:
    router, asked = FusionRouter(core), request("r", 1000)
    placement = router.on_arrival(asked, workers, 0.0)
    if placement.second is None:
        placement = router.on_prefill_done(asked, placement, workers, 0.0)
    return placement.first, placement.second or ""


def test_a_prompt_goes_where_its_first_token_is_sooner_though_more_waits_there(core: Cores) -> None:
    workers = worker("d0", queued_tokens=1000.0), worker("d1", queued_tokens=1500.0)
    assert placed(core(composition=False), workers) == ("d0", "d0")
    assert placed(slow_core(core, d0=2.0, d1=1.0, d2=1.0), workers) == ("d1", "d1")


def test_a_slow_worker_decodes_less(core: Cores) -> None:
    busy = {"decode_requests": 10.0, "queued_tokens": 90_000.0}
    workers = (worker("p0"), worker("d0", decode_tokens=9e3, **busy), worker("d1", decode_tokens=1e4, **busy))
    assert placed(core(composition=False), workers) == ("p0", "d0")
    assert placed(slow_core(core, p0=1.0, d0=1.5, d1=1.0), workers) == ("p0", "d1")


def test_one_too_slow_to_decode_within_the_slo_prefills_only(core: Cores) -> None:
    """It changes roles with one that can; where nobody prefills only it is the first to."""
    shared = core(prior_tokens=300, dwell_s=0.0)
    drifted(shared.drift, p0=1.0, d0=1.0, d1=1.0, d2=3.9)
    shared.costs.step_s = 0.07
    for now_s, present in ((100.0, fleet(1, 3)), (200.0, fleet(0, 3))):
        router = FusionRouter(shared)
        router.on_arrival(request(str(now_s), 300), present, now_s)
        router.plan_ahead(present, now_s)
        moves = {move.worker: move.role for move in router.take_role_moves()}
        assert moves["d2"] is Role.PREFILL
        assert moves.get("p0") in (None, Role.DECODE)


def test_the_time_between_tokens_of_a_worker_that_only_decodes_is_measured(core: Cores) -> None:
    """Its engine's steps are told to nobody, or in another process. Other hosts report means of some seconds."""
    shared, far = core(), core()
    shared.drift.placed("r", "d0")
    shared.drift.whose(["r"])
    alone_s = shared.costs.decode_s(20, 1000.0)
    loads = {"decode_requests": 20.0, "decode_tokens": 20_000.0}
    workers = (
        worker("d0", recent_tbt_s=2 * alone_s, prefill_tokens=0.0, **loads),
        worker("d1", recent_tbt_s=2 * alone_s, prefill_tokens=500.0, **loads),
        worker("d2", recent_tbt_s=2 * alone_s, **loads),
        worker("d3"),
    )
    for now_s in range(1, 10):
        for each in (shared, far):
            each.look(workers, float(now_s))
    assert shared.drift.of("d0") > 1.8
    assert {shared.drift.of(name) for name in ("d1", "d2")} == {shared.drift.typical}
    assert far.drift.of("d0") == 1.0
    for now_s in range(10, 20):
        far.look(workers, float(now_s))
    assert far.drift.of("d0") > 1.8
    far.drift.mixes("d0", 20.0)
    assert not far.drift.only_decodes("d0", 21.0)


def test_places_to_decode_are_those_of_the_real_steps(core: Cores) -> None:
    shared = core()
    shared.lengths.isl = 1000.0
    shared.costs.step_s = 0.021
    workers = fleet(0, 2)
    before = shared.most_in_service(workers)
    drifted(shared.drift, d0=0.75, d1=0.75)
    assert shared.most_in_service(workers) > before


def test_an_engine_prefills_beside_decodes_that_the_profile_takes_for_too_slow(bundle: Callable[..., Bundle]) -> None:
    """No step with both would ever be measured, so what the others took must count."""
    parts = bundle()
    assert parts.batch_scheduler is not None
    assert parts.router is not None
    engine, router = parts.batch_scheduler(), parts.router()
    crowded = BatchView((QueuedPrefill(request("r", 500), 500, 0.0, 0),), 600, 600_000)
    assert sum(engine.next_batch(crowded, 0.0).prefill_tokens.values()) == 0
    router.on_arrival(request("r", 500), fleet(0, 1), 0.0)
    alone = BatchView((QueuedPrefill(request("r", 500), 500, 0.0, 0),), 0, 0)
    for _ in range(200):
        engine.on_step(alone, BatchPlan({"r": 500}), 0.02)
    assert sum(engine.next_batch(crowded, 0.0).prefill_tokens.values()) > 0
