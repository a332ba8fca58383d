"""Changes of role in the simulator: who proposes, what is rolled back, and pools without a worker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplugins.policies.arrow.config import ArrowSettings
from pdplugins.policies.arrow.router import ArrowRouter
from pdplugins.policies.stock import routers
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import RunOutcome, SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.types import (
    Deployment,
    Flip,
    GpuView,
    Placement,
    PlannerView,
    PowerPlan,
    Role,
    RoleChange,
    RoleMove,
    ScalePlan,
    Stage,
)
from tests.sim.anyone import AnyRouter, dice
from tests.sim.runs import DEPLOYMENT, MODEL, To


class OneFlip:
    """A power controller that moves GPU 2 to prefill at 1 s, and hears what becomes of that."""

    interval_s = 1.0

    def __init__(self) -> None:
        self.heard: list[RoleChange] = []
        self._calls = 0

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        self._calls += 1
        return PowerPlan({}, (Flip(2, Role.PREFILL),) if self._calls == 2 else (), "hot")

    def on_role_change(self, change: RoleChange) -> None:
        self.heard.append(change)


def flipped(deadline_s: float | None, again_s: float) -> tuple[RunOutcome, list[Stage]]:
    """Run a request of about ten seconds on d1, which is to change at 1 s, and send d1 another one at `again_s`."""
    power = OneFlip()
    chosen = SimSettings(1, 2, drain_deadline_s=deadline_s)
    simulation = Simulation(DEPLOYMENT, chosen, To("d1", "d1"), power=power)
    outcome = simulation.run([Arrival(0.0, 100, 900), Arrival(again_s, 100, 10)])
    assert not outcome.policies.faults
    assert not [record for record in outcome.records if record.error]
    assert 5 < max(record.finish_s for record in outcome.records if record.osl_tokens == 900) < 25
    return outcome, [change.stage for change in power.heard]


@pytest.mark.parametrize("deadline_s", [None, 60.0])
def test_a_worker_changes_its_role_when_it_has_drained(deadline_s: float | None) -> None:
    outcome, stages = flipped(deadline_s, again_s=30.0)
    assert stages == [Stage.BEGUN, Stage.DONE]
    assert [(change.at_s, change.prefill, change.decode) for change in outcome.scaling] == [(1.0, 1, 1)]


def test_a_worker_that_does_not_drain_in_time_serves_its_old_role_again() -> None:
    outcome, stages = flipped(2.0, again_s=3.1)
    assert stages == [Stage.BEGUN, Stage.ROLLED_BACK]
    assert [(change.at_s, change.prefill, change.decode) for change in outcome.scaling] == [(1.0, 1, 1), (3.0, 1, 2)]
    assert outcome.scaling[-1].reason == "d1 did not drain in time"


class Mover(To):
    """A router that makes the worker p1 a decode worker at once."""

    def __init__(self) -> None:
        super().__init__("p0", "d2")
        self.heard: list[RoleChange] = []
        self._moves: tuple[RoleMove, ...] = (RoleMove("p1", Role.DECODE, "it is idle"),)

    def take_role_moves(self) -> tuple[RoleMove, ...]:
        moves, self._moves = self._moves, ()
        return moves

    def on_role_change(self, change: RoleChange) -> None:
        self.heard.append(change)


class Still:
    """A planner that notes the pools that it sees, and wants them."""

    interval_s = 1.0

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []

    def plan(self, view: PlannerView) -> ScalePlan:
        self.seen.append((view.prefill.ready, view.decode.ready, view.prefill.draining))
        return ScalePlan(view.prefill.coming, view.decode.coming, "still")


@pytest.mark.parametrize(("flip", "pools"), [("label", (1, 2, 0)), ("drain", (2, 1, 0))])
def test_a_router_moves_labels_and_drains_nobody(flip: Any, pools: tuple[int, int, int]) -> None:
    router, planner = Mover(), Still()
    router._answer = ("p0", "d0", None)
    simulation = Simulation(DEPLOYMENT, SimSettings(2, 1, flip=flip), router, planner=planner)
    outcome = simulation.run([Arrival(0.0, 100, 300)])
    assert not [record for record in outcome.records if record.error]
    assert set(planner.seen) == {pools}
    moved = [Stage.BEGUN, Stage.DONE] if flip == "label" else []
    assert [(change.stage, change.by) for change in router.heard] == [(stage, "router") for stage in moved]


def test_the_roles_of_workers_are_the_labels_of_arrow() -> None:
    router = ArrowRouter(ArrowSettings.model_validate({}), DEPLOYMENT)
    simulation = Simulation(DEPLOYMENT, SimSettings(2, 4, flip="label"), router)
    before = router.signals["flips_to_prefill"] + router.signals["flips_to_decode"]
    simulation.run(Arrival(0.03 * n, 1500 if n < 100 else 50, 2 if n < 100 else 200) for n in range(200))
    flips = router.signals["flips_to_prefill"] + router.signals["flips_to_decode"]
    assert flips > before
    shown = [worker.view.role for worker in simulation._fleet.workers.values()]
    assert (shown.count(Role.PREFILL), shown.count(Role.DECODE)) == router.pools


class Zeros:
    """Wants any pools, empty ones too."""

    interval_s = 0.7

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def plan(self, view: PlannerView) -> ScalePlan:
        choice = dice(self._seed, view.now_s)
        return ScalePlan(choice.choice([0, 0, 1, 3]), choice.choice([0, 0, 1, 3]), "zeros")


class Whole(routers.LeastLoaded):
    """Fails the test where it is asked without a worker."""

    def on_arrival(self, request: Any, workers: Any, now_s: float) -> Placement:
        assert workers
        return super().on_arrival(request, workers, now_s)


@given(
    start=st.sampled_from([(0, 1), (1, 0), (0, 3), (2, 2)]),
    startup_s=st.sampled_from([0.0, 1.3]),
    seed=st.integers(0, 999),
    stock=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_pools_may_be_empty_where_roles_are_labels(
    start: tuple[int, int], startup_s: float, seed: int, stock: bool
) -> None:
    """Every request is answered: somebody always serves, whatever a planner wants."""
    deployment = Deployment(DEPLOYMENT.slo, MODEL, 6, 1, 1, startup_s=startup_s, max_batch=8)
    router = Whole(routers.RouterSettings(), deployment) if stock else AnyRouter(seed, "PLSO")
    chosen = SimSettings(*start, kv_tokens=9000, flip="label")
    simulation = Simulation(deployment, chosen, router, planner=Zeros(seed))
    outcome = simulation.run(Arrival(0.1 * n, 50 + 97 * n % 800, 1 + 37 * n % 300) for n in range(50))
    assert len(outcome.records) == 50
    assert not [record for record in outcome.records if record.error]
    assert not outcome.policies.faults
