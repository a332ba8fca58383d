"""Shadow mode: a router is asked beside the one whose placements are followed, and what it answers is only logged."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Ending, Outcome, Placement, Router
from pdplugins.contracts.workers import WorkerView
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.workers import Workers
from pdplugins.runtime.decision import Decision, Journal
from pdplugins.runtime.router import SafeRouter


class ShadowJournal:
    """Adds to what a router saw the placement that was followed in place of its own."""

    def __init__(self, inner: Journal) -> None:
        self._inner = inner
        self.followed: Placement | None = None
        self.skips = inner.skips
        self.fault = inner.fault
        self.signals = inner.signals
        self.close = inner.close

    def decided(self, decision: Decision[Any], seen: Mapping[str, Any]) -> None:
        """Note a decision that nobody followed."""
        self._inner.decided(decision, {**seen, "followed": self.followed})


class ShadowRouter:
    """A router that decides on every request as if it were followed. Its role moves are dropped. Never raises."""

    def __init__(
        self,
        router: Router,
        deployment: Deployment,
        backends: Workers[Any],
        metrics: GatewayMetrics,
        journal: Journal | None,
    ) -> None:
        self._journal = None if journal is None else ShadowJournal(journal)
        self.safe = SafeRouter(router, deployment, journal=self._journal)
        self._backends = backends
        self._metrics = metrics
        self._open: dict[str, tuple[Placement, Placement]] = {}
        """Requests whose prefill runs and for which it has named no second worker: its placement, and the other one."""

    def arrive(self, request: Request, followed: Placement, workers: tuple[WorkerView, ...], now_s: float) -> None:
        """Ask where a request should go that has been placed."""
        self._note(followed)
        placement = self.safe.on_arrival(request, workers, now_s, self._backends.ready_ids)
        self.dropped_moves()
        if placement.second is None:
            self._open[request.id] = placement, followed
        else:
            self._compare(placement, followed)

    def prefilled(self, request: Request) -> None:
        """Ask who should decode a request whose prefill is done, where that is still open."""
        if (known := self._open.pop(request.id, None)) is None or not (workers := self._backends.now_ready()):
            return
        placement, followed = known
        self._note(followed)
        usable = self._backends.ready_ids
        self._compare(self.safe.on_prefill_done(request, placement, workers, monotonic(), usable), followed)
        self.dropped_moves()

    def ended(self, request: Request, outcome: Outcome) -> None:
        """Tell it how a request ended."""
        if outcome.ending is Ending.FINISHED:
            self.prefilled(request)
        self._open.pop(request.id, None)
        self.safe.on_ended(request, outcome)

    def plan_ahead(self) -> None:
        """Let it do what no request should wait for."""
        self.safe.plan_ahead(self._backends.now_ready(), monotonic())
        self.dropped_moves()

    def dropped_moves(self) -> None:
        """Take its role moves, which nobody makes."""
        if self.safe.moves_roles:
            self.safe.take_role_moves()

    def _note(self, followed: Placement) -> None:
        if self._journal is not None:
            self._journal.followed = followed

    def _compare(self, placement: Placement, followed: Placement) -> None:
        same = (placement.first, placement.second, placement.split) == (followed.first, followed.second, followed.split)
        self._metrics.shadow.labels("same" if same else "other").inc()
