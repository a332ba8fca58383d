"""What stands before the router: requests are placed as they arrive, or wait for a flow policy to let them go on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf, nextafter
from typing import NamedTuple

from pdplugins.contracts.flow import Flow, Go, Refuse, Waiting
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Ending, HearsOutcomes, Outcome
from pdplugins.runtime.decision import Journal
from pdplugins.runtime.faults import Tally, implements
from pdplugins.runtime.flow import SafeFlow
from pdplugins.sim.core.clock import Events, seconds, ticks
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.flight import Flight

Place = Callable[[Flight], None]
"""Asks the router for workers that take work, and queues the request there."""
RefuseFor = Callable[[Flight, float], None]
"""Ends a request whose client may try again after so many seconds."""
Describe = Callable[[Flight], Request]
"""Returns a request as policies see it now."""


class FlowPolicy(NamedTuple):
    """A flow policy, and what it needs beside the requests."""

    policy: Flow
    ttft_s: float
    """The objective: a first token is due so many seconds after the arrival."""
    tally: Tally
    """Where calls and faults of the policy are counted."""
    journal: Journal | None = None


class AtOnce:
    """Every request goes on as it arrives; without any worker it waits for one."""

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

    def ended(self, flight: Flight, ending: Ending) -> None:
        """Learn nothing."""

    def look(self) -> None:
        """Nothing waits for a worker to have less to do."""

    def workers_changed(self) -> None:
        """Place the requests that waited for any worker."""
        waiting, self._stranded = self._stranded, {}
        for flight in waiting.values():
            self.arrived(flight)


class FlowControl:
    """A flow policy holds requests before the workers, and each is placed at the moment it goes on (late binding).

    The policy is asked at each arrival, and again when a request has ended or left a worker, when a step with prefill
    begins (what waits on that worker has become less), when workers change, and at the time that it asked for.

    """

    def __init__(
        self, flow: FlowPolicy, events: Events, fleet: Fleet, steps: tuple[Describe, Place, RefuseFor]
    ) -> None:
        self.waiting = False
        self.hears = True
        most = sys.maxsize  # the workload bounds it
        self._flow = SafeFlow(flow.policy, most_waiting=most, journal=flow.journal, tally=flow.tally)
        self._policy_hears = implements(flow.policy, HearsOutcomes)
        self._events = events
        self._fleet = fleet
        self._ttft = ticks(flow.ttft_s)
        self._describe, self._place, self._refuse = steps
        self._flights: dict[str, Flight] = {}
        """Requests that wait, by id."""
        self._requests: dict[int, Request] = {}
        """What the policy knows of the requests that have not ended, by index; empty when it hears of no outcomes."""
        self._in_service: set[int] = set()
        """Requests that went on and have not ended, by index."""
        self._asking = False
        self._will_look = False
        """Whether `_on_look` is queued for this instant."""
        self._alarm: int | None = None
        """When `_on_alarm` is due at the earliest."""

    def arrived(self, flight: Flight) -> None:
        """Let a request wait, and ask what goes on. One that starts anew is not in service any more."""
        self._in_service.discard(flight.index)
        request, now = self._describe(flight), self._events.now
        if self._policy_hears:
            self._requests[flight.index] = request
        waiting = Waiting(request, seconds(now), seconds(flight.arrived + self._ttft))
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

    def ended(self, flight: Flight, ending: Ending) -> None:
        """Tell a policy that hears outcomes, and ask again: there may be a place for another request."""
        self._in_service.discard(flight.index)
        if (request := self._requests.pop(flight.index, None)) is not None:
            self._flow.ended(request, Outcome(ending, flight.emitted))
        self.look()

    def look(self) -> None:
        """Ask when the event that is being handled is done, so that the policy sees all that has changed."""
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
        """Do what the policy says until it holds what still waits."""
        if self._asking:  # what was just placed has changed the workers: it is asked anew in any case
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
                if answer.until_s is not None:
                    self._ask_at(ticks(nextafter(answer.until_s, inf)))  # not a tick before that time
                break
        self._asking = False

    def _ask_at(self, time: int) -> None:
        """Ask again at `time`, or at an earlier one that is known already."""
        if self._alarm is None or time < self._alarm:
            self._alarm = time
            self._events.call_at(time, self._on_alarm, time)

    def _taken_out(self, request_id: str) -> Flight:
        flight = self._flights.pop(request_id)
        self.waiting = bool(self._flights)
        return flight
