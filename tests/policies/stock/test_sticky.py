"""Stock routers with session affinity: the later rounds of a session decode where its KV cache is."""

from __future__ import annotations

import pytest

from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.types import Deployment, Placement, PlainPerf, Request, Role, Round, Slo, WorkerView


class Model(PlainPerf):
    def prefill_s(self, tokens: float, tp: int) -> float:
        return 0.01 + tokens * 1e-4

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        return 0.01

    def transfer_s(self, tokens: float) -> float:
        return 0.001 + tokens * 1e-6

    def kv_capacity_tokens(self, tp: int) -> int:
        return 100_000

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        return 1e9

    def tp_sizes(self, role: Role) -> tuple[int, ...]:
        return (1,)


class Noted(LeastLoaded):
    """Also notes where each session decodes."""

    def __init__(self, settings: RouterSettings, deployment: Deployment) -> None:
        super().__init__(settings, deployment)
        self.homes: set[tuple[str | None, str | None]] = set()

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        placement = super().on_arrival(request, workers, now_s)
        self.homes.add((request.session, placement.second))
        return placement


@pytest.mark.parametrize("colocated", [False, True])
def test_a_session_stays_where_it_decoded(colocated: bool) -> None:
    deployment = Deployment(Slo(1, 1), Model(), 8, 1, 1, startup_s=1.0, max_batch=8)
    rounds = tuple(Round(0.2, 50, 20) for _ in range(5))
    sessions = [Arrival(0.05 * n, 500, 20, session=f"s{n}", rounds=rounds) for n in range(12)]
    homes = {}
    for sticky in (True, False):
        router = Noted(RouterSettings(seed=0, colocated=colocated, sticky=sticky), deployment)
        Simulation(deployment, SimSettings(prefill=2, decode=4), router).run(sessions)
        homes[sticky] = len(router.homes)
    assert homes[True] == 12
    assert homes[False] > 12
