"""Dynamo's plugin context, pydantic and protobuf alike, becomes the view that a planner sees."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from pdplugins.config import parse
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.planner import SafePlanner
from pdplugins.types import PlannerView, Pool, ScalePlan, Traffic, WorkerLoad

pytestmark = pytest.mark.dynamo

fpm = pytest.importorskip("dynamo.common.forward_pass_metrics")
mirror = pytest.importorskip("dynamo.planner.plugins.types")
bridge = pytest.importorskip("dynamo.planner.plugins._proto_bridge")
proposer = pytest.importorskip("pdplugins.hosts.dynamo.doors.proposer")
observe = pytest.importorskip("pdplugins.hosts.dynamo.doors.observe")

Wire = Callable[[Any], Any]
WIRES = {"pydantic": lambda context: context, "protobuf": bridge.pydantic_to_proto}


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    """Turn the pydantic mirror into what the door under test receives."""
    return WIRES[request.param]


def engine(*, queued: tuple[int, int, int, int] = (0, 0, 0, 0), running: tuple[int, int, int, int]) -> bytes:
    """One engine's last step: (prefill requests, tokens, decode requests, tokens), queued and running."""
    names = ("num_prefill_requests", "sum_prefill_tokens", "num_decode_requests", "sum_decode_kv_tokens")
    return fpm.encode(
        fpm.ForwardPassMetrics(
            worker_id="w",
            queued_requests=fpm.QueuedRequestMetrics(**dict(zip(names, queued, strict=True))),
            scheduled_requests=fpm.ScheduledRequestMetrics(**dict(zip(names, running, strict=True))),
        )
    )


def context(**observations: Any) -> Any:
    observations.setdefault("workers", mirror.WorkerState(ready_prefill=2, ready_decode=1))
    return mirror.PipelineContext(request_id="tick-12.5", observations=mirror.ObservationData(**observations))


class Asked:
    """A planner that notes what it is shown."""

    interval_s = 5.0
    signals: Mapping[str, float] = MappingProxyType({})

    def __init__(self) -> None:
        self.views: list[PlannerView] = []

    def plan(self, view: PlannerView) -> ScalePlan:
        self.views.append(view)
        return ScalePlan(view.prefill.coming, view.decode.coming, "as it is")


def proposed(*contexts: Any, **options: Any) -> list[PlannerView]:
    """Ask a planner whose config wants 4P4D at each of these ticks; return what it saw."""
    asked = Asked()
    deployment = build_deployment(parse({}))
    ours = proposer.Proposer(SafePlanner(asked, deployment, initial=ScalePlan(4, 4, "at start")), **options)
    for seen in contexts:
        asyncio.run(ours.propose(seen))
    return asked.views


@pytest.mark.parametrize("window_s", [5, 180])
def test_a_window_of_prometheus_counts_no_request_twice(wire: Wire, window_s: float) -> None:
    """Dynamo asks for its own window at every tick, which may be 36 times as long as ours."""
    traffic = mirror.TrafficMetrics(duration_s=window_s, num_req=2 * window_s, isl=1024, osl=128)
    ticks = [context(traffic=traffic).model_copy(update={"request_id": f"tick-{5.0 * n}"}) for n in range(1, 4)]
    first, *later = [view.traffic for view in proposed(*map(wire, ticks))]
    assert first is not None
    assert (first.window_s, first.requests) == (window_s, 2 * window_s)
    assert later == [replace(first, window_s=5.0, requests=10.0)] * 2


def test_a_clock_that_is_set_back_never_goes_back_for_the_planner(wire: Wire) -> None:
    """Else its hold would keep the pools at their peak until the clock has caught up."""
    ticks = (100.0, 105.0, 105.0, 45.0, 50.0, 50.0, 20.0)
    views = proposed(*(wire(context().model_copy(update={"request_id": f"tick-{at_s}"})) for at_s in ticks))
    step_s = proposer.LEAST_STEP_S
    now_s = [100.0, 105.0, 105.0, 105.0 + step_s, 110.0 + step_s, 110.0 + step_s, 110.0 + 2 * step_s]
    assert [view.now_s for view in views] == pytest.approx([now_s[0], now_s[1], *now_s[3:5], now_s[6]])


def test_our_own_launcher_may_ask_early(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    ticks = [wire(context().model_copy(update={"request_id": f"tick-{at_s}"})) for at_s in (1.3, 3.5, 8.5)]
    proposed(*ticks, launched=True)
    assert "Dynamo asks every" not in caplog.text


@pytest.mark.parametrize("launched", [True, False])
def test_the_pools_of_the_config_start_only_where_somebody_has_started_them(wire: Wire, launched: bool) -> None:
    """A process that begins anew beside a running Dynamo finds other pools."""
    workers = mirror.WorkerState(ready_prefill=2, ready_decode=2, prefill_scaling_in_progress=True)
    (view,) = proposed(wire(context(workers=workers)), launched=launched)
    assert view.prefill == Pool(2, starting=2 if launched else 0)


def test_everything_that_dynamo_says_arrives(wire: Wire) -> None:
    seen = wire(
        context(
            traffic=mirror.TrafficMetrics(duration_s=30, num_req=60, isl=1024, osl=128),
            fpm=mirror.FpmData(
                prefill_engines={
                    "11/0": engine(queued=(3, 3000, 0, 0), running=(1, 900, 0, 0)),
                    "11/1": engine(queued=(1, 500, 0, 0), running=(1, 100, 0, 0)),
                },
                decode_engines={"22/0": engine(queued=(2, 2000, 1, 700), running=(0, 0, 16, 20000))},
            ),
        )
    )
    view = observe.planner_view(seen, 12.5, observe.context_traffic(seen), ScalePlan(1, 1, ""))
    assert view.now_s == observe.tick_time_s(seen) == 12.5
    assert view.traffic == Traffic(30.0, 60.0, 1024.0, 128.0)
    assert view.prefill == Pool(2, loads=(WorkerLoad("11", 4, 3500, 2, 1000, None, None, 0, 0, 1000),))
    # Requests that wait for KV space on a decode worker are queued there as prefills; they and the preempted count.
    assert view.decode == Pool(1, loads=(WorkerLoad("22", 3, 2700, 16, 20000, None, None, 16, 20000, 0),))
    assert all(isinstance(n, float) for n in (view.traffic.requests, view.prefill.loads[0].queued_tokens))


def test_workers_that_start_or_stop_are_counted_against_the_last_plan(wire: Wire) -> None:
    state = mirror.WorkerState(
        ready_prefill=2, ready_decode=3, prefill_scaling_in_progress=True, decode_scaling_in_progress=True
    )
    view = observe.planner_view(wire(context(workers=state)), 0.0, None, ScalePlan(5, 1, ""))
    assert (view.prefill, view.decode) == (Pool(2, starting=3), Pool(3, draining=2))


def test_a_stable_deployment_moves_nothing_whatever_was_planned(wire: Wire) -> None:
    state = mirror.WorkerState(ready_prefill=2, ready_decode=3, expected_prefill=2, expected_decode=4)
    view = observe.planner_view(wire(context(workers=state)), 0.0, None, ScalePlan(9, 9, ""))
    assert (view.prefill, view.decode) == (Pool(2), Pool(3, starting=1))


def test_lengths_of_no_requests_are_unknown_not_zero(wire: Wire) -> None:
    seen = wire(context(traffic=mirror.TrafficMetrics(duration_s=30, num_req=0, isl=0.0, osl=0.0)))
    assert observe.context_traffic(seen) == Traffic(30.0, 0.0, None, None)


@pytest.mark.parametrize(("told", "known"), [(0.25, 0.25), (0.0, 0.0), (None, None), (1.5, None)])
def test_the_prefix_hit_rate_is_what_dynamos_router_says(wire: Wire, told: float | None, known: float | None) -> None:
    seen = wire(context(traffic=mirror.TrafficMetrics(duration_s=30, num_req=2, kv_hit_rate=told)))
    assert observe.context_traffic(seen).prefix_hit_rate == known


def test_nan_lengths_are_unknown() -> None:
    """Only in-process: Dynamo's own bridge to protobuf refuses NaN."""
    seen = context(traffic=mirror.TrafficMetrics(duration_s=30, num_req=2, isl=math.nan, osl=math.nan))
    assert observe.context_traffic(seen) == Traffic(30.0, 2.0, None, None)


@pytest.mark.parametrize(
    ("window_s", "prefill", "decode", "believed"),
    [
        (30, (0, 0, 0, 0), (0, 0, 0, 0), True),
        (30, (0, 0, 0, 0), (0, 0, 5, 9), True),  # decodes may well outlast a short pause
        (180, (0, 0, 0, 0), (0, 0, 5, 9), False),
        (30, (1, 9, 0, 0), (0, 0, 0, 0), False),
    ],
)
def test_zero_requests_while_engines_work_is_a_dead_prometheus_not_idleness(
    wire: Wire, window_s: float, prefill: Any, decode: Any, believed: bool
) -> None:
    seen = wire(
        context(
            traffic=mirror.TrafficMetrics(duration_s=window_s, num_req=0),
            fpm=mirror.FpmData(
                prefill_engines={"1/0": engine(running=prefill)}, decode_engines={"2/0": engine(running=decode)}
            ),
        )
    )
    assert (observe.context_traffic(seen) is not None) == believed


def test_engines_that_nobody_can_read_are_left_out(wire: Wire) -> None:
    seen = wire(context(fpm=mirror.FpmData(prefill_engines={"1/0": b"\x00garbage"})))
    assert observe.planner_view(seen, 0.0, None, ScalePlan(1, 1, "")).prefill.loads == ()


def test_missing_worker_counts_are_an_error_that_names_the_cause(wire: Wire) -> None:
    with pytest.raises(ValueError, match="how many prefill workers are ready; does the plugin's needs list name it"):
        observe.planner_view(wire(context(workers=None)), 0.0, None, ScalePlan(1, 1, ""))


@pytest.mark.parametrize("request_id", ["", "abc", "tick-", "tick-x", "tick-inf", "tick-nan", "tick-" + "9" * 400])
def test_a_tick_that_does_not_tell_the_time_says_so(request_id: str) -> None:
    assert observe.tick_time_s(mirror.PipelineContext(request_id=request_id)) is None
