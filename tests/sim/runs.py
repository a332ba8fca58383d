"""Short runs of the simulator: one deployment, and a router that places everything the same."""

from __future__ import annotations

from typing import Any

import pytest

from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import RunOutcome, SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.kernel import COMPILED
from pdplugins.types import Deployment, Placement, Request, Slo, WorkerView
from tests.sim.models import BentModel

needs_sources = pytest.mark.skipif(
    COMPILED, reason="compiled classes take no other engine: `make test` compares the engines with --pure"
)
MODEL = BentModel()
DEPLOYMENT = Deployment(Slo(1, 1), MODEL, 8, 1, 1, startup_s=2.0, max_batch=8)
ONE_EACH = SimSettings()


class To:
    """Places everything the same."""

    def __init__(self, first: str, second: str | None, split: int | None = None) -> None:
        self._answer = first, second, split

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        first, second, split = self._answer
        return Placement(first, second, request.prompt_tokens if split is None else split)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        return placement if placement.second else Placement(placement.first, placement.first, placement.split)


def run(router: Any, *workload: Arrival, settings: SimSettings = ONE_EACH, **policies: Any) -> RunOutcome:
    return Simulation(DEPLOYMENT, settings, router, **policies).run(workload)


def check_gaps(outcome: RunOutcome) -> None:
    """The gaps of a run are those of its requests: one between any two tokens."""
    assert sum(outcome.gaps.counts) == sum(record.osl_tokens - 1 for record in outcome.records)
    largest_s = max(record.largest_tbt_s or 0.0 for record in outcome.records)
    assert max(outcome.gaps.means) / outcome.gaps.ticks_per_s == pytest.approx(largest_s)
