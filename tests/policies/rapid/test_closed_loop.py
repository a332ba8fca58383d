"""RAPID in a closed loop: simulated GPUs get the watts and roles that it wants, and it reads what follows from that.

The traffic has two phases on eight GPUs: prompts too many for four prefill GPUs, then answers too many for four decode
GPUs. The same judgement is made of controllers that act late, the wrong way round or not at all, and must reject them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from pdplugins.config import parse
from pdplugins.policies.rapid.config import RapidSettings
from pdplugins.policies.rapid.controller import OTHER, RapidController
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.run.running import arrival
from pdplugins.sim.run.setup import sim_settings
from pdplugins.sim.run.simulate import summarise
from pdplugins.types import GpuView, PlannerView, PowerPlan, Role, TraceRequest
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic

CONFIG = parse(
    {
        "slo": {"ttft_s": 1.0, "tpot_s": 0.008},
        "deployment": {
            "profile": "mi300x/llama-3.1-8b", "gpu_budget": 8,
            "prefill": {"replicas": 4, "tp": 1}, "decode": {"replicas": 4, "tp": 1},
        },
        "simulation": {"first_token": "prefill"},
    },
    "closed loop",
)  # fmt: skip
DEPLOYMENT = build_deployment(CONFIG)


class Backwards(RapidController):
    """Moves everything to the phase that is fine."""

    def _move(self, gpus: tuple[GpuView, ...], roles: dict[int, Role], view: PlannerView, sink: Role) -> PowerPlan:
        return super()._move(gpus, roles, view, OTHER[sink])


class Blind(RapidController):
    """Sees neither tokens nor first tokens."""

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        return super().control(gpus, replace(view, traffic=None, decode=replace(view.decode, loads=())))


class OneWay(RapidController):
    """Gives to prefill and never back: it sees no token intervals."""

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        traffic = view.traffic and replace(view.traffic, tpot_s=None)
        return super().control(gpus, replace(view, traffic=traffic, decode=replace(view.decode, loads=())))


@dataclass(frozen=True)
class Seen:
    """What a run came to."""

    attainment: float
    prefill: tuple[tuple[float, float, int], ...]
    """Of each look: the time, and the watts and number of the prefill GPUs."""

    def most(self, begin_s: float, end_s: float) -> tuple[float, int]:
        """The most watts of one prefill GPU, and the most prefill GPUs, within a time."""
        looks = [(watts / count, count) for at_s, watts, count in self.prefill if begin_s <= at_s < end_s]
        return max(watts for watts, _ in looks), max(count for _, count in looks)

    def last(self) -> tuple[float, int]:
        """The watts of one prefill GPU and the prefill GPUs when the last request arrived."""
        _, watts, count = next(look for look in reversed(self.prefill) if look[0] <= TRACE[-1].arrival_s)
        return watts / count, count


def run(kind: type[RapidController], trace: list[TraceRequest], **chosen: Any) -> Seen:
    controller = kind(RapidSettings(**chosen), DEPLOYMENT)
    looks: list[tuple[float, float, int]] = []

    class Watched:
        interval_s = controller.interval_s

        def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
            plan = controller.control(gpus, view)
            mine = [plan.caps_w[gpu.index] for gpu in gpus if gpu.role is Role.PREFILL]
            looks.append((view.now_s, sum(mine), len(mine)))
            return plan

    router = LeastLoaded(RouterSettings(), DEPLOYMENT)
    outcome = Simulation(DEPLOYMENT, sim_settings(CONFIG, DEPLOYMENT), router, power=Watched()).run(map(arrival, trace))
    attainment = summarise(outcome, DEPLOYMENT.slo)[1].slo_attainment
    assert attainment is not None
    return Seen(attainment, tuple(looks))


def phase(rate: float, seconds: float, isl: int, osl: int, *, seed: int, begin_s: float = 0.0) -> list[TraceRequest]:
    given = {
        "seed": seed, "requests": int(rate * seconds), "arrivals": {"kind": "poisson", "rate": rate},
        "isl_tokens": isl, "osl_tokens": osl,
    }  # fmt: skip
    requests = synthetic(SyntheticSettings.model_validate(given))
    return [replace(one, arrival_s=one.arrival_s + begin_s) for one in requests]


TURN_S = 25.0
"""When the load turns from prompts to answers."""
TRACE = [
    *phase(15, TURN_S, 8000, 32, seed=1),
    *phase(100, 15.0, 500, 400, seed=11, begin_s=TURN_S),
]


@cache
def static() -> float:
    """The attainment of the four and four GPUs at 600 W each that all runs begin with."""
    return run(RapidController, TRACE, move="nothing").attainment


def faults(kind: type[RapidController], move: str) -> list[str]:
    """Return what is wrong with a controller: nothing if it gives each phase what it needs, and more is served so."""
    seen = run(kind, TRACE, move=move)
    (watts, gpus), (watts_after, gpus_after) = seen.most(0, TURN_S), seen.last()
    found = []
    if move in {"power", "both"} and not watts >= 650:
        found.append("no watts for prompts")
    if move in {"gpus", "both"} and not gpus >= 5:
        found.append("no GPU for prompts")
    if move == "power" and not watts_after <= 600:
        found.append("no watts for answers")
    if move in {"gpus", "both"} and not gpus_after <= 4:
        found.append("no GPU for answers")
    if not seen.attainment >= static() + 0.15:
        found.append("no better than static")
    return found


@pytest.mark.moderate
@pytest.mark.parametrize("move", ["power", "gpus", "both"])
def test_it_follows_the_load_from_prompts_to_answers_and_serves_more(move: str) -> None:
    assert faults(RapidController, move) == []


@pytest.mark.moderate
@pytest.mark.parametrize("move", ["power", "gpus", "both"])
@pytest.mark.parametrize("kind", [Backwards, Blind, OneWay])
def test_the_judgement_rejects_wrong_controllers(kind: type[RapidController], move: str) -> None:
    assert "no better than static" in faults(kind, move)


@pytest.mark.moderate
@pytest.mark.parametrize("move", ["power", "gpus", "both"])
@pytest.mark.parametrize(("rate", "isl", "osl"), [(20, 4000, 200), (10, 8000, 32), (150, 500, 400)])
def test_constant_load_that_four_and_four_serve_moves_no_gpu(move: str, rate: float, isl: int, osl: int) -> None:
    seen = run(RapidController, phase(rate, 30, isl, osl, seed=3), move=move)
    assert {count for _, _, count in seen.prefill} == {4}
    assert seen.attainment > 0.98
