"""The router in its loop."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Literal

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.roles import MovesRoles
from pdplugins.contracts.router import ElasticRouter, Ending, HearsOutcomes, Outcome, Placement, Router
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.results import Scaling
from pdplugins.runtime.decision import Kind
from pdplugins.sim.core.clock import TICKS_PER_S, seconds
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.flight import Flight
from pdplugins.sim.core.policy_clock import PolicyClock


class Routing:
    """Asks the router. Where it raises or names a worker that takes no work, the least loaded workers are taken.

    :param remember: keep what a router was asked and has answered although the answer was complete: batch schedulers
        see it, and a worker's death takes it back. Else thousands of open requests have it in memory for nothing.
    """

    def __init__(
        self,
        router: Router,
        deployment: Deployment,
        clock: PolicyClock,
        predict: Literal["nothing", "true_length"],
        remember: bool,
    ) -> None:
        self._router = router
        self._own = LeastLoaded(RouterSettings.model_validate({}), deployment)
        self._clock = clock
        self._predict = predict == "true_length"
        self.learns = router if isinstance(router, HearsOutcomes) else None
        self._remember = remember or self.learns is not None
        self.changes: list[Scaling] = []
        """Changes of the pools of a router that has its own."""
        self._elastic = router if isinstance(router, ElasticRouter) else None
        self._pools: tuple[int, int] | None = None
        self._mover = router if isinstance(router, MovesRoles) else None

    def on_arrival(self, flight: Flight, bound: str | None, fleet: Fleet, now: int) -> Placement:
        """Place a request, or a round of a session whose KV cache is on the worker `bound`."""
        arrival = flight.arrival
        request = Request(
            flight.id,
            flight.arrived / TICKS_PER_S,
            flight.isl + flight.emitted,
            flight.osl if self._predict else None,
            arrival.history_tokens,
            arrival.session,
            bound,
            arrival.blocks,
        )
        clock, workers = self._clock, fleet.ready
        began = perf_counter_ns()
        try:
            placement = self._router.on_arrival(request, workers, now / TICKS_PER_S)
            clock.router_ns += perf_counter_ns() - began
            clock.router_calls += 1
            if placement.first in fleet.alive and (placement.second is None or placement.second in fleet.alive):
                if self._remember or placement.second is None:
                    flight.request, flight.placement = request, placement
                self._note_pools(placement, now)
                self._propose_moves(fleet)
                return placement
            clock.fault("router", f"{placement.first} or {placement.second} takes no work")
        except Exception as error:
            clock.fault("router", error)
        flight.request, flight.placement = request, self._own.on_arrival(request, workers, 0.0)
        return flight.placement

    def on_finished(self, flight: Flight) -> None:
        """Tell a router that learns output lengths how long an answer was."""
        if self.learns is None or flight.request is None:
            return
        began = perf_counter_ns()
        try:
            self.learns.on_ended(flight.request, Outcome(Ending.FINISHED, flight.emitted))
        except Exception as error:
            self._clock.fault("router", error)
        self._clock.router_ns += perf_counter_ns() - began

    def on_prefill_done(self, flight: Flight, fleet: Fleet, now: int) -> str:
        """Return the worker for the rest of a request."""
        clock, workers = self._clock, fleet.ready
        request, placement = flight.request, flight.placement
        assert request is not None  # noqa: S101 - it was placed
        assert placement is not None  # noqa: S101
        began = perf_counter_ns()
        try:
            placement = self._router.on_prefill_done(request, placement, workers, now / TICKS_PER_S)
            clock.router_ns += perf_counter_ns() - began
            clock.router_calls += 1
            if (second := placement.second) in fleet.alive:
                self._note_pools(placement, now)
                self._propose_moves(fleet)
                return second
            clock.fault("router", f"{second} takes no work")
        except Exception as error:
            clock.fault("router", error)
        return self._own.on_arrival(request, workers, 0.0).second or workers[0].id

    def _note_pools(self, placement: Placement, now: int) -> None:
        if self._elastic is None or (pools := self._elastic.pools) == self._pools:
            return
        if self._pools is not None:
            prefill, decode = pools
            self.changes.append(Scaling(at_s=seconds(now), prefill=prefill, decode=decode, reason=placement.reason))
        self._pools = pools

    def _propose_moves(self, fleet: Fleet) -> None:
        if self._mover is not None and (moves := self._mover.take_role_moves()):
            fleet.roles.propose_moves(moves, Kind.ROUTER, fleet.now_s)
