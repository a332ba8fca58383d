"""Flow policies in the simulator: what waits before the workers goes on in order, is refused, or leaves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from pdplugins.config import parse
from pdplugins.policies.stock.flow import FcfsSettings, FirstComeFirstServed
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.run.simulate import simulate as simulate_config
from pdplugins.types import (
    FlowDecision,
    Go,
    Hold,
    Outcome,
    Placement,
    Request,
    Role,
    Round,
    Terms,
    TraceRequest,
    Waiting,
    WorkerView,
)
from tests.sim.anyone import AnyRouter
from tests.sim.cases import DEPLOYMENT, cases, simulate
from tests.sim.runs import MODEL, To, run


def fcfs(**wanted: Any) -> FirstComeFirstServed:
    return FirstComeFirstServed(FcfsSettings(**wanted), DEPLOYMENT)


class Listening(AnyRouter):
    """Notes the order in which it is first asked for each request."""

    def __init__(self, seed: int, kinds: str) -> None:
        super().__init__(seed, kinds)
        self.order: list[int] = []

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        if int(request.id) not in self.order:
            self.order.append(int(request.id))
        return super().on_arrival(request, workers, now_s)


def without_flow(case: dict[str, Any]) -> dict[str, Any]:
    return {**case, "policies": {name: make for name, make in case["policies"].items() if name != "flow"}}


def total(case: dict[str, Any]) -> int:
    """Requests of all rounds, those included that a client no longer sends."""
    return sum(1 + len(arrival.rounds) for arrival in case["workload"])


@pytest.mark.moderate
@given(cases())
@settings(max_examples=150)
def test_first_come_first_served_without_limits_changes_nothing(case: dict[str, Any]) -> None:
    case = without_flow(case)
    bare, flowing = simulate(case), simulate(case, flow=fcfs())
    assert flowing.records == bare.records
    assert (flowing.scaling, flowing.preemptions, flowing.retries) == (bare.scaling, bare.preemptions, bare.retries)
    assert flowing.energy_j == bare.energy_j


@pytest.mark.moderate
@given(cases())
@settings(max_examples=150)
def test_with_limits_every_request_ends_once_and_goes_on_in_order(case: dict[str, Any]) -> None:
    case = without_flow(case)
    router = Listening(case["seed"], case["kinds"])
    outcome = simulate(case, router=router, flow=fcfs(per_worker=1, free_kv=True, max_wait_s=5.0))
    assert sorted(int(record.id) for record in outcome.records) == list(range(total(case)))
    assert router.order == sorted(router.order)
    assert not outcome.policies.faults["flow"]
    if not case["settings"].deaths:
        assert not [record for record in outcome.records if record.error == "no worker to serve it"]


def test_a_request_waits_before_the_workers_until_one_has_ended() -> None:
    """Two workers may have two requests in service, and the third one waits for the first of them to end."""
    work = [Arrival(0.1 * n, 1000, 40) for n in range(3)]
    first, second, third = run(To("p0", "p0"), *work, flow=fcfs(per_worker=1)).records
    assert (first.id, second.id, third.id) == ("0", "1", "2")
    assert third.arrival_s + third.ttft_s == pytest.approx(first.finish_s + MODEL.prefill_s(1000, 1), rel=0.05)
    bare = run(To("p0", "p0"), *work).records
    assert [record.ttft_s for record in bare[:1]] == [first.ttft_s]
    assert third.ttft_s > 2 * bare[-1].ttft_s  # it counts from the arrival


def test_a_router_is_asked_when_a_request_goes_on_and_sees_the_loads_of_that_moment() -> None:
    class Looking(To):
        def __init__(self) -> None:
            super().__init__("p0", "p0")
            self.asked: list[tuple[str, float, float]] = []

        def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
            load = workers[0].load
            self.asked.append((request.id, now_s, load.queued_tokens + load.running_tokens))
            return super().on_arrival(request, workers, now_s)

    router = Looking()
    first, _ = run(router, Arrival(0.0, 1000, 5), Arrival(0.1, 500, 5), flow=OneByOne()).records
    assert router.asked == [("0", 0.0, 0), ("1", pytest.approx(first.finish_s), 0)]


class OneByOne:
    """One request in service at a time."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.in_service: str | None = None
        self.left: list[str] = []

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        self.waiting.append(waiting.request.id)

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        if self.in_service is not None or not self.waiting:
            return Hold()
        self.in_service = self.waiting.pop(0)
        return Go(self.in_service)

    def on_left(self, request_id: str) -> None:
        self.left.append(request_id)
        self.waiting.remove(request_id)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        if request.id == self.in_service:
            self.in_service = None


def test_a_client_that_goes_away_leaves_the_queue() -> None:
    flow = OneByOne()
    work = Arrival(0.0, 4000, 50), Arrival(0.1, 500, 5, cancel_after_s=0.05), Arrival(0.2, 500, 5)
    cancelled, first, last = run(To("p0", "p0"), *work, flow=flow).records
    assert (cancelled.id, cancelled.error, cancelled.finish_s) == ("1", "cancelled", pytest.approx(0.15))
    assert cancelled.prefill_worker is None
    assert (first.error, last.error, last.id) == (None, None, "2")
    assert flow.left == ["1"]


def test_what_has_waited_too_long_is_refused_at_that_time() -> None:
    records = run(
        To("p0", "p0"),
        *(Arrival(0.1 * n, 8000, 400) for n in range(3)),
        flow=fcfs(per_worker=1, max_wait_s=0.25),
        settings=SimSettings(prefill=1, decode=0, flip="label"),
    ).records
    refused = [record for record in records if record.error]
    assert [record.id for record in refused] == ["1", "2"]
    assert [record.error for record in refused] == ["refused: retry after 1 s"] * 2
    assert [record.finish_s for record in refused] == [pytest.approx(0.35, abs=1e-12), pytest.approx(0.45, abs=1e-12)]


def test_policies_see_what_a_request_asks_for_and_hear_what_its_client_saw() -> None:
    asks, seen, heard = Terms(priority=1, ttft_s=0.5, tenant="a"), list[Waiting](), list[Outcome]()

    class Noting(FirstComeFirstServed):
        def on_arrival(self, waiting: Waiting, now_s: float) -> None:
            seen.append(waiting)
            super().on_arrival(waiting, now_s)

        def on_ended(self, request: Request, outcome: Outcome) -> None:
            heard.append(outcome)
            super().on_ended(request, outcome)

    work = (Arrival(1.0, 500, 20, rounds=(Round(0.5, 10, 1),), terms=asks), Arrival(2.0, 500, 20))
    records = run(To("p0", "d0"), *work, flow=Noting(FcfsSettings(), DEPLOYMENT)).records
    assert [waiting.request.terms for waiting in seen] == [asks, asks, None]
    own_s = [waiting.due_s - waiting.since_s for waiting in seen]
    assert own_s == [pytest.approx(0.5), pytest.approx(0.5), pytest.approx(DEPLOYMENT.slo.ttft_s)]
    assert [(one.ttft_s, one.tpot_s) for one in heard] == [(record.ttft_s, record.tpot_s) for record in records]


def test_rounds_after_a_refused_one_are_not_sent() -> None:
    session = Arrival(0.0, 500, 5, session="s", rounds=(Round(0.0, 50, 5),))
    refuses = fcfs(per_worker=1, max_wait_s=0.01)
    settings = SimSettings(prefill=1, decode=0, flip="label")
    records = run(To("p0", "p0"), Arrival(0.0, 8000, 50), session, flow=refuses, settings=settings).records
    assert [record.error for record in records[:2]] == [
        "refused: retry after 1 s",
        "not sent: an earlier round of its session failed",
    ]
    times = [(record.ttft_s, record.tpot_s, record.largest_tbt_s, record.finish_s) for record in records[:2]]
    assert times == [(None, None, 0.0, pytest.approx(0.01)), (None, None, None, None)]


def test_a_flow_policy_that_fails_is_replaced_and_counted() -> None:
    class Broken:
        def on_arrival(self, waiting: Waiting, now_s: float) -> None:
            raise ValueError("no")

        def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
            raise ValueError("no")

        def on_left(self, request_id: str) -> None:
            raise ValueError("no")

    outcome = run(To("p0", "d0"), Arrival(0.0, 100, 5), Arrival(0.0, 100, 5), flow=Broken())
    assert [record.error for record in outcome.records] == [None, None]
    assert outcome.policies.faults["flow"] > 0


def test_a_config_names_a_flow_policy_and_refused_requests_count_as_failed() -> None:
    config = parse(
        {"flow": {"name": "fcfs", "per_worker": 1, "max_wait_s": 0.5}, "slo": {"ttft_s": 100, "tpot_s": 100}}
    )
    trace = [TraceRequest(0.01 * n, 2000, 200) for n in range(20)]
    result, outcome = simulate_config(config, trace, trace_name="crowd", command="test")
    refused = sum("refused" in (record.error or "") for record in outcome.records)
    assert refused > 10
    assert (result.requests.total, result.requests.failed) == (20, refused)
    assert result.metrics.slo_attainment == pytest.approx((20 - refused) / 20)


@pytest.mark.parametrize(("prefill", "decode"), [(0, 2), (2, 0)])
@pytest.mark.parametrize("name", ["least-loaded", "round-robin", "power-of-two", "cache-aware", "random"])
def test_without_any_worker_of_one_role_the_others_do_its_phase(name: str, prefill: int, decode: int) -> None:
    pools = {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}, "profile": "h100/llama-3.1-8b"}
    config = parse({"router": name, "simulation": {"flip": "label"}, "deployment": pools})
    trace = [TraceRequest(0.2 * n, 500, 20) for n in range(30)]
    result, outcome = simulate_config(config, trace, trace_name="few", command="test")
    assert result.requests.failed == 0
    role = Role.PREFILL if prefill else Role.DECODE
    assert {record.prefill_worker for record in outcome.records} <= {f"{role[0]}0", f"{role[0]}1"}
    assert not result.counts.get("faults.router")
