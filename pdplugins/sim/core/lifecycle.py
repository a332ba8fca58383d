"""Follows requests from arrival to end, and sessions from round to round."""

from __future__ import annotations

from typing import Final

from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Ending, Outcome
from pdplugins.sim.core import history
from pdplugins.sim.core.admission import AtOnce
from pdplugins.sim.core.clock import TICKS_PER_S, Events, seconds, ticks
from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.flight import Arrival, Flight, State
from pdplugins.sim.core.holdings import Holdings
from pdplugins.sim.core.protocols import Admission
from pdplugins.sim.core.records import Gaps, Record, record, unsent
from pdplugins.sim.core.routing import Routing
from pdplugins.sim.core.settings import SimSettings

CANCELLED: Final = "cancelled"
"""Error of a request whose client has gone away."""
_FINISHED: Final = Ending.FINISHED  # an enumeration takes long to name a member
_CANCELLED: Final = Ending.CANCELLED


class Lifecycle:
    """Takes requests in, places them on workers, and records how they end."""

    def __init__(
        self,
        events: Events,
        fleet: Fleet,
        routing: Routing,
        settings: SimSettings,
        gaps: Gaps,
        holdings: Holdings,
    ) -> None:
        self.records: list[Record] = []
        self.open = 0
        """Requests that have arrived and not ended, plus scheduled next rounds of sessions."""
        self.arrived = 0
        self.last_end = 0
        """When the last request ended."""
        self.admission: Admission = AtOnce(fleet, self.place)
        """Decides when a request goes on to `place`."""
        self._events = events
        self._fleet = fleet
        self._routing = routing
        self._gaps = gaps
        self._windows = gaps.windows
        self._holdings = holdings
        self._gives_token = settings.first_token == "prefill"  # noqa: S105 - no password
        self._reads_history = settings.history == "transfer"
        self._flights: list[Flight | None] = []
        """All requests by index; None for those that have ended."""
        self._bound: dict[str, str] = {}
        """By session: the worker that has the KV cache of its last round."""

    # --- arrival ---------------------------------------------------------------------------------------------------

    def enter(self, arrival: Arrival) -> Flight:
        """Count a request that has arrived, and return it."""
        flight = Flight(self.arrived, arrival, self._events.now)
        self._flights.append(flight)
        self.arrived += 1
        self.open += 1
        for window in self._windows:
            window.arrived(flight)
        return flight

    def place(self, flight: Flight) -> None:
        """Ask the router for workers, and queue the request on the first of them. At least one worker must be ready."""
        fleet = self._fleet
        bound = None if flight.arrival.session is None else self._bound_worker(flight)
        placement = self._routing.on_arrival(flight, bound, fleet, self._events.now)
        prompt, split = flight.isl + flight.emitted, placement.split
        first = fleet.alive[placement.first]
        second = None if placement.second is None else fleet.alive[placement.second]
        if second is not None and split <= 0:
            first = second
        elif second is not None and split >= flight.isl + flight.osl:
            second = first
        flight.first, flight.second = first, second
        split = prompt if second is None else split
        flight.plan(prompt, split, alone=second is first, gives_token=self._gives_token)
        flight.names = first.view.id, None if second is None else second.view.id
        first.open += 1
        if second is not None and second is not first:
            second.open += 1
            second.engine.expect()
        flight.history, flight.expected = None, 0
        if bound is not None:
            history.expect(flight, fleet.workers.get(bound), reads=self._reads_history)
        engine = first.engine
        engine.submit(flight)
        if flight.history is not None and engine.queue and engine.queue[0] is flight:
            engine.owner.read_history(flight, engine)

    def describe(self, flight: Flight) -> Request:
        """Return a request as policies see it now."""
        return self._routing.request(flight, self._bound_worker(flight))

    def _bound_worker(self, flight: Flight) -> str | None:
        """Return the worker that has the KV cache of the request's session, if there is one."""
        session = flight.arrival.session
        return None if session is None else self._bound.get(session)

    def live(self) -> list[Flight]:
        """Return the requests that have not ended, in the order of arrival."""
        return [flight for flight in self._flights if flight is not None]

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self, flight: Flight) -> None:
        """End a request that has all its tokens, on the engine where it is."""
        if flight.sink is not None:  # chunks were on their way, but the first token was also the last
            self._holdings.drop(flight)
        engine: Engine = flight.engine
        engine.release(flight)
        if flight.may_be_cached and flight.arrival.rounds:
            self._await_next_round(flight)
        ttft_s = (flight.first_token - flight.arrived) / TICKS_PER_S
        gaps = flight.osl - 1
        tpot_s = (flight.last_token - flight.first_token) / (gaps * TICKS_PER_S) if gaps else 0.0
        for window in self._windows:
            window.ended(flight, tpot_s)
        self._record(flight, ttft_s, tpot_s, _FINISHED)

    def refuse(self, flight: Flight, retry_after_s: float) -> None:
        """End a request that the flow policy refuses: its client gets 503 and ``Retry-After``."""
        self._fail(flight, f"refused: retry after {retry_after_s:g} s", Ending.REFUSED)

    def failed(self, flight: Flight, why: str) -> None:
        """End a request without an answer. It must not hold KV cache or links any more."""
        self._fail(flight, why, _CANCELLED if why == CANCELLED else Ending.FAILED)

    def _fail(self, flight: Flight, why: str, ending: Ending) -> None:
        flight.error = why
        ttft_s = seconds(flight.first_token - flight.arrived) if flight.emitted else None
        self._record(flight, ttft_s, None, ending)
        if ending is not _CANCELLED:
            self._record_unsent(flight.arrival)

    def _record(self, flight: Flight, ttft_s: float | None, tpot_s: float | None, ending: Ending) -> None:
        if self._routing.hears_outcomes or self.admission.hears:
            outcome = Outcome(ending, flight.emitted, ttft_s, tpot_s)
            self._routing.ended(flight, outcome)
            self.admission.ended(flight, outcome)
        self.records.append(record(flight, ttft_s, tpot_s, self._events.now))
        flight.state = State.OVER
        self._flights[flight.index] = None
        self.open -= 1
        self.last_end = self._events.now
        self._holdings.leave(flight)

    # --- sessions --------------------------------------------------------------------------------------------------

    def _await_next_round(self, flight: Flight) -> None:
        """Schedule the next round for when its user has read the answer, and keep its context in the KV cache."""
        arrival, engine = flight.arrival, flight.engine
        session = arrival.session or flight.id
        self.open += 1
        time = self._events.now + ticks(arrival.rounds[0].gap_s)
        coming = arrival.following(seconds(time), session, flight.isl + flight.osl)
        if coming.history_tokens:
            engine.kv.keep(session, min(flight.context, coming.history_tokens))
            self._bound[session] = engine.id
        else:
            self._bound.pop(session, None)
        self._events.call_at(time, self._next_round, coming)

    def _next_round(self, arrival: Arrival) -> None:
        self.open -= 1
        self.admission.arrived(self.enter(arrival))

    def _record_unsent(self, arrival: Arrival) -> None:
        """Record the rounds that will never arrive as failed.

        Without this, a policy that lets sessions fail early would look better than it is.
        """
        now_s = seconds(self._events.now)
        while arrival.rounds:
            arrival = arrival.following(now_s, arrival.session or "", arrival.isl_tokens + arrival.osl_tokens)
            self.records.append(unsent(str(self.arrived), arrival))
            self._flights.append(None)
            self.arrived += 1
