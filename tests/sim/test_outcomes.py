"""Routers and flow policies hear how each request ended: once, and what the client saw."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from pdplugins.sim.core.records import Record
from pdplugins.types import Ending, Outcome, Placement, Request, Waiting, WorkerView
from tests.sim.anyone import AnyFlow, AnyRouter
from tests.sim.cases import cases, simulate


class HearingRouter(AnyRouter):
    """Notes of which requests it was asked, and how they ended."""

    def __init__(self, seed: int, kinds: str) -> None:
        super().__init__(seed, kinds)
        self.asked: set[str] = set()
        self.heard: list[tuple[str, Outcome]] = []

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        assert request.id not in [name for name, _ in self.heard]
        self.asked.add(request.id)
        return super().on_arrival(request, workers, now_s)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        self.heard.append((request.id, outcome))


class HearingFlow(AnyFlow):
    """Notes which requests came, and how they ended."""

    def __init__(self) -> None:
        super().__init__()
        self.came: set[str] = set()
        self.heard: list[tuple[str, Outcome]] = []

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        self.came.add(waiting.request.id)
        super().on_arrival(waiting, now_s)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        self.heard.append((request.id, outcome))
        super().on_ended(request, outcome)


def ending(record: Record) -> Ending:
    """What a record says."""
    if record.error is None:
        return Ending.FINISHED
    if record.error == "cancelled":
        return Ending.CANCELLED
    return Ending.REFUSED if record.error.startswith("refused") else Ending.FAILED


@pytest.mark.moderate
@given(cases())
@settings(max_examples=200)
def test_each_request_is_heard_of_once_and_as_it_ended(case: dict[str, Any]) -> None:
    router = HearingRouter(case["seed"], case["kinds"])
    flow = HearingFlow() if "flow" in case["policies"] else None
    outcome = simulate(case, router=router, flow=flow)
    records = {record.id: record for record in outcome.records}
    listeners = [(router.asked, router.heard)]
    if flow is not None:
        listeners.append((flow.came, flow.heard))
        sent = {record.id for record in outcome.records if not (record.error or "").startswith("not sent")}
        left = {r.id for r in outcome.records if r.error == "cancelled" and r.prefill_worker is None}
        assert sent - left <= flow.came <= sent, "who leaves while the frontend is busy is not heard of"
    for known, heard in listeners:
        assert sorted(name for name, _ in heard) == sorted(known)
        for name, how in heard:
            assert how.ending is ending(records[name])
            if how.ending is Ending.FINISHED:
                assert how.output_tokens == records[name].osl_tokens
            else:  # a client may go away in the very step that gives it the last token
                assert how.output_tokens <= records[name].osl_tokens
    assert not outcome.policies.faults["flow"]
