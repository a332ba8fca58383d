"""The config that Dynamo's own planner is given."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.config import Choice
from pdplugins.hosts.dynamo.doors.frontend import FrontendMetrics
from pdplugins.hosts.dynamo.local.options import Options
from pdplugins.hosts.dynamo.local.planning import planner_settings, until_due, whole_interval
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.planner import SafePlanner, build_safe_planner
from pdplugins.testing.scripted import EagerPlanner, PoolsPlanner
from pdplugins.types import PlannerView, Pool, ScalePlan, Traffic
from tests.hosts.dynamo.local import made


@pytest.fixture
def options() -> Options:
    return made.options(decision_log=Path("decisions.jsonl"))


@pytest.mark.parametrize("interval_s", [0.5, 1.0, 5.0, 7.3])
def test_the_real_planner_accepts_the_config(options: Options, interval_s: float) -> None:
    """Dynamo checks intervals against each other; ours alone decides, and within the GPU budget."""
    from dynamo.planner.config.planner_config import PlannerConfig  # noqa: PLC0415

    planner = Choice(name="static", interval_s=interval_s, prefill=1, decode=1)
    policy = build_safe_planner(options.config.model_copy(update={"planner": planner}))
    config = PlannerConfig.model_validate(planner_settings(options, policy))
    (plugin,) = config.plugin_registration.in_process_plugins
    assert plugin.class_ == "PdPlanner"
    assert plugin.priority == 1
    assert plugin.execution_interval_seconds == 0, "at every tick, also at an early one"
    assert config.scheduling.scale_interval_seconds == interval_s
    assert plugin.kwargs["planner"] is policy
    assert plugin.kwargs["frontend_url"] == "http://127.0.0.1:8000"
    assert config.throughput_adjustment_interval_seconds >= 50_000
    assert config.max_gpu_budget == 8


@given(st.floats(0.01, 3600))
def test_intervals_fit_the_stock_planner(interval_s: float) -> None:
    """The pipeline's interval is ours to a tenth of a second, and divides a whole number of seconds."""
    scale_s, whole_s = whole_interval(interval_s)
    assert abs(scale_s - interval_s) <= 0.1
    assert whole_s >= 1
    assert round(whole_s * 10) % round(scale_s * 10) == 0


def test_a_stack_on_all_interfaces_is_reached_by_loopback(options: Options) -> None:
    """0.0.0.0 is no address to connect to."""
    from dataclasses import replace  # noqa: PLC0415

    assert replace(options, host="0.0.0.0").url == "http://127.0.0.1:8000"  # noqa: S104


@pytest.fixture
def frontend(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Stand for a frontend that has seen so many requests, look by look."""
    seen: list[float] = []

    def so_far(self: FrontendMetrics) -> Traffic:
        if not seen:
            raise OSError("it does not answer")
        return Traffic(0.1, seen.pop(0), 100.0, 10.0)

    monkeypatch.setattr(FrontendMetrics, "so_far", so_far)
    return seen


def eager(options: Options, planner: object) -> SafePlanner:
    deployment = build_deployment(options.config)
    return SafePlanner(planner, deployment, initial=ScalePlan(1, 1, "start"))  # type: ignore[arg-type]


def test_an_eager_planner_is_due_as_soon_as_the_traffic_says_so(options: Options, frontend: list[float]) -> None:
    frontend += [0.0, 10.0, 30.0]
    policy = eager(options, EagerPlanner(20, look_s=0.1, interval_s=60.0))
    assert asyncio.run(until_due(policy, options))
    assert not frontend


def test_an_eager_planner_is_due_when_its_interval_is_over(options: Options, frontend: list[float]) -> None:
    """Also where the frontend does not answer."""
    policy = eager(options, EagerPlanner(20, look_s=0.1, interval_s=0.3))
    began_s = time.monotonic()
    assert asyncio.run(until_due(policy, options))
    assert 0.3 <= time.monotonic() - began_s < 5


class Raising(EagerPlanner):
    """Always wants to be asked, and raises then."""

    def wait_s(self, view: PlannerView) -> float | None:
        return 0.0

    def plan(self, view: PlannerView) -> ScalePlan:
        raise ValueError("no")


def test_an_eager_planner_that_raises_waits_for_its_interval(options: Options, frontend: list[float]) -> None:
    """Else the launcher would ask it again and again, and do nothing else."""
    policy = eager(options, Raising(1, interval_s=0.5))
    policy.plan(PlannerView(time.time(), None, Pool(1), Pool(1)))
    began_s = time.monotonic()
    assert asyncio.run(until_due(policy, options))
    assert time.monotonic() - began_s >= 0.5


def test_a_planner_that_is_not_eager_keeps_to_the_ticks_of_dynamo(options: Options) -> None:
    assert not asyncio.run(until_due(eager(options, PoolsPlanner((0.0, 1, 1))), options))
