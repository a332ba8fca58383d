"""The decode pool: Little's law, headroom for the bursts that were seen, and what waits for a place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdplugins import testing
from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.dopd.config import DopdSettings
from pdplugins.policies.dopd.decoding import DecodeNeed, Decoding
from pdplugins.policies.dopd.load import Load
from pdplugins.policies.dopd.planner import DopdPlanner
from pdplugins.resources import data_dir
from pdplugins.types import PlannerView, Pool, Traffic, WorkerLoad

PERF = TableModel(read_profile(data_dir("profiles") / "h100" / "llama-3.1-70b-fp8.json"))
SMALL_BATCH = testing.deployment(PERF, decode_tp=2, max_batch=16)
STEPS, WINDOW_S, MANY_READY = 6, 5.0, Pool(50)


def decoding(**changed: object) -> Decoding:
    return Decoding(DopdSettings(**changed), SMALL_BATCH, STEPS, 1440.0, 30.0)  # type: ignore[arg-type]


def needs(subject: Decoding, rate: float, seen: float, pool: Pool = MANY_READY) -> DecodeNeed:
    """Size the pool for a forecast of `rate` requests a second after a window with `seen` ones."""
    traffic = Traffic(WINDOW_S, WINDOW_S * seen, 1000, 200)
    return subject.need(PlannerView(5.0, traffic, Pool(4), pool), traffic, Load(1000, 200, rate), rate)


def test_bursts_that_the_forecast_expects_to_end_are_headroom() -> None:
    """The forecast is the mean all the time: right about the end of each burst, and short while it lasts."""
    calm, bursty = decoding(), decoding()
    for window in range(120):
        needs(calm, 6.0, 6.0)
        needs(bursty, 6.0, 14.0 if window // 12 % 3 == 0 else 2.0)
    even, headroom = needs(calm, 6.0, 6.0), needs(bursty, 6.0, 2.0)
    assert even.busy == headroom.busy
    assert even.workers < headroom.workers


def test_no_pool_is_larger_than_the_largest_burst_asks_for() -> None:
    subject = decoding()
    for window in range(400):
        needs(subject, 1.0, 20.0 if window % 40 == 0 else 0.5)
    assert needs(subject, 1.0, 0.5).workers <= needs(decoding(), 20.0, 20.0).workers


def test_bursts_are_not_learned_where_that_is_off() -> None:
    subject = decoding(learn_bursts=False)
    for _ in range(60):
        needs(subject, 6.0, 30.0)
    assert needs(subject, 6.0, 30.0).workers == needs(decoding(learn_bursts=False), 6.0, 6.0).workers


def test_what_waits_for_a_place_adds_the_workers_that_clear_it_within_one_start_up() -> None:
    waiting = Pool(2, loads=(WorkerLoad("d", queued_requests=200.0),))
    calm, pressed = needs(decoding(), 4.0, 4.0), needs(decoding(), 4.0, 4.0, waiting)
    each_s = pressed.busy / 4.0
    assert pressed.backlog_s == pytest.approx(200 * each_s)
    less_s = 2 * SMALL_BATCH.slo.ttft_s
    assert pressed.workers - calm.workers == pytest.approx((200 * each_s - less_s) / 30.0, abs=1.0)
    assert needs(decoding(drain_backlog=False), 4.0, 4.0, waiting).workers == calm.workers


def test_a_later_run_knows_the_bursts_of_an_earlier_one() -> None:
    first = decoding()
    for window in range(60):
        needs(first, 6.0, 14.0 if window % 3 == 0 else 2.0)
    later = decoding()
    later.resume(**first.learned)
    assert needs(later, 6.0, 2.0).workers == needs(first, 6.0, 2.0).workers > needs(decoding(), 6.0, 2.0).workers


def test_absurd_metrics_leave_a_state_that_a_later_run_takes() -> None:
    subject = DopdPlanner(DopdSettings(), SMALL_BATCH)
    for window in range(30):
        traffic = Traffic(WINDOW_S, 5e7 * (window % 3), 1e5, 1e6)
        subject.plan(PlannerView(WINDOW_S * (window + 1), traffic, Pool(2), Pool(2)))
    DopdPlanner(DopdSettings(), SMALL_BATCH).resume(subject.state(), 0.0)


def test_local_prompts_come_on_top() -> None:
    traffic = Traffic(WINDOW_S, 30.0, 1000, 200)
    view = PlannerView(5.0, traffic, Pool(4), MANY_READY)
    load = Load(1000, 200, 6.0)
    alone = decoding().need(view, traffic, load, 6.0)
    local = decoding().need(view, traffic, replace(load, local_share=0.5, local_tokens=1000.0), 6.0)
    assert alone.local == 0 < local.local
    assert local.workers > alone.workers
