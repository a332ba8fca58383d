"""A session's history is read by the worker that prefills the next round, when its turn comes, and only once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdplugins.sim.core.clock import TICKS_PER_S
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.core.worker import Hardware
from pdplugins.testing.scripted import PoolsPlanner
from pdplugins.types import Placement, Request, Role, Round, WorkerView
from tests.sim.runs import DEPLOYMENT, MODEL, To, run

AT_ONCE = SimSettings(first_token="prefill")


def session(start_s: float, name: str, first: int = 4000) -> Arrival:
    return Arrival(start_s, first, 10, session=name, rounds=(Round(1.0, 100, 5),))


def chunk_s(history: int, new: int) -> float:
    """Seconds of a prefill step with history, as `pdplugins.sim.core.steps` defines it without a dense table."""
    alone = MODEL.prefill_s(new, 1)
    more = MODEL.prefill_s(history + new, 1) - MODEL.prefill_s(history, 1) - alone + MODEL.prefill_s(0, 1)
    return alone + max(more, 0.0)


def test_a_remote_round_reads_the_history_and_computes_only_what_is_new() -> None:
    _, later = run(To("p0", "d0"), session(0.0, "s"), settings=AT_ONCE).records
    # The last token of the first answer has no KV cache yet, so it is computed with the new ones.
    history = 4000 + 10 - 1
    assert later.ttft_s == pytest.approx(MODEL.transfer_s(history) + chunk_s(history, 101), abs=1e-8)


def test_only_the_new_part_of_the_kv_cache_goes_back() -> None:
    """The decode worker kept the history while the prefill worker read it."""
    _, later = run(To("p0", "d0"), session(0.0, "s"), settings=AT_ONCE).records
    back_s = MODEL.transfer_s(4000 + 10 + 100 - (4000 + 9))
    assert later.largest_tbt_s == pytest.approx(back_s + MODEL.decode_step_s(1, 4110, 1), abs=1e-8)


def test_a_history_comes_while_the_prompt_before_it_computes() -> None:
    """Section 6 of AMPD: the transfer hides behind the computation of the previous task."""
    first = run(To("p0", "d0"), session(0.0, "s"), settings=AT_ONCE).records[0]
    again_s = first.finish_s + 1.0
    busy = Arrival(again_s - 0.05, 8000, 1)
    settings = SimSettings(first_token="prefill", engine=EngineSettings(max_batch=8, step_tokens=8192))
    records = run(To("p0", "d0"), session(0.0, "s"), busy, settings=settings).records
    later = next(record for record in records if record.isl_tokens == 4110)
    bully = next(record for record in records if record.isl_tokens == 8000)
    assert later.arrival_s + later.ttft_s == pytest.approx(bully.finish_s + chunk_s(4009, 101), abs=1e-6)


class Seen:
    """Places everything on p0 and d0, and notes what was queued on p0."""

    def __init__(self) -> None:
        self.queued: list[float] = []
        self.history: list[float | None] = []

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        load = next(worker.load for worker in workers if worker.id == "p0")
        self.queued.append(load.queued_tokens)
        self.history.append(load.prefill_history_tokens)
        return Placement("p0", "d0", request.prompt_tokens)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        return placement


def test_a_history_is_not_counted_as_tokens_to_prefill() -> None:
    router = Seen()
    first = run(To("p0", "d0"), session(0.0, "s"), settings=AT_ONCE).records[0]
    again_s = first.finish_s + 1.0
    busy = Arrival(again_s - 0.1, 8000, 1), Arrival(again_s - 0.09, 8000, 1), Arrival(again_s + 0.001, 10, 1)
    run(router, session(0.0, "s"), *busy, settings=AT_ONCE)
    assert router.queued[-1] == 8000 + 101
    assert router.history[-1] == 4009


def test_a_round_waits_for_room_instead_of_computing_its_history_anew() -> None:
    """With a queue ahead, histories do not fill the prefill worker's KV cache before their turn."""
    sessions = [session(0.001 * n, f"s{n}", first=1500) for n in range(6)]
    settings = SimSettings(
        first_token="prefill", prefill=1, kv_tokens=12_000, engine=EngineSettings(max_batch=8, step_tokens=512)
    )
    records = run(To("p0", "d0"), *sessions, settings=settings).records
    later = [record for record in records if record.isl_tokens == 1610]
    assert len(later) == 6
    assert sum(record.ttft_s for record in later) < 6 * MODEL.prefill_s(1610, 1)


def test_recompute_reads_nothing() -> None:
    settings = SimSettings(first_token="prefill", history="recompute")
    _, later = run(To("p0", "d0"), session(0.0, "s"), settings=settings).records
    assert later.ttft_s == pytest.approx(MODEL.prefill_s(4110, 1), abs=1e-8)


class Turns(To):
    """Lets rounds decode on one worker after the other."""

    def __init__(self, first: str | None, *decode: str) -> None:
        self._first, self._decode = first, iter(decode)

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        second = next(self._decode)
        return Placement(self._first or second, second, request.prompt_tokens)


@pytest.mark.parametrize("first", [None, "p0"])
def test_what_an_older_round_left_elsewhere_is_no_history_of_a_round_that_repeats_nothing(first: str | None) -> None:
    rounds = Round(1.0, 50, 5), Round(1.0, 3000, 5, history_tokens=0)
    work = Arrival(0.0, 3000, 10, session="s", rounds=rounds)
    settings = SimSettings(decode=2, history="recompute", first_token="prefill")
    last = run(Turns(first, "d0", "d1", "d0"), work, settings=settings).records[-1]
    assert last.ttft_s == pytest.approx(MODEL.prefill_s(3000, 1))
    if first:
        assert last.largest_tbt_s == pytest.approx(MODEL.transfer_s(3000) + MODEL.decode_step_s(1, 3000, 1))


def test_the_kv_cache_of_a_round_does_not_evict_its_own_history() -> None:
    """A round needs room for its new tokens only, where its decode worker has the rest."""
    full = SimSettings(
        first_token="prefill",
        engine=EngineSettings(watermark=0.0),
        hardware={Role.DECODE: Hardware(MODEL, 1, 4110 + 1)},
    )
    _, later = run(To("p0", "d0"), session(0.0, "s"), settings=full).records
    back_s = MODEL.transfer_s(4000 + 10 + 100 - (4000 + 9))
    assert later.largest_tbt_s == pytest.approx(back_s + MODEL.decode_step_s(1, 4110, 1), abs=1e-8)


def test_a_worker_whose_history_is_read_drains_until_it_has_sent_it() -> None:
    """Its GPUs are free afterwards, and not before."""
    work, settings = session(0.0, "s"), SimSettings(decode=2, first_token="prefill")
    alone = run(To("p0", "d1"), work, settings=settings).records
    again_s = alone[0].finish_s + 1.0
    busy = [Arrival(again_s - 0.5, 10, 1000), Arrival(again_s - 0.5, 10, 1000)]
    planner = PoolsPlanner((0.0, 1, 2), (again_s + 0.001, 1, 1), interval_s=0.001)
    simulation = Simulation(DEPLOYMENT, settings, Turns("p0", "d1", "d0", "d0", "d0"), planner=planner)
    outcome = simulation.run([work, *busy])
    (gone,) = simulation._fleet.gone
    assert gone.view.id == "d1"
    sent_s = again_s + MODEL.transfer_s(4000 + 10 - 1)
    assert gone.ended / TICKS_PER_S == pytest.approx(sent_s, abs=1e-6)
    assert max(record.cached_tokens for record in outcome.records) == 4009


def test_a_worker_that_a_round_never_read_from_may_go() -> None:
    """Also where the round's own worker dies in the middle of the read."""
    work, settings = session(0.0, "s"), SimSettings(prefill=2, decode=2, first_token="prefill")
    again_s = run(To("p0", "d1"), work, settings=settings).records[0].finish_s + 1.0
    dying = replace(settings, deaths=((again_s + 0.001, "p0"),), retries=1)
    simulation = Simulation(DEPLOYMENT, dying, Dead("p1", "d0", Turns("p0", "d1", "d0")))
    assert all(record.error is None for record in simulation.run([work]).records)
    assert [worker.open for worker in simulation._fleet.workers.values()] == [0, 0, 0]


class Dead(To):
    """Follows a router for as long as the workers that it names are there."""

    def __init__(self, first: str, second: str, router: To) -> None:
        super().__init__(first, second)
        self._router = router

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        if any(worker.id == "p0" for worker in workers):
            return self._router.on_arrival(request, workers, now_s)
        return super().on_arrival(request, workers, now_s)
