"""Stock routers with session affinity: the later rounds of a session decode where its KV cache is."""

from __future__ import annotations

import pytest

from pdplugins import testing
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.testing import LinearModel
from pdplugins.types import Deployment, Placement, Request, Round, WorkerView

MODEL = LinearModel(
    prefill_fixed_s=0.01,
    prefill_token_s=1e-4,
    decode_fixed_s=0.01,
    transfer_fixed_s=0.001,
    transfer_token_s=1e-6,
)


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
    deployment = testing.deployment(MODEL, ttft_s=1, tpot_s=1, startup_s=1.0, max_batch=8)
    rounds = tuple(Round(0.2, 50, 20) for _ in range(5))
    sessions = [Arrival(0.05 * n, 500, 20, session=f"s{n}", rounds=rounds) for n in range(12)]
    homes = {}
    for sticky in (True, False):
        router = Noted(RouterSettings(seed=0, colocated=colocated, sticky=sticky), deployment)
        Simulation(deployment, SimSettings(prefill=2, decode=4), router).run(sessions)
        homes[sticky] = len(router.homes)
    assert homes[True] == 12
    assert homes[False] > 12
