"""The workers: groups of GPUs, GPUs of several kinds, what it costs to come, to go and to change role; and clients."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from pdplugins.policies.stock import routers
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import RunOutcome, SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.testing import PoolsPlanner
from pdplugins.types import Deployment, PlannerView, Role, Round, ScalePlan, Slo
from tests.sim.models import SLOW, BentModel, SlowModel
from tests.sim.runs import DEPLOYMENT, MODEL, To, run


class Sharded(BentModel):
    """Twice the GPUs, half the time, twice the KV cache."""

    def prefill_s(self, tokens: float, tp: int) -> float:
        return super().prefill_s(tokens, 1) / tp

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        return super().decode_step_s(batch, context_tokens, 1) / tp

    def kv_capacity_tokens(self, tp: int) -> int:
        return 1000 * tp


def balanced(*work: Arrival, deployment: Deployment = DEPLOYMENT, **named: Any) -> RunOutcome:
    router = routers.LeastLoaded(routers.RouterSettings(), deployment)
    return Simulation(deployment, named.pop("settings", SimSettings()), router, **named).run(work)


def test_a_group_of_gpus_computes_as_one_worker_and_all_of_it_is_held() -> None:
    deployment = Deployment(Slo(1, 1), Sharded(), 8, 2, 4, startup_s=2.0, max_batch=8)
    settings = SimSettings(first_token="prefill")
    outcome = Simulation(deployment, settings, To("p0", "d0")).run([Arrival(0.0, 800, 2), Arrival(9.0, 1900, 2)])
    first, second = outcome.records
    assert first.ttft_s == pytest.approx(MODEL.prefill_s(800, 1) / 2, abs=1e-9)
    assert first.tpot_s == pytest.approx(MODEL.transfer_s(800) + MODEL.decode_step_s(1, 800, 1) / 4, abs=1e-9)
    assert second.error is None  # 1,900 tokens fit into the cache of two GPUs, not of one
    assert outcome.gpu_hours * 3600 == pytest.approx(6 * outcome.duration_s)


def test_each_worker_is_as_fast_as_its_own_gpus() -> None:
    slow = SlowModel()
    settings = SimSettings(hardware={Role.DECODE: SLOW}, extra=((Role.PREFILL, SLOW),), first_token="prefill")
    (record,) = run(To("p0", "d0"), Arrival(0.0, 1000, 2), settings=settings).records
    assert record.ttft_s == pytest.approx(MODEL.prefill_s(1000, 1), abs=1e-9)
    sent_s = 0.0031 + 1000 * 9.1e-6  # the sender's latency, the slower link
    assert record.tpot_s == pytest.approx(sent_s + slow.decode_step_s(1, 1000, 2), abs=1e-9)
    (record,) = run(To("p1", "p1"), Arrival(0.0, 1000, 2), settings=settings).records
    assert record.ttft_s == pytest.approx(slow.prefill_s(1000, 2), abs=1e-9)


def test_workers_that_are_there_at_the_start_are_published_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    publish = Fleet._publish

    def counted(fleet: Fleet) -> None:
        publish(fleet)
        seen.append(len(fleet.ready))

    monkeypatch.setattr(Fleet, "_publish", counted)
    run(To("p0", "d0"), settings=SimSettings(prefill=3, decode=2, extra=((Role.PREFILL, SLOW),)))
    assert seen == [6]


def test_a_worker_serves_when_its_start_up_is_over() -> None:
    work = [Arrival(0.05 * n, 500, 5) for n in range(120)]
    outcome = balanced(*work, planner=PoolsPlanner((0.0, 2, 1)))
    joined_s = min(record.arrival_s for record in outcome.records if record.prefill_worker == "p1")
    assert 1.0 + DEPLOYMENT.startup_s <= joined_s < 1.0 + DEPLOYMENT.startup_s + 0.2


def test_a_drained_worker_answers_what_it_has_and_is_paid_until_then() -> None:
    settings = SimSettings(decode=2)
    outcome = balanced(
        Arrival(0.0, 100, 900),
        Arrival(0.1, 100, 900),
        Arrival(20.0, 100, 1),
        settings=settings,
        planner=PoolsPlanner((0, 1, 1)),
    )
    assert not [record for record in outcome.records if record.error]
    last_s = max(record.finish_s for record in outcome.records[:2])
    held_s = outcome.gpu_hours * 3600 - 2 * outcome.duration_s
    assert 8 < held_s <= last_s + 1e-9


@pytest.mark.parametrize(("flip", "flip_s", "serves_s"), [("drain", 3.0, 4.0), ("label", 3.0, 1.0)])
def test_what_a_change_of_role_costs(flip: str, flip_s: float, serves_s: float) -> None:
    """An idle worker that drains is out of service for the time of the change; a label changes at once."""
    settings = SimSettings(decode=2, flip=flip, flip_s=flip_s)
    work = [Arrival(0.05 * n, 300, 1) for n in range(200)]
    outcome = balanced(*work, settings=settings, planner=PoolsPlanner((0.0, 2, 1)))
    moved = {record.prefill_worker for record in outcome.records} - {"p0"}
    assert len(moved) == 1
    joined_s = min(record.arrival_s for record in outcome.records if record.prefill_worker in moved)
    assert serves_s <= joined_s < serves_s + 0.3
    assert not [record for record in outcome.records if record.error]


def test_a_cancelled_request_stops_at_the_end_of_its_step_and_frees_its_place() -> None:
    gone, after = run(To("d0", "d0"), Arrival(0.0, 100, 5000, cancel_after_s=2.0), Arrival(5.0, 100, 1)).records
    assert (gone.error, after.error) == ("cancelled", None)
    assert gone.finish_s == pytest.approx(2.0, abs=0.02)
    assert after.ttft_s == pytest.approx(MODEL.prefill_s(100, 1), abs=1e-9)


def test_rounds_of_a_session_wait_for_the_answer_and_the_tool() -> None:
    rounds = tuple(Round(gap_s, 50, 5) for gap_s in (0.5, 2.0))
    records = run(To("p0", "d0"), Arrival(0.0, 400, 20, session="s", rounds=rounds)).records
    waits = [later.arrival_s - earlier.finish_s for earlier, later in pairwise(records)]
    assert waits == pytest.approx([0.5, 2.0], abs=1e-9)


def test_one_engine_prefills_decodes_or_mixes_as_requests_are_placed() -> None:
    """Unified: what a worker does is only a matter of what it is sent, request by request."""

    class ByLength(To):
        def on_arrival(self, request: Any, workers: Any, now_s: float) -> Any:
            self._answer = ("d0", "d0", None) if request.prompt_tokens < 200 else ("p0", "d0", None)
            return super().on_arrival(request, workers, now_s)

    work = [Arrival(0.02 * n, 100 if n % 2 else 900, 30) for n in range(40)]
    outcome = run(ByLength("p0", "d0"), *work, settings=SimSettings(first_token="prefill"))
    placed = {(record.isl_tokens, record.prefill_worker, record.decode_worker) for record in outcome.records}
    assert placed == {(100, "d0", "d0"), (900, "p0", "d0")}
    assert not [record for record in outcome.records if record.error]


def test_planners_see_what_waits_for_kv_capacity_after_prefill() -> None:
    views: list[PlannerView] = []

    class Watching(PoolsPlanner):
        def plan(self, view: PlannerView) -> ScalePlan:
            views.append(view)
            return super().plan(view)

    settings = SimSettings(kv_tokens=1500)
    run(
        To("p0", "d0"), *[Arrival(0.0, 1000, 400)] * 3, settings=settings, planner=Watching((0.0, 1, 1), interval_s=1.0)
    )
    (load,) = views[1].decode.loads
    assert (load.running_requests, load.queued_requests) == (1, 1)
    assert load.queued_tokens == 999, "a decode worker computes the last token of a prompt again"
