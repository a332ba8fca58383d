"""What the simulator models, one behaviour at a time, with answers that follow from the model."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from pdplugins.config import parse
from pdplugins.policies.stock import routers
from pdplugins.sim.core.clock import seconds, ticks
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.flight import Arrival, Flight
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.core.steps import StepTimes
from pdplugins.sim.kernel import COMPILED
from pdplugins.sim.run.simulate import simulate
from pdplugins.testing.scripted import PoolsPlanner
from pdplugins.types import (
    BatchPlan,
    BatchView,
    Placement,
    Request,
    Round,
    WorkerView,
)
from pdplugins.workloads import traces, transform
from tests.sim.cases import CURVE
from tests.sim.runs import DEPLOYMENT, MODEL, ONE_EACH, To, check_gaps, run


def test_one_request_takes_prefill_transfer_and_its_steps() -> None:
    prefill_s, transfer_s = MODEL.prefill_s(1000, 1), MODEL.transfer_s(1000)
    one_s, other_s = MODEL.decode_step_s(1, 1000, 1), MODEL.decode_step_s(1, 1001, 1)
    expected = {
        "prefill": (prefill_s, transfer_s + one_s, transfer_s + one_s + other_s),
        "transfer": (prefill_s + transfer_s, other_s, one_s + other_s),
        "decode": (prefill_s + MODEL.transfer_s(999) + MODEL.decode_step_s(1, 999, 1), other_s, one_s + other_s),
    }
    for first_token, (ttft_s, largest_tbt_s, decode_s) in expected.items():
        (record,) = run(To("p0", "d0"), Arrival(0.0, 1000, 3), settings=SimSettings(first_token=first_token)).records
        assert record.ttft_s == pytest.approx(ttft_s, abs=1e-9)
        assert record.tpot_s == pytest.approx(decode_s / 2, abs=1e-9)
        assert record.largest_tbt_s == pytest.approx(largest_tbt_s, abs=1e-9)


@pytest.mark.parametrize("router", [To("d0", "d0"), To("d0", None)])
def test_who_stays_gets_the_first_token_from_where_the_prompt_was_computed(router: To) -> None:
    for first_token in ("prefill", "transfer", "decode"):
        (record,) = run(router, Arrival(0.0, 1000, 1), settings=SimSettings(first_token=first_token)).records
        assert record.ttft_s == pytest.approx(MODEL.prefill_s(1000, 1), abs=1e-9)


class Late(To):
    """Chooses the second worker when the prompt is computed."""

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        return Placement(placement.first, "d0", placement.split)


def test_a_late_hand_over_takes_a_step_of_one_token_before_the_prompts_that_wait() -> None:
    late = SimSettings(first_token="decode", late_handoff_s=0.1)
    at_once = SimSettings(first_token="decode")
    step_s = seconds(StepTimes(MODEL, 1, 1.0).mixed([(1, 999)], 0, 0, (1.0, 1.0)))
    ttft_s = [run(Late("p0", None), Arrival(0.0, 1000, 3), settings=each).records[0].ttft_s for each in (at_once, late)]
    assert ttft_s[1] == pytest.approx(ttft_s[0] + 0.1 + step_s, abs=1e-9)
    longer = replace(late, late_step_s=0.02, late_step_token_s=1e-5)
    (record,) = run(Late("p0", None), Arrival(0.0, 1000, 3), settings=longer).records
    assert record.ttft_s == pytest.approx(ttft_s[1] + 0.02 + 1000 * 1e-5, abs=1e-9)
    work = [Arrival(0.0, 1000, 3), *(Arrival(0.01, 8000, 1) for _ in range(3))]
    first = next(r for r in run(Late("p0", None), *work, settings=late).records if r.id == "0")
    assert first.ttft_s < 1.1 * (MODEL.prefill_s(1000, 1) + MODEL.prefill_s(8000, 1) + 0.1 + step_s)


class ByLength(Late):
    """Long prompts stay on the decode worker."""

    def __init__(self) -> None:
        super().__init__("p0", None)

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        long = request.prompt_tokens > 1000
        return Placement("d0", "d0", 0) if long else super().on_arrival(request, workers, now_s)


def test_a_polled_hand_over_waits_twice_for_the_step_that_runs_on_the_second_worker() -> None:
    """A long prompt runs there when the hand-over is asked for, and another one when its KV cache arrives."""
    times, step = StepTimes(MODEL, 1, 1.0), EngineSettings(order="prefill_first")
    busy_s = [0.0, MODEL.prefill_s(8000, 1)]

    def ttft_s(busy: int, *, polled: bool) -> float:
        sim = SimSettings(engine=step, first_token="transfer", late_handoff_s=0.0, polled_handoff=polled)
        work = [Arrival(0.0, 1000, 3), *(Arrival(0.0, 8000, 1) for _ in range(busy))]
        return next(r for r in run(ByLength(), *work, settings=sim).records if r.id == "0").ttft_s or 0.0

    assert ttft_s(0, polled=True) == ttft_s(0, polled=False) == ttft_s(2, polled=False)
    late_s = seconds(times.mixed([(1, 999)], 0, 0, (1.0, 1.0))) + MODEL.transfer_s(1000)
    assert ttft_s(1, polled=True) == pytest.approx(busy_s[1] + late_s, abs=1e-9)
    assert ttft_s(2, polled=True) == pytest.approx(2 * busy_s[1], abs=1e-9)


def test_a_hand_over_chosen_at_arrival_is_not_late() -> None:
    times = [
        run(To("p0", "d0"), Arrival(0.0, 1000, 3), settings=SimSettings(late_handoff_s=late_s)).records[0].ttft_s
        for late_s in (None, 0.5)
    ]
    assert times[0] == times[1]


def test_prefill_disturbs_decodes_only_on_the_same_engine() -> None:
    victim, bully = Arrival(0.0, 100, 200), Arrival(0.5, 4000, 1)
    apart = run(To("p0", "d0"), victim, bully).records[-1]
    together = run(To("d0", "d0"), victim, bully).records[-1]
    step_s = MODEL.decode_step_s(1, 300, 1)
    assert apart.largest_tbt_s < 0.06
    assert together.largest_tbt_s > 0.99 * MODEL.prefill_s(4000, 1) > 10 * step_s


def test_prefill_first_stalls_decodes_that_decode_first_keeps_going() -> None:
    work = [Arrival(0.0, 100, 300), *(Arrival(0.1 + 0.01 * n, 500, 1) for n in range(20))]
    gaps = {}
    for order in ("decode_first", "prefill_first"):
        engine = EngineSettings(order=order, step_tokens=501)
        records = run(To("d0", "d0"), *work, settings=SimSettings(engine=engine)).records
        gaps[order] = next(record.largest_tbt_s for record in records if record.id == "0")
    assert gaps["prefill_first"] > 5 * gaps["decode_first"]


def test_chunks_sent_while_the_next_computes_arrive_sooner() -> None:
    engine = EngineSettings(step_tokens=512)
    settings = (SimSettings(engine=engine, overlap=overlap, first_token="transfer") for overlap in (False, True))
    late, early = (run(To("p0", "d0"), Arrival(0.0, 4096, 2), settings=one).records[0] for one in settings)
    assert late.tpot_s == early.tpot_s
    assert late.ttft_s - early.ttft_s == pytest.approx(5.3e-6 * (4096 - 512), rel=1e-6)


def test_a_prompt_too_long_for_its_second_worker_fails_once_and_frees_the_first() -> None:
    """Its first chunks could be sent while it computes, but the rest will never fit."""
    settings = SimSettings(engine=EngineSettings(step_tokens=128, watermark=0.0), kv_tokens=1500, overlap=True)
    work = Arrival(0.0, 1600, 5), Arrival(5.0, 1400, 1)
    long, after = run(To("p0", "d0", 1000), *work, settings=settings).records
    assert long.error == "needs 1601 tokens of KV cache, worker d0 has room for 1500"
    assert after.error is None


def test_a_cached_prefix_is_not_computed_again() -> None:
    blocks = (1, 2, 3)
    first, second = run(To("p0", "d0"), Arrival(0.0, 1600, 1, blocks), Arrival(5.0, 1600, 1, blocks)).records
    assert second.ttft_s < first.ttft_s / 5


def test_a_session_keeps_its_history_where_it_decoded() -> None:
    session = Arrival(0.0, 3000, 10, session="s", rounds=(Round(1.0, 50, 5),))
    first, second = run(To("d0", "d0"), session).records
    assert second.isl_tokens == 3060
    assert second.arrival_s == pytest.approx(first.finish_s + 1.0)
    assert second.ttft_s < first.ttft_s / 5


@pytest.mark.parametrize(("history", "isl", "cached"), [(None, 3060, 3009), (2000, 2050, 2000), (0, 50, 0)])
def test_a_round_reuses_the_history_that_it_repeats_and_no_more(history: int | None, isl: int, cached: int) -> None:
    """A client that compacts its conversation, and one whose next question has nothing to do with the last."""
    session = Arrival(0.0, 3000, 10, session="s", rounds=(Round(1.0, 50, 5, history),))
    _, second = run(To("d0", "d0"), session).records
    assert second.isl_tokens == isl
    computed = MODEL.prefill_s(isl, 1) - (MODEL.prefill_s(cached, 1) if cached else 0.0)
    overhead = MODEL.prefill_s(0, 1) if cached else 0.0
    assert second.ttft_s == pytest.approx(computed + overhead, rel=0.02)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("timeout_s", [0.0123456789, 0.0333333333, 0.1])
def test_a_batch_scheduler_that_waits_for_a_time_gets_there(timeout_s: float) -> None:
    """Rounded down, a wait of less than half a tick would let time stand still."""

    class Gathers:
        def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
            if not view.queue:
                return BatchPlan({})
            left_s = min(task.queued_s for task in view.queue) + timeout_s - now_s
            if left_s > 0:
                return BatchPlan({}, wait_s=left_s)
            return BatchPlan({task.request.id: task.remaining_tokens for task in view.queue})

        def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
            pass

    for number in range(20):
        (record,) = run(To("p0", "d0"), Arrival(0.1234567 * number, 500, 2), batch_scheduler=Gathers).records
        assert record.ttft_s > timeout_s


def test_a_workload_of_sessions_is_simulated_round_by_round() -> None:
    trace = traces.read("sessions:duration_s=30")
    result, outcome = simulate(parse({}), trace, trace_name="sessions", command="test")
    assert (result.requests.total, result.requests.failed) == (transform.total(trace), 0)
    turns = sorted((isl, osl) for request in trace for _, isl, osl in request.turns())
    assert sorted((record.isl_tokens, record.osl_tokens) for record in outcome.records) == turns


def test_the_rounds_after_one_that_failed_count_as_failed_too() -> None:
    """Else a policy whose sessions break early would look better than one that serves them."""
    session = Arrival(0.0, 5000, 5, session="s", rounds=(Round(1.0, 50, 5), Round(1.0, 50, 5)))
    first, *later = run(To("p0", "d0"), session, settings=SimSettings(kv_tokens=4000)).records
    assert "needs 5001 tokens" in first.error
    assert [(r.isl_tokens, r.error) for r in later] == [
        (5055, "not sent: an earlier round of its session failed"),
        (5110, "not sent: an earlier round of its session failed"),
    ]


def test_a_dead_workers_requests_go_on_elsewhere_and_keep_their_tokens() -> None:
    settings = SimSettings(decode=2, deaths=((1.0, "d1"),))
    (record,) = run(
        routers.LeastLoaded(routers.RouterSettings(), DEPLOYMENT), Arrival(0.0, 100, 200), settings=settings
    ).records
    assert record.error is None
    assert record.largest_tbt_s > 0.02
    (lost,) = run(
        To("p0", "d0"), Arrival(0.0, 100, 200), settings=SimSettings(deaths=((1.0, "d0"),), retries=0)
    ).records
    assert lost.error == "worker d0 died, after 0 retries"


def test_what_can_never_fit_fails_and_says_why() -> None:
    (record,) = run(To("p0", "d0"), Arrival(0.0, 5000, 5), settings=SimSettings(kv_tokens=4000)).records
    assert "needs 5001 tokens of KV cache" in record.error


def test_a_batch_scheduler_composes_the_steps() -> None:
    class Shortest:
        steps: ClassVar[list[float]] = []

        def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
            waiting = min(view.queue, key=lambda queued: queued.remaining_tokens)
            return BatchPlan({waiting.request.id: waiting.remaining_tokens})

        def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
            self.steps.append(took_s)

    work = [Arrival(0.0, 900, 1), Arrival(0.001, 800, 1), Arrival(0.001, 30, 1)]
    outcome = run(To("p0", "d0"), *work, batch_scheduler=Shortest)
    assert [record.id for record in outcome.records] == ["0", "2", "1"]
    assert Shortest.steps == pytest.approx([MODEL.prefill_s(n, 1) for n in (900, 30, 800)], abs=1e-9)


def test_a_router_that_raises_is_replaced_and_counted() -> None:
    class Broken:
        def on_arrival(self, *_: object) -> Placement:
            raise ValueError("no")

        on_prefill_done = on_arrival

    outcome = run(Broken(), Arrival(0.0, 100, 5))
    assert outcome.records[0].error is None
    assert outcome.policies.faults["router"] == 1


def test_a_place_in_the_batch_is_taken_when_its_request_waits_to_move() -> None:
    """Its KV cache stays until there is room on the other worker, and another request may decode beside it."""

    class ByOrder(To):
        def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
            first, second = {"0": ("d1", "d1"), "1": ("d0", "d1"), "2": ("p0", "d0")}[request.id]
            return Placement(first, second, request.prompt_tokens)

    work = Arrival(0.0, 100, 2000), Arrival(0.0, 1000, 5), Arrival(0.0, 100, 5)
    settings = SimSettings(decode=2, first_token="prefill", engine=EngineSettings(max_batch=1))
    records = {record.id: record for record in run(ByOrder("", None), *work, settings=settings).records}
    assert records["2"].finish_s < 1.0 < records["0"].finish_s < records["1"].finish_s


def test_the_gap_that_a_preemption_makes_counts_in_the_tbt() -> None:
    tight = SimSettings(kv_tokens=1500, engine=EngineSettings(watermark=0.0))
    outcome = run(To("d0", "d0"), Arrival(0.0, 500, 400), Arrival(0.0, 500, 400), settings=tight)
    assert outcome.preemptions == 1
    check_gaps(outcome)


def test_cost_does_not_grow_with_output_length() -> None:
    router = routers.RoundRobin(routers.RouterSettings(), DEPLOYMENT)
    short, long = (
        run(router, *(Arrival(2.0 * n, 200, osl) for n in range(300)), settings=SimSettings(decode=4)).events
        for osl in (20, 200)
    )
    assert long < 1.3 * short


TESTS = Path(__file__).parents[1]
PROGRAM = """
import hashlib
from pdplugins.runtime.assembly import build_deployment
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic
from pdplugins.config import parse
from pdplugins.policies.stock.routers import PowerOfTwo, RouterSettings
from pdplugins.sim.kernel import COMPILED
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.power import PowerCurve
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.types import Round
from tests.sim.anyone import AnyPlanner, AnyPower, AnyScheduler
deployment = build_deployment(parse({}))
trace = synthetic(SyntheticSettings(seed=5, duration_s=120))
work = [
    Arrival(r.arrival_s, r.isl_tokens, r.osl_tokens, blocks=(n % 7,) if r.isl_tokens > 512 and n % 5 else (),
            session=None if n % 5 else str(n), rounds=() if n % 5 else (Round(2.0, 50, 20),))
    for n, r in enumerate(trace)
]
router = PowerOfTwo(RouterSettings(seed=3), deployment)
plain = Simulation(deployment, SimSettings(2, 2, kv_tokens=60_000), router).run(work)
curve = PowerCurve((300.0, 700.0), (2.0, 1.0), (1.2, 1.0))
settings = SimSettings(2, 2, kv_tokens=60_000, overlap=True, deaths=((9.0, "d1"),), power=curve)
policies = {"planner": AnyPlanner(5.0), "power": AnyPower(1.0), "batch_scheduler": AnyScheduler}
driven = Simulation(deployment, settings, router, **policies).run(work[:150])
told = repr((plain.records, driven.records, driven.scaling, driven.energy_j, sorted(driven.policies.faults)))
print(hashlib.sha256(told.encode()).hexdigest(), COMPILED)
"""


def digest(**environment: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    digest, compiled = done.stdout.split()
    return digest, compiled


@pytest.mark.moderate
def test_the_same_seed_gives_the_same_bytes_on_any_hash_seed_and_compiled() -> None:
    plain = digest(PYTHONHASHSEED="1", PYTHONPATH=os.pathsep.join([str(TESTS / "plain"), *sys.path]))
    installed = digest(PYTHONHASHSEED="2")
    assert plain[1] == "False"
    assert installed == (plain[0], str(COMPILED))
    assert len(plain[0]) == len(hashlib.sha256().hexdigest())


def test_whole_prompts_wait_for_a_step_that_they_fit_into() -> None:
    work = [Arrival(0.0, 600, 1), Arrival(0.0, 600, 1), Arrival(0.0, 600, 1)]
    alone_s, ends = MODEL.prefill_s(600, 1), {}
    for whole in (False, True):  # the first one starts before the others are there
        settings = SimSettings(engine=EngineSettings(step_tokens=1000, whole_prompts=whole))
        ends[whole] = [record.ttft_s for record in run(To("p0", "p0"), *work, settings=settings).records]
    assert ends[True] == pytest.approx([alone_s, 2 * alone_s, 3 * alone_s], abs=1e-9)
    assert ends[False][1] == pytest.approx(alone_s + MODEL.prefill_s(1000, 1), abs=1e-9)


@pytest.mark.parametrize(("split", "worker"), [(0, "d0"), (-5, "d0"), (105, "p0"), (10_000, "p0")])
def test_a_worker_that_gets_no_token_is_not_named(split: int, worker: str) -> None:
    (record,) = run(To("p0", "d0", split), Arrival(0.0, 100, 5)).records
    assert (record.prefill_worker, record.decode_worker) == (worker, worker)


def test_what_is_interrupted_counts_the_time_up_to_then() -> None:
    """Workers that started after the last answer took no time less than none, and drew no power less than none."""
    work = [Arrival(0.01 * n, 100, 10_000) for n in range(1500)]
    planner = PoolsPlanner((0.0, 1, 1), (1.0, 2, 2))
    simulation = Simulation(DEPLOYMENT, replace(ONE_EACH, power=CURVE), To("p0", "d0"), planner=planner)

    def interrupt(now_s: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulation.run(work, interrupt)
    outcome = simulation.outcome()
    assert outcome.records == []
    assert outcome.duration_s > 1.0
    assert 3600 * outcome.gpu_hours > 2 * outcome.duration_s
    assert outcome.energy_j > 0


def test_a_run_without_requests_ends() -> None:
    assert run(To("p0", "d0"), planner=PoolsPlanner((0.0, 1, 1))).records == []


def test_what_a_dead_worker_was_computing_is_no_chunk_of_the_next_one() -> None:
    simulation, lost = Simulation(DEPLOYMENT, ONE_EACH, To("p0", "d0")), list[Flight]()

    class EnoughError(Exception):
        pass

    def die(_: object) -> None:
        lost.extend(simulation._fleet.workers["p0"].engine.abandon())
        raise EnoughError

    simulation._events.call_at(ticks(0.01), die)
    with pytest.raises(EnoughError):
        simulation.run([Arrival(0.0, 8000, 5)])
    assert [(flight.chunk, flight.kv) for flight in lost] == [(0, 0)]
