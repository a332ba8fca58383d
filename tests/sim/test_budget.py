"""GPUs in the middle of a change: a worker starts when its GPUs are free, and who drains still has them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pdplugins.sim.core.clock import seconds
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.testing import PoolsPlanner
from pdplugins.types import Deployment, PlannerView, ScalePlan, Slo
from tests.sim.anyone import AnyPlanner, AnyRouter
from tests.sim.models import BentModel
from tests.sim.runs import To


class Turns(To):
    """Each request on one worker, which is the next one every time."""

    def __init__(self, *workers: str) -> None:
        self._left = list(workers)

    def on_arrival(self, request: Any, workers: Any, now_s: float) -> Any:
        name = self._left.pop(0)
        self._answer = name, name, None
        return super().on_arrival(request, workers, now_s)


class Seen:
    """Notes what a planner sees."""

    def __init__(self, planner: Any) -> None:
        self._planner = planner
        self.interval_s = planner.interval_s
        self.views: list[PlannerView] = []

    def plan(self, view: PlannerView) -> ScalePlan:
        self.views.append(view)
        return self._planner.plan(view)


def holdings(simulation: Simulation) -> list[tuple[int, int, int | None]]:
    """Return which GPU was held from when until when, after a run."""
    fleet = simulation._fleet
    return [(gpu, w.started, w.ended) for w in (*fleet.workers.values(), *fleet.gone) for gpu in w.gpus]


@given(
    tp=st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2, 4])),
    start=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    spare=st.integers(0, 3),
    startup_s=st.sampled_from([0.0, 1.3]),
    flip=st.sampled_from(["drain", "label"]),
    drain_deadline_s=st.sampled_from([None, 0.5]),
    deaths=st.lists(st.tuples(st.floats(0, 8), st.sampled_from(["p0", "p1", "d0"])), max_size=1),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_gpus_in_use_never_exceed_the_budget(
    tp: tuple[int, int],
    start: tuple[int, int],
    spare: int,
    startup_s: float,
    flip: Any,
    drain_deadline_s: float | None,
    deaths: list[tuple[float, str]],
    seed: int,
) -> None:
    """Whatever a planner wants, at every instant; no GPU has two workers; and nothing is lost while workers wait."""
    budget = tp[0] * start[0] + tp[1] * start[1] + spare
    deployment = Deployment(Slo(1, 1), BentModel(), budget, *tp, startup_s=startup_s, max_batch=8)
    chosen = SimSettings(*start, kv_tokens=9000, flip=flip, drain_deadline_s=drain_deadline_s, deaths=tuple(deaths))
    simulation = Simulation(deployment, chosen, AnyRouter(seed, "PLSO"), planner=AnyPlanner(0.6, most=6))
    outcome = simulation.run(Arrival(0.1 * n, 50 + 97 * n % 800, 1 + 37 * n % 300) for n in range(50))
    of_gpu: dict[int, list[tuple[int, int | None]]] = {}
    for gpu, started, ended in holdings(simulation):
        of_gpu.setdefault(gpu, []).append((started, ended))
    assert max(of_gpu) < budget
    for held in of_gpu.values():
        held.sort(key=lambda holding: (holding[0], holding[1] or 1 << 62))
        assert all(until is not None and until <= since for (_, until), (since, _) in pairwise(held))
    assert deaths or not [record for record in outcome.records if record.error]


def drained(*script: tuple[float, int, int]) -> tuple[dict[str, float], float, list[PlannerView]]:
    """Run one prefill worker of one GPU and two decode workers of two GPUs, all that there are, with long answers.

    Returns when each further worker started, when the first decode worker was gone, and what the planner saw.
    """
    deployment = Deployment(Slo(1, 1), BentModel(), 5, 1, 2, startup_s=2.0, max_batch=8)
    planner = Seen(PoolsPlanner((0.0, 1, 2), *script))
    simulation = Simulation(deployment, SimSettings(1, 2), Turns("d0", "d1"), planner=planner)
    simulation.run([Arrival(0.0, 100, 700), Arrival(0.0, 100, 1500)])
    fleet = simulation._fleet
    workers = {worker.view.id: worker for worker in (*fleet.workers.values(), *fleet.gone)}
    started = {name: seconds(worker.started) for name, worker in workers.items() if worker.started}
    return started, seconds(workers["d0"].ended or 0), planner.views


def test_workers_start_when_the_one_in_their_place_is_gone_and_count_as_starting_until_then() -> None:
    started, gone_s, views = drained((2.0, 3, 1))
    assert gone_s > 5
    assert started == {"p1": gone_s, "p2": gone_s}
    waiting = [view for view in views if 2.0 < view.now_s < gone_s]
    assert {(view.prefill.starting, view.decode.draining) for view in waiting} == {(2, 1)}
    assert all(view.prefill.coming == 3 for view in views if view.now_s > 2.0)  # never asked for twice


def test_who_waits_starts_in_order_and_is_the_first_to_be_given_up() -> None:
    started, gone_s, _ = drained((2.0, 2, 1), (3.0, 2, 2))
    assert started == {"p1": gone_s}  # the decode worker wanted after it needs two GPUs: one is left
    started, gone_s, _ = drained((2.0, 3, 1), (3.0, 1, 2))
    assert started == {"d2": gone_s}  # none of the two prefill workers started, none was drained
