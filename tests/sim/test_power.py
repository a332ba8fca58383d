"""Power caps: what they slow, when they count, what is drawn, and that their sum stays within what was planned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplugins.policies.stock import routers
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.power import PowerCurve
from pdplugins.sim.core.sampler import Sampler
from pdplugins.sim.core.settings import RunOutcome, SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.types import Flip, GpuView, PlannerView, PowerPlan, Role, ScalePlan
from tests.sim.runs import DEPLOYMENT, MODEL, To

CURVE = PowerCurve((400.0, 700.0), (2.0, 1.0), (1.5, 1.0), 0.5, idle_w=100.0, prefill_w=700.0, decode_w=450.0)
AT_ONCE = SimSettings(power=CURVE, first_token="prefill")


class Script:
    """Answers what `plan` says of the number of the call and the GPUs."""

    def __init__(self, plan: Callable[[int, tuple[GpuView, ...]], PowerPlan], interval_s: float = 1.0) -> None:
        self.interval_s = interval_s
        self.views: list[tuple[tuple[GpuView, ...], PlannerView]] = []
        self._plan = plan

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        self.views.append((gpus, view))
        return self._plan(len(self.views) - 1, gpus)


def uniform(*caps_w: float) -> Script:
    return Script(lambda call, gpus: PowerPlan({gpu.index: caps_w[min(call, len(caps_w) - 1)] for gpu in gpus}))


def run(power: Script, *work: Arrival, settings: SimSettings = AT_ONCE, **policies: Any) -> RunOutcome:
    return Simulation(DEPLOYMENT, settings, To("p0", "d0"), power=power, **policies).run(work)


def test_caps_at_the_start_count_at_once() -> None:
    (record,) = run(uniform(400.0), Arrival(0.0, 1000, 1)).records
    assert record.ttft_s == pytest.approx(2 * MODEL.prefill_s(1000, 1), abs=1e-6)


def test_a_lower_cap_slows_once_it_has_settled_and_a_higher_one_frees_as_late() -> None:
    work = [Arrival(0.6 * n, 1000, 1) for n in range(6)]
    outcome = run(uniform(700.0, 400.0, 400.0, 700.0), *work)
    slow = [record.ttft_s / MODEL.prefill_s(1000, 1) for record in outcome.records]
    assert slow == pytest.approx([1, 1, 1, 2, 2, 2], abs=1e-6)  # lowered at 1.0, settled at 1.5; raised at 3.0


def test_what_is_raised_waits_for_what_is_lowered() -> None:
    """Watts move from p0 to d0 at 0.25 s: p0 has settled at 0.75 s, and d0 is told then."""

    def move(call: int, gpus: tuple[GpuView, ...]) -> PowerPlan:
        return PowerPlan({0: 700.0, 1: 400.0} if not call else {0: 400.0, 1: 700.0})

    controller = Script(move, interval_s=0.25)
    run(controller, *[Arrival(0.1 * n, 10, 10) for n in range(30)])
    told = [tuple(gpu.cap_w for gpu in gpus) for gpus, _ in controller.views]
    assert told[0] == (700.0, 700.0)  # before anything was planned
    assert told[1:4] == [(700.0, 400.0), (400.0, 400.0), (400.0, 700.0)]


def test_a_controller_has_its_own_view_of_the_traffic_and_felt_first_tokens_early() -> None:
    class Still:
        interval_s = 0.5
        seen: float = 0

        def plan(self, view: PlannerView) -> ScalePlan:
            Still.seen += view.traffic.requests if view.traffic else 0
            return ScalePlan(1, 1, "still")

    controller = uniform(700.0)
    run(controller, *[Arrival(0.3 * n, 100, 300) for n in range(10)], planner=Still())
    traffic = [view.traffic for _, view in controller.views]
    assert sum(window.requests for window in traffic) == Still.seen == 10
    assert traffic[1].ttft_s == pytest.approx(MODEL.prefill_s(100, 1), abs=1e-6)
    assert traffic[1].osl_tokens is None


def test_energy_is_that_of_steps_and_of_waiting() -> None:
    outcome = run(uniform(400.0), Arrival(0.0, 1000, 1), Arrival(10.0, 1000, 1))
    prefilling_s = 2 * 2 * MODEL.prefill_s(1000, 1)
    waiting_s = 2 * outcome.duration_s - prefilling_s
    assert outcome.energy_j == pytest.approx(400.0 * prefilling_s + 100.0 * waiting_s, rel=1e-6)


def test_decode_draws_its_own_watts_and_what_nobody_measured_is_not_known() -> None:
    work = Arrival(0.0, 100, 50)
    (record,) = (outcome := Simulation(DEPLOYMENT, AT_ONCE, To("p0", "p0")).run([work])).records
    decoding_s, whole_s = record.tpot_s * 49, outcome.duration_s
    expected = 450.0 * decoding_s + 700.0 * (whole_s - decoding_s) + 100.0 * whole_s
    assert outcome.energy_j == pytest.approx(expected, rel=1e-6)
    assert Simulation(DEPLOYMENT, SimSettings(), To("p0", "d0")).run([work]).energy_j is None


def test_a_flip_of_a_gpu_changes_the_role_of_its_worker() -> None:
    flip = Script(lambda call, _: PowerPlan({}, (Flip(1, Role.DECODE),) if call == 1 else ()))
    router = routers.LeastLoaded(routers.RouterSettings(), DEPLOYMENT)
    work = [Arrival(0.2 * n, 100, 5) for n in range(20)]
    outcome = Simulation(DEPLOYMENT, SimSettings(2, 1), router, power=flip).run(work)
    assert [(change.prefill, change.decode) for change in outcome.scaling] == [(1, 2)]
    assert {record.decode_worker for record in outcome.records} == {"d0", "p1"}


def test_a_plan_that_cannot_be_followed_is_counted_and_changes_nothing() -> None:
    stray = Script(lambda call, _: PowerPlan({0: 400.0}, (Flip(99, Role.DECODE),)))
    outcome = Simulation(DEPLOYMENT, SimSettings(2, 1), To("p0", "d0"), power=stray).run([Arrival(0.0, 100, 50)])
    assert outcome.scaling == []
    assert outcome.policies.faults["power"] > 0
    assert outcome.records[0].error is None


class WatchedCaps(Sampler):
    """Looks every 10 ms at the sum of the caps that count. A change of caps takes much longer to settle."""

    def __init__(self) -> None:
        super().__init__(0.01)
        self.kept: list[float] = []

    def _tick(self, argument: object) -> None:
        self.kept.append(self._power.kept_w())
        super()._tick(argument)


class Scaler:
    interval_s = 0.7

    def __init__(self, pools: list[tuple[int, int]]) -> None:
        self._pools = pools

    def plan(self, view: PlannerView) -> ScalePlan:
        pools = self._pools[int(view.now_s / self.interval_s) % len(self._pools)]
        return ScalePlan(*pools, "any")


BUDGET_W = 2000.0


@pytest.mark.moderate
@given(
    st.lists(st.lists(st.floats(0, 1), min_size=8, max_size=8), min_size=1, max_size=12),
    st.sampled_from([0.1, 0.3, 1.0]),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=4),
)
@settings(max_examples=60)
def test_the_caps_that_count_never_sum_to_more_than_the_budget(
    shares: list[list[float]], interval_s: float, pools: list[tuple[int, int]]
) -> None:
    """Whatever a controller plans within its budget, however often, while workers come and go."""

    def plan(call: int, gpus: tuple[GpuView, ...]) -> PowerPlan:
        row = shares[call % len(shares)]
        weights = {gpu.index: 0.05 + row[gpu.index % 8] for gpu in gpus}
        return PowerPlan({gpu: math.floor(BUDGET_W * w / sum(weights.values())) for gpu, w in weights.items()})

    router = routers.LeastLoaded(routers.RouterSettings(), DEPLOYMENT)
    watched = WatchedCaps()
    policies = {"power": Script(plan, interval_s), "planner": Scaler(pools), "sampler": watched}
    sim = Simulation(DEPLOYMENT, SimSettings(2, 2, power=CURVE), router, **policies)
    outcome = sim.run([Arrival(0.1 * n, 50, 5) for n in range(60)])
    assert not [record for record in outcome.records if record.error]
    assert max(watched.kept) <= BUDGET_W
    assert max(watched.kept) > 0.9 * BUDGET_W
