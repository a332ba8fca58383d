"""Calls the router, and passes its pools and role moves on."""

from __future__ import annotations

from typing import Literal

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.request import Request, swift_request
from pdplugins.contracts.router import ElasticRouter, Outcome, Placement
from pdplugins.results import Scaling
from pdplugins.runtime.faults import implements
from pdplugins.runtime.router import SafeRouter
from pdplugins.sim.core.clock import TICKS_PER_S, seconds
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.flight import Flight


class Routing:
    """Asks the router.

    :param remember: keep every request and placement in memory. Batch schedulers and requests that lose their worker
        need them. Otherwise they are kept only for placements without a second worker, to save memory.
    """

    def __init__(self, router: SafeRouter, predict: Literal["nothing", "true_length"], remember: bool) -> None:
        self.hears_outcomes = router.hears_outcomes
        """Whether `ended` needs to be called at all."""
        self.changes: list[Scaling] = []
        """Changes of the router's own pools, where it has some."""
        self._router = router
        self._predict = predict == "true_length"
        self._remember = remember or router.hears_outcomes
        self._changes_roles = router.moves_roles or implements(router.policy, ElasticRouter)
        self._pools: tuple[int, int] | None = None

    def on_arrival(self, flight: Flight, bound: str | None, fleet: Fleet, now: int) -> Placement:
        """Place a request, or a round of a session whose KV cache is on the worker `bound`."""
        request = self.request(flight, bound)
        placement = self._router.on_arrival(request, fleet.ready, now / TICKS_PER_S, fleet.alive)
        if self._remember or placement.second is None:
            flight.request, flight.placement = request, placement
        if self._changes_roles:
            self._follow_changes(placement, fleet, now)
        return placement

    def request(self, flight: Flight, bound: str | None) -> Request:
        """Return what policies see of a request."""
        arrival = flight.arrival
        return swift_request(
            flight.id,
            flight.arrived / TICKS_PER_S,
            flight.isl + flight.emitted,
            flight.osl - flight.emitted if self._predict else None,
            arrival.history_tokens,
            arrival.session,
            bound,
            arrival.blocks,
            arrival.terms,
        )

    def on_prefill_done(self, flight: Flight, fleet: Fleet, now: int) -> str:
        """Return the worker for the rest of a request."""
        request, opened = flight.request, flight.placement
        assert request is not None  # noqa: S101 - it was placed
        assert opened is not None  # noqa: S101
        placement = self._router.on_prefill_done(request, opened, fleet.ready, now / TICKS_PER_S, fleet.alive)
        if self._changes_roles:
            self._follow_changes(placement, fleet, now)
        return placement.second or fleet.ready[0].id

    def ended(self, flight: Flight, outcome: Outcome) -> None:
        """Tell a router that hears outcomes how a request ended, unless it never saw the request."""
        if self.hears_outcomes and flight.request is not None:
            self._router.on_ended(flight.request, outcome)

    def _follow_changes(self, placement: Placement, fleet: Fleet, now: int) -> None:
        """Note new pools of a router that has its own, and propose the role moves that it wants."""
        pools = self._router.pools
        if pools is not None and pools != self._pools:
            if self._pools is not None:
                prefill, decode = pools
                self.changes.append(Scaling(at_s=seconds(now), prefill=prefill, decode=decode, reason=placement.reason))
            self._pools = pools
        if moves := self._router.take_role_moves():
            fleet.roles.propose_moves(moves, Kind.ROUTER, fleet.now_s)
