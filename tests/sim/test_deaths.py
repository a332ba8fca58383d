"""Workers that die, also all of them, or in the middle of a hand-over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdplugins.config import parse
from pdplugins.errors import ConfigError
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.policies import build_policies
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import RunOutcome, SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.run.running import build_simulation
from pdplugins.testing import LinearModel
from pdplugins.types import Deployment, Hold, Placement, Request, Round, Slo, WorkerView
from tests.sim.anyone import AnyFlow, AnyPower
from tests.sim.cases import CURVE
from tests.sim.runs import MODEL, To, check_gaps, run

WHOLE = EngineSettings(order="prefill_first")
Where = Callable[[Request, set[str]], tuple[str, str]]


class By(To):
    """Places each request where a function of it and of the workers says."""

    def __init__(self, where: Where) -> None:
        self._where = where

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        return Placement(*self._where(request, {worker.id for worker in workers}), request.prompt_tokens)


def elsewhere(request: Request, there: set[str]) -> tuple[str, str]:
    return "p0", "d0" if "d0" in there else "d1"


class Ahead(To):
    """Plans ahead, as routers of bundles do."""

    def plan_ahead(self, workers: tuple[WorkerView, ...], now_s: float) -> None:
        """Do nothing."""


class Holding(AnyFlow):
    """Holds everything, and wants to be asked again each second."""

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> Hold:
        return Hold(now_s + 1.0)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("policies", [{}, {"power": AnyPower(0.3)}, {"flow": Holding()}], ids=" ".join)
@pytest.mark.parametrize("router", [To, Ahead])
def test_a_run_ends_when_all_workers_have_died(router: type[To], policies: dict[str, Any]) -> None:
    """Nobody would start another one. Requests fail when the last worker dies, or when they come after that."""
    settings = SimSettings(power=CURVE, deaths=((1.0, "p0"), (2.0, "d0")))
    work = Arrival(0.0, 1000, 2000), Arrival(0.1, 1000, 2000), Arrival(5.0, 100, 10)
    outcome = run(router("p0", "d0"), *work, settings=settings, **policies)
    assert [(record.error, record.finish_s) for record in outcome.records] == [("no worker to serve it", 5.0)] * 3
    assert outcome.duration_s == 5.0
    assert outcome.gpu_hours * 3600 == pytest.approx(1.0 + 2.0)


@pytest.mark.parametrize("first_token", ["prefill", "transfer", "decode"])
def test_a_request_that_starts_again_is_sent_whole(first_token: Any) -> None:
    """Its tokens so far are part of the prompt then: nothing was decoded beside the sending of chunks."""

    def handed_over(*, overlap: bool) -> RunOutcome:
        settings = SimSettings(decode=2, first_token=first_token, overlap=overlap, deaths=((1.5, "d0"),))
        return run(By(elsewhere), Arrival(0.0, 4000, 200), settings=settings)

    outcome = handed_over(overlap=True)
    assert outcome.retries == 1
    check_gaps(outcome)
    assert outcome.handoff_s == handed_over(overlap=False).handoff_s > 2 * MODEL.transfer_s(3999)


def test_a_round_goes_on_where_it_waits_when_the_worker_of_its_history_dies() -> None:
    """It computes its history again. That is no new start, so a request that may not start again does not fail."""

    def where(request: Request, there: set[str]) -> tuple[str, str]:
        return "p0", "d0" if request.id == "0" and "d0" in there else "d1"

    session = Arrival(0.0, 4000, 10, session="s", rounds=(Round(1.0, 100, 5),))
    settings = SimSettings(decode=2, first_token="prefill", retries=0)
    comes_s = run(By(where), session, settings=settings).records[1].arrival_s
    dying = SimSettings(decode=2, first_token="prefill", retries=0, deaths=((comes_s + 0.005, "d0"),))
    outcome = run(By(where), session, settings=dying)
    second = outcome.records[1]
    assert (second.error, outcome.retries) == (None, 0)
    assert second.ttft_s == pytest.approx(0.005 + MODEL.prefill_s(4110, 1))


@pytest.mark.parametrize("polled", [False, True])
def test_kv_cache_that_has_arrived_is_safe_from_the_death_of_its_sender(polled: bool) -> None:
    """Also while the receiver, in the middle of a long step, has not looked for it yet."""
    settings = SimSettings(
        prefill=2, first_token="transfer", polled_handoff=polled, retries=0, deaths=((0.9, "p0"),), engine=WHOLE
    )
    router = By(lambda request, there: ("d0", "d0") if request.prompt_tokens > 1000 else ("p0", "d0"))
    outcome = run(router, Arrival(0.0, 1000, 3), Arrival(0.0, 8000, 1), settings=settings)
    assert [record.error for record in outcome.records] == [None, None]


def test_a_worker_that_dies_as_a_step_ends_does_not_end_it() -> None:
    """However many steps the engine knows ahead."""
    perf = LinearModel(prefill_fixed_s=0.1, decode_fixed_s=0.01, transfer_fixed_s=0.001, kv_tokens=100_000)
    deployment = Deployment(Slo(1, 1), perf, 8, 1, 1, startup_s=1.0, max_batch=8)
    router = By(lambda request, there: ("d0", "d0") if "d0" in there else ("d1", "d1"))
    settings = SimSettings(decode=2, deaths=((0.15, "d0"),))
    (record,) = Simulation(deployment, settings, router).run([Arrival(0.0, 100, 11)]).records
    assert record.finish_s == pytest.approx(0.15 + 0.1 + 5 * 0.01)  # five tokens by then, one with the prompt


def test_a_worker_that_a_planner_will_have_started_may_die() -> None:
    """Also where the planner is part of a bundle."""
    death = {"simulation": {"deaths": [{"at_s": 50, "worker": "d3"}]}}
    pool = {"replicas": 1, "tp": 2}
    bundled = {"deployment": {"prefill": pool, "decode": pool}, "bundle": {"name": "fusion", "scale": True}}
    for planned in ({"planner": "threshold"}, bundled):
        config = parse({**death, **planned})
        deployment = build_deployment(config)
        build_simulation(config, deployment, build_policies(config, deployment))
    config = parse(death)
    deployment = build_deployment(config)
    with pytest.raises(ConfigError, match="no worker 'd3'"):
        build_simulation(config, deployment, build_policies(config, deployment))
