"""What a planner sees in the simulator, when it is asked, and what becomes of its plan."""

from __future__ import annotations

import pytest

from pdplugins.policies.stock import routers
from pdplugins.runtime.planner import SafePlanner
from pdplugins.sim.core.flight import Arrival
from pdplugins.testing.scripted import EagerPlanner, ScriptedPlanner, ScriptSettings
from pdplugins.types import Placement, PlannerView, Request, Round, ScalePlan, Traffic, WorkerView
from tests.sim.runs import DEPLOYMENT, To, run


class Grow:
    """Wants two more decode workers from the first tick on, and fewer from the tenth."""

    interval_s = 1.0

    def __init__(self) -> None:
        self.views: list[PlannerView] = []

    def plan(self, view: PlannerView) -> ScalePlan:
        self.views.append(view)
        return ScalePlan(1, 3 if len(self.views) < 10 else 1, "script")


def test_a_planner_starts_and_drains_workers() -> None:
    planner = Grow()
    work = [Arrival(0.1 * n, 100, 20) for n in range(200)]
    outcome = run(routers.LeastLoaded(routers.RouterSettings(), DEPLOYMENT), *work, planner=planner)
    assert [(change.at_s, change.decode) for change in outcome.scaling] == [(1.0, 3), (10.0, 1)]
    assert [view.decode.ready for view in planner.views[:4]] == [1, 1, 3, 3]
    assert planner.views[3].traffic.requests == pytest.approx(10, abs=1)
    assert not [record for record in outcome.records if record.error]
    used = {record.decode_worker for record in outcome.records}
    assert used == {"d0", "d1", "d2"}
    whole = 2 * outcome.duration_s
    assert outcome.gpu_hours * 3600 == pytest.approx(whole + 2 * 9.0, abs=1.0)


def test_the_faults_of_a_planner_and_its_time_are_told() -> None:
    planner = ScriptedPlanner(ScriptSettings(fail_at=2, interval_s=1.0), DEPLOYMENT)
    safe = SafePlanner(planner, DEPLOYMENT, initial=ScalePlan(1, 1, "start"))
    outcome = run(To("p0", "d0"), *[Arrival(n, 100, 20) for n in range(5)], planner=safe)
    assert len(planner.calls) > 2
    assert outcome.policies.faults == {"planner": 1}
    assert outcome.policies.seconds["planner"] > 0


class Watching:
    """Keeps two of each, and notes what it sees."""

    interval_s = 100.0

    def __init__(self) -> None:
        self.traffic: list[Traffic] = []

    def plan(self, view: PlannerView) -> ScalePlan:
        assert view.traffic is not None
        self.traffic.append(view.traffic)
        return ScalePlan(1, 1, "as it is")


def test_a_planner_sees_how_lengths_spread_who_stayed_and_what_was_cached() -> None:
    class Either(To):
        def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
            second = "d0" if request.prompt_tokens < 2000 else "p0"
            return Placement("p0", second, request.prompt_tokens)

    blocks = (1, 2, 3)
    session = Arrival(30.0, 3000, 10, session="s", rounds=(Round(1.0, 50, 5),))
    work = [Arrival(0.0, 1600, 4, blocks), Arrival(9.0, 1600, 2, blocks), Arrival(20.0, 400, 1), session]
    watching = Watching()
    run(Either("p0", "d0"), *work, Arrival(150.0, 10, 10), planner=watching)
    lengths = [(1600, 4), (1600, 2), (400, 1), (3000, 10), (3060, 5)]
    (first, *_) = watching.traffic
    assert first.isl_sq_tokens == sum(isl * isl for isl, _ in lengths) / 5
    assert first.local_share == 2 / 5
    assert first.local_prefill_tokens == (3000 + 3060 - 3009) / 2
    # The second prompt finds three blocks of 512 tokens, and the second round all that the first one left: its prompt
    # and its answer but for the last token.
    assert first.prefix_hit_rate == (3 * 512 + 3009) / sum(isl for isl, _ in lengths)


def test_a_window_without_answers_says_so() -> None:
    watching = Watching()
    run(To("p0", "p0"), Arrival(150.0, 10, 10), planner=watching)
    (first, *_) = watching.traffic
    assert (first.requests, first.local_share, first.prefix_hit_rate, first.isl_sq_tokens) == (0, None, None, None)


def test_an_eager_planner_is_asked_as_soon_as_the_traffic_says_so() -> None:
    """Then its interval begins anew; nothing that came is lost or seen twice."""
    planner = EagerPlanner(20)
    safe = SafePlanner(planner, DEPLOYMENT, initial=ScalePlan(1, 1, "start"))
    work = [Arrival(0.05 + 0.1 * n, 100, 20) for n in range(200)]
    outcome = run(routers.LeastLoaded(routers.RouterSettings(), DEPLOYMENT), *work, planner=safe)
    assert [round(view.now_s, 9) for view in planner.views[:3]] == [2.0, 7.0, 12.0]
    assert [view.traffic.window_s for view in planner.views[:3]] == [2.0, 5.0, 5.0]
    assert [view.traffic.requests for view in planner.views[:3]] == [20, 50, 50]
    assert outcome.scaling[0].at_s == 2.0


def test_a_planner_that_is_eager_and_sees_too_little_is_asked_at_its_tick_as_ever() -> None:
    patient, eager = EagerPlanner(0), EagerPlanner(1000, look_s=0.3)
    work = [Arrival(0.1 * n, 100, 20) for n in range(200)]
    for planner in (patient, SafePlanner(eager, DEPLOYMENT, initial=ScalePlan(1, 1, "start"))):
        run(routers.LeastLoaded(routers.RouterSettings(), DEPLOYMENT), *work, planner=planner)
    assert eager.views == patient.views


def test_a_planner_that_knows_what_it_wants_is_asked_before_the_first_request() -> None:
    planner = EagerPlanner(0)
    safe = SafePlanner(planner, DEPLOYMENT, initial=ScalePlan(1, 1, "start"))
    run(To("p0", "d0"), Arrival(3.0, 100, 20), Arrival(9.0, 100, 20), planner=safe)
    assert [view.now_s for view in planner.views[:2]] == [0.0, 5.0]
    assert planner.views[0].traffic is None
