"""Admission to the router: requests are placed as they arrive, or wait until a flow policy releases them.

A frontend may stand before it, which works on one request at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf, nextafter
from typing import NamedTuple

from pdplugins.contracts.flow import Flow, Go, Refuse, Waiting
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import HearsOutcomes, Outcome
from pdplugins.runtime.decision import Journal
from pdplugins.runtime.faults import Tally, implements
from pdplugins.runtime.flow import SafeFlow
from pdplugins.sim.core.clock import Events, seconds, ticks
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.flight import Flight
from pdplugins.sim.core.protocols import Admission

Place = Callable[[Flight], None]
"""Asks the router for workers, and queues the request there."""
RefuseFor = Callable[[Flight, float], None]
"""Ends a request. The number is the seconds after which its client may try again."""
Describe = Callable[[Flight], Request]
"""Returns a request as policies see it now."""


class FlowPolicy(NamedTuple):
    """A flow policy, and what it needs besides the requests."""

    policy: Flow
    ttft_s: float
    """The objective: seconds from the arrival until the first token is due."""
    tally: Tally
    """Where calls and faults of the policy are counted."""
    journal: Journal | None = None


class AtOnce:
    """Places every request as it arrives. While there is no worker, requests wait for one."""

    def __init__(self, fleet: Fleet, place: Place) -> None:
        self.waiting = False
        self.hears = False
        self._fleet = fleet
        self._place = place
        self._stranded: dict[int, Flight] = {}
        """Requests by index, in the order in which they came."""

    def arrived(self, flight: Flight) -> None:
        """Place a request if there is any worker."""
        if self._fleet.ready:
            self._place(flight)
        else:
            self._stranded[flight.index] = flight

    def left(self, flight: Flight) -> None:
        """Forget a request whose client has gone away."""
        self._stranded.pop(flight.index, None)

    def ended(self, flight: Flight, outcome: Outcome) -> None:
        """Do nothing."""

    def look(self) -> None:
        """Do nothing: no request waits for a worker to have less to do."""

    def workers_changed(self) -> None:
        """Place the requests that waited for a worker."""
        waiting, self._stranded = self._stranded, {}
        for flight in waiting.values():
            self.arrived(flight)


class Frontend:
    """Works on one request at a time, in order of arrival, before `behind` takes it in: HTTP and tokenisation.

    :param request_s: seconds of work on each request.
    """

    def __init__(self, events: Events, behind: Admission, request_s: float) -> None:
        self._events = events
        self._behind = behind
        self._request = ticks(request_s)
        self._free = 0
        """When it has done all its work."""
        self._inside: set[int] = set()
        """Requests that it has not passed on, by index."""

    @property
    def waiting(self) -> bool:
        """Whether requests behind it wait for a worker to have less to do."""
        return self._behind.waiting

    @property
    def hears(self) -> bool:
        """Whether `ended` needs to be called at all."""
        return self._behind.hears

    def arrived(self, flight: Flight) -> None:
        """Take in a request, and pass it on once the work on it is done."""
        self._free = max(self._free, self._events.now) + self._request
        self._inside.add(flight.index)
        self._events.call_at(self._free, self._pass_on, flight)

    def _pass_on(self, flight: Flight) -> None:
        if flight.index in self._inside:
            self._inside.remove(flight.index)
            self._behind.arrived(flight)

    def left(self, flight: Flight) -> None:
        """Forget a request whose client has gone away. The time reserved for it passes all the same."""
        if flight.index in self._inside:
            self._inside.remove(flight.index)
        else:
            self._behind.left(flight)

    def ended(self, flight: Flight, outcome: Outcome) -> None:
        """Learn how a request ended."""
        self._behind.ended(flight, outcome)

    def look(self) -> None:
        """Check soon whether a request may go on."""
        self._behind.look()

    def workers_changed(self) -> None:
        """Check now whether a request may go on."""
        self._behind.workers_changed()


class FlowControl:
    """Lets a flow policy hold requests. The router places each one only when the policy releases it (late binding).

    The policy is asked at each arrival, when a request has ended or left a worker, when a step with prefill begins
    (fewer tokens are queued on that worker then), when workers change, and at the time that it asked for.
    """

    def __init__(
        self, flow: FlowPolicy, events: Events, fleet: Fleet, steps: tuple[Describe, Place, RefuseFor]
    ) -> None:
        self.waiting = False
        self.hears = True
        most = sys.maxsize  # the workload bounds the queue
        self._flow = SafeFlow(flow.policy, most_waiting=most, journal=flow.journal, tally=flow.tally)
        self._policy_hears = implements(flow.policy, HearsOutcomes)
        self._events = events
        self._fleet = fleet
        self._ttft = ticks(flow.ttft_s)
        self._describe, self._place, self._refuse = steps
        self._flights: dict[str, Flight] = {}
        """Requests that wait, by id."""
        self._requests: dict[int, Request] = {}
        """Requests that have not ended, as the policy saw them, by index. Empty when it does not hear outcomes."""
        self._in_service: set[int] = set()
        """Released requests that have not ended, by index."""
        self._asking = False
        self._will_look = False
        """Whether `_on_look` is queued for this instant."""
        self._alarm: int | None = None
        """When `_on_alarm` is next due."""

    def arrived(self, flight: Flight) -> None:
        """Let a request wait, and ask the policy. A request that starts again is no longer in service."""
        self._in_service.discard(flight.index)
        request, now = self._describe(flight), self._events.now
        if self._policy_hears:
            self._requests[flight.index] = request
        own_s = None if request.terms is None else request.terms.ttft_s
        ttft = self._ttft if own_s is None else ticks(own_s)
        waiting = Waiting(request, seconds(now), seconds(flight.arrived + ttft))
        self._flights[flight.id] = flight
        self.waiting = True
        if (refusal := self._flow.arrived(waiting, seconds(now))) is not None:
            self._refuse(self._taken_out(refusal.request_id), refusal.retry_after_s)
        self._ask()

    def left(self, flight: Flight) -> None:
        """Forget a request whose client has gone away."""
        if flight.id in self._flights:
            self._taken_out(flight.id)
            self._flow.left(flight.id)
            self.look()

    def ended(self, flight: Flight, outcome: Outcome) -> None:
        """Tell a policy that hears outcomes, then ask again, because another request may go on now."""
        self._in_service.discard(flight.index)
        if (request := self._requests.pop(flight.index, None)) is not None:
            self._flow.ended(request, outcome)
        self.look()

    def look(self) -> None:
        """Ask after the current event, so that the policy sees everything that the event has changed."""
        if self.waiting and not self._will_look:
            self._will_look = True
            self._events.call_at(self._events.now, self._on_look)

    def workers_changed(self) -> None:
        """Ask at once."""
        if self.waiting:
            self._ask()

    def _on_look(self, _: object) -> None:
        self._will_look = False
        self._ask()

    def _on_alarm(self, time: int) -> None:
        if self._alarm == time:
            self._alarm = None
        self._ask()

    def _ask(self) -> None:
        """Follow the policy until it answers that the rest shall wait."""
        if self._asking:  # placing a request changed the workers, and the loop below asks again anyway
            return
        self._asking = True
        while self._flights:
            answer = self._flow.next(self._fleet.ready, seconds(self._events.now), len(self._in_service))
            if isinstance(answer, Go):
                flight = self._taken_out(answer.request_id)
                self._in_service.add(flight.index)
                self._place(flight)
            elif isinstance(answer, Refuse):
                self._refuse(self._taken_out(answer.request_id), answer.retry_after_s)
            else:
                if answer.until_s is not None and not self._fleet.lost:
                    self._ask_at(ticks(nextafter(answer.until_s, inf)))  # rounding must not make it earlier
                break
        self._asking = False

    def _ask_at(self, time: int) -> None:
        """Ask again at `time`, unless an earlier time is scheduled already."""
        if self._alarm is None or time < self._alarm:
            self._alarm = time
            self._events.call_at(time, self._on_alarm, time)

    def _taken_out(self, request_id: str) -> Flight:
        flight = self._flights.pop(request_id)
        self.waiting = bool(self._flights)
        return flight
