"""A frontend that works on one request after the other, before the router sees them."""

from __future__ import annotations

import pytest

from pdplugins.policies.stock.flow import FcfsSettings, FirstComeFirstServed
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from pdplugins.types import Placement, Request, Round, WorkerView
from tests.sim.runs import DEPLOYMENT, MODEL, To, run

SLOW = SimSettings(prefill=2, decode=1, frontend_s=0.1, first_token="prefill")
ALONE_S = MODEL.prefill_s(100, 1)


class Apart(To):
    """Gives every request a worker of its own."""

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        self._answer = f"p{request.id}", "d0", None
        return super().on_arrival(request, workers, now_s)


def test_requests_pass_one_after_the_other() -> None:
    together = run(Apart("p0", "d0"), Arrival(0.0, 100, 2), Arrival(0.0, 100, 2), settings=SLOW).records
    assert [record.ttft_s for record in together] == pytest.approx([0.1 + ALONE_S, 0.2 + ALONE_S], abs=1e-9)


def test_a_request_that_finds_it_idle_waits_for_its_own_work_only() -> None:
    later = run(Apart("p0", "d0"), Arrival(0.0, 100, 2), Arrival(0.15, 100, 2), settings=SLOW).records
    assert [record.ttft_s for record in later] == pytest.approx([0.1 + ALONE_S] * 2, abs=1e-9)


def test_every_round_of_a_session_passes_it() -> None:
    rounds = Arrival(0.0, 100, 2, rounds=(Round(0.0, 100, 2, history_tokens=0),))
    first, second = run(To("p0", "d0"), rounds, settings=SLOW).records
    assert second.ttft_s == pytest.approx(first.ttft_s, abs=1e-9)


def test_a_client_that_goes_away_in_it_never_reaches_a_worker() -> None:
    gone, served = run(
        To("p0", "d0"), Arrival(0.0, 100, 2, cancel_after_s=0.05), Arrival(0.0, 100, 2), settings=SLOW
    ).records
    assert (gone.error, gone.ttft_s) == ("cancelled", None)
    assert served.ttft_s == pytest.approx(0.2 + ALONE_S, abs=1e-9)


def test_it_stands_before_the_flow_policy() -> None:
    flow = FirstComeFirstServed(FcfsSettings(), DEPLOYMENT)
    held = run(Apart("p0", "d0"), Arrival(0.0, 100, 2), Arrival(0.0, 100, 2), settings=SLOW, flow=flow).records
    assert [record.ttft_s for record in held] == pytest.approx([0.1 + ALONE_S, 0.2 + ALONE_S], abs=1e-9)
