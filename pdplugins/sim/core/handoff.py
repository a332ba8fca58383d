"""Moves requests from one worker to the next: reserves KV capacity there, then sends the KV cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pdplugins.sim.core.clock import Events, ticks
from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.failure import Failures
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.flight import Flight, State
from pdplugins.sim.core.history import held
from pdplugins.sim.core.holdings import Holdings
from pdplugins.sim.core.lifecycle import Lifecycle
from pdplugins.sim.core.links import Links
from pdplugins.sim.core.records import Gaps
from pdplugins.sim.core.routing import Routing
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.worker import Worker

PUSH_TOKENS: Final = 64
"""Size in tokens of one chunk of KV cache, where the first worker sends chunks while it still decodes.

Decoding a chunk of tokens takes far longer than sending it. So when the first worker is done, the second one has every
chunk but the last, and only that one is still to be sent. Capacity on the second worker is reserved at this moment. If
there is none, everything is sent later, once there is.
"""


class Handoffs:
    """Moves requests to their second workers, and the histories of sessions to where their next rounds run."""

    def __init__(  # noqa: PLR0913, PLR0917 - all of it is the simulation's
        self,
        events: Events,
        fleet: Fleet,
        links: Links,
        routing: Routing,
        settings: SimSettings,
        gaps: Gaps,
        holdings: Holdings,
        lifecycle: Lifecycle,
        failures: Failures,
    ) -> None:
        self.count = 0
        """Requests that have reached their second worker."""
        self.time = 0
        """Ticks from the end of the part on the first worker to the arrival on the second, summed over all requests."""
        self._events = events
        self._fleet = fleet
        self._links = links
        self._routing = routing
        self._gaps = gaps
        self._holdings = holdings
        self._lifecycle = lifecycle
        self._failures = failures
        self._overlap = settings.overlap
        self._may_stay = settings.when_full == "stay"
        self._step_tokens = settings.engine.step_tokens
        self._computed_twice = int(settings.first_token == "decode")  # noqa: S105 - no password
        """Tokens at the end of a prompt that the decode worker computes again, because that gives the first token."""
        self._late = None if settings.late_handoff_s is None else ticks(settings.late_handoff_s)
        """Ticks until a hand-over that was chosen after prefill is asked for; None where it needs no asking."""
        self._late_work = ticks(settings.late_step_s)
        self._late_token_work = ticks(settings.late_step_token_s)
        self._polled = settings.polled_handoff
        self._timeout = ticks(settings.handoff_timeout_s)

    # --- the part on one worker is done ----------------------------------------------------------------------------

    def leg_done(self, flight: Flight, engine: Engine) -> None:
        """Finish a request, or take it to its second worker."""
        if flight.error is not None:
            self._failures.end(flight, flight.error)
        elif flight.emitted >= flight.osl:
            self._lifecycle.finish(flight)
        else:
            second: Worker | None = flight.second
            late = second is None or second.gone
            if late:
                second = self._choose_second(flight)
            if second is None:
                self._failures.retry(flight, f"worker {engine.id} found no second worker")
            elif second.engine is engine:
                self._go_on(flight, engine)
            elif late and self._late is not None:
                self._events.call_at(self._events.now + self._late, self._reached, (flight, flight.retries))
            else:
                self._move(flight, second)

    def _choose_second(self, flight: Flight) -> Worker | None:
        """Ask the router where the rest of a request runs."""
        if not self._fleet.ready:
            return None
        name = self._routing.on_prefill_done(flight, self._fleet, self._events.now)
        flight.second = second = self._fleet.alive[name]
        flight.names = flight.names[0], name
        if second is not flight.first:
            second.open += 1
            second.engine.expect()
        return second

    def _reached(self, of: tuple[Flight, int]) -> None:
        """Let the second worker see a hand-over that was chosen late.

        :param of: the request, and how often it had started again when the hand-over was chosen.
        """
        second = of[0].second
        if self._polled and second is not None and not second.gone:
            self._once_seen(second.engine, self._asked, of)
        else:
            self._asked(of)

    def _asked(self, of: tuple[Flight, int]) -> None:
        """Let a hand-over take its step on the engine that has prefilled, unless its request has left that meanwhile.

        :param of: as for `_reached`.
        """
        flight, retries = of
        if flight.state == State.MOVING and flight.retries == retries and flight.sink is None:
            flight.engine.hand_over(flight, self._late_work + flight.target * self._late_token_work)

    def _once_seen(self, engine: Engine, action: Callable[[tuple[Flight, int]], None], of: tuple[Flight, int]) -> None:
        """Do something with a request when `engine` next looks for what others have sent it."""
        if (seen := engine.boundary()) > self._events.now:
            self._events.call_at(seen, action, of)
        else:
            action(of)

    def _go_on(self, flight: Flight, engine: Engine) -> None:
        """Let a request do its second part on the engine that did the first."""
        if flight.stop:
            flight.stop = flight.osl
            engine.keep(flight)
        elif flight.target == flight.isl + flight.emitted:  # its prompt was computed here
            flight.stop = flight.osl
            self._gaps.token(flight, self._events.now)
            if flight.emitted < flight.osl:
                engine.keep(flight)
            else:
                self._lifecycle.finish(flight)
        else:  # the worker for the rest of the prompt is gone, and the router chose this one instead
            engine.release(flight)
            flight.stop, flight.done, flight.target = flight.osl, 0, flight.isl + flight.emitted
            engine.submit(flight)

    # --- to the second worker --------------------------------------------------------------------------------------

    def _move(self, flight: Flight, second: Worker) -> None:
        """Move a request with its KV cache to `second`. Nothing is sent before capacity is reserved there."""
        flight.sink, flight.landing = second, flight.beyond(self._computed_twice)
        flight.stop = flight.osl
        flight.queued = self._events.now
        decoded = flight.landing[0] > flight.target
        stays = self._may_stay and decoded and not flight.waits
        if not flight.reserved and not self._reserve(flight, second.engine, wait=not stays):
            if stays:
                self._stay(flight)
            return
        if flight.transfer is None:
            if self._overlap and decoded:
                flight.sent = max(flight.sent, flight.landing[0] - flight.landing[0] % PUSH_TOKENS)
            self._send(flight, flight.landing[0] - flight.sent)

    def _stay(self, flight: Flight) -> None:
        """Let a request decode where it is, because its second worker has no free KV capacity.

        If it waited instead, it would hold KV capacity here without using it.
        """
        first = flight.first
        self._holdings.left(flight.second)
        flight.sink, flight.second = None, first
        flight.names = flight.names[0], flight.names[0]
        first.engine.keep(flight)

    def _reserve(self, flight: Flight, engine: Engine, *, wait: bool = True) -> bool:
        """Reserve KV capacity for a request on its next worker, and return whether that succeeded.

        A request that does not fit now waits where `wait` allows it. One that can never fit fails.
        """
        if flight.waits:
            return False
        need = flight.landing[1]
        if engine.incoming or not engine.reserve(flight, need):
            if not wait:
                return False
            if need >= engine.largest:
                if flight.state == State.MOVING:  # else its engine still computes it: this fails when that is done
                    why = f"needs {need + 1} tokens of KV cache, worker {engine.id} has room for {engine.largest}"
                    self._failures.end(flight, why)
                return False
            flight.waits, flight.queued = True, self._events.now
            engine.incoming.append(flight)
            if not flight.sink.watched:
                flight.sink.watched = True
                self._events.call_at(self._events.now + self._timeout, self._end_deadlock, flight.sink)
            return False
        self._use_history(flight)
        return True

    @staticmethod
    def _use_history(flight: Flight) -> None:
        """Skip the tokens that an earlier round of the session left on the second worker: they need not be sent."""
        if flight.kept:
            here = min(flight.kept, flight.arrival.history_tokens, max(flight.landing[0] - 1, 0))
            flight.sent, flight.kept = max(flight.sent, here), 0

    def capacity_freed(self, engine: Engine) -> None:
        """Reserve the free KV capacity of `engine` for the requests that wait for it, first come first served."""
        incoming = engine.incoming
        self._links.gather()
        while incoming and engine.reserve(incoming[0], incoming[0].landing[1]):
            flight = incoming.popleft()
            flight.waits = False
            self._use_history(flight)
            ready = flight.landing[0] if flight.state == State.MOVING else flight.done
            if ready > flight.sent or flight.state == State.MOVING:
                self._send(flight, ready - flight.sent)
        self._links.spread()

    def _end_deadlock(self, second: Worker) -> None:
        """End a deadlock of workers that wait for each other's KV capacity.

        A worker that computes nothing frees no capacity by itself. If requests wait for such a worker, the one that has
        waited longest gives up its KV cache on the other worker, and this worker computes it again.
        """
        engine = second.engine
        if engine.incoming and not engine.busy and not engine.coming:
            flight = engine.incoming[0]
            if flight.state == State.MOVING:
                self._holdings.drop(flight)
                self._holdings.left(flight.first)
                flight.first = None
                flight.done, flight.target = 0, flight.isl + flight.emitted
                engine.submit(flight)
        second.watched = bool(engine.incoming)
        if second.watched:
            self._events.call_at(self._events.now + self._timeout, self._end_deadlock, second)

    # --- what is sent ----------------------------------------------------------------------------------------------

    def chunk_done(self, flight: Flight, engine: Engine) -> None:
        """Send the computed part of a prompt while the engine computes the rest."""
        second = flight.second
        if not self._overlap or second is None or second.engine is engine or second.gone:
            return
        if flight.stop > flight.emitted + 1:  # it decodes here first: see PUSH_TOKENS
            return
        if not flight.reserved and not flight.waits:
            flight.sink, flight.landing = second, flight.beyond(self._computed_twice)
            self._reserve(flight, second.engine)
        if flight.reserved and flight.transfer is None and flight.done > flight.sent:
            self._send(flight, flight.done - flight.sent)

    def read_history(self, flight: Flight, engine: Engine) -> bool:
        """Read the history of a queued round from the worker that has it: see `pdplugins.sim.core.protocols.Owner`.

        Reads run while earlier prompts compute. They run ahead of the prefill by at most the tokens of one step.
        """
        source, first = flight.history, flight.first
        if source.gone or not (tokens := held(flight, source)):
            flight.history = None  # it has been evicted since, so this worker computes it again
            return False
        ahead = sum(other.target - other.landing[0] for other in engine.reading)
        ahead += sum(other.target - other.done - other.chunk for other in engine.prefilling)
        if ahead >= self._step_tokens or not engine.reserve(flight, flight.target):
            return False
        engine.withdraw(flight)
        flight.history, flight.read_from = None, source
        source.open += 1  # it may drain, and not stop before it has sent all of it
        flight.engine, flight.sent = source.engine, 0
        flight.state = State.MOVING
        flight.sink, flight.landing = first, (tokens, flight.target)
        self._send(flight, tokens)
        return True

    def _send(self, flight: Flight, tokens: int) -> None:
        flight.sent += tokens
        source: Engine = flight.engine
        sink: Worker = flight.sink
        flight.transfer = self._links.start(source.port, sink.engine.port, max(tokens, 0), self._sent, flight)

    def _sent(self, flight: Flight) -> None:
        """Handle the end of a transfer of a chunk, of the last part, or of a session's history."""
        flight.transfer = None
        tokens = flight.landing[0]
        if flight.state != State.MOVING:
            if flight.done > flight.sent:
                self._send(flight, flight.done - flight.sent)
        elif tokens > flight.sent:
            self._send(flight, tokens - flight.sent)
        elif self._polled:
            self._once_seen(flight.sink.engine, self._found, (flight, flight.retries))
        else:
            self._arrived(flight)

    def _found(self, of: tuple[Flight, int]) -> None:
        """Take a request whose KV cache has arrived, unless it has left the transfer meanwhile.

        :param of: the request, and how often it had started again when its KV cache arrived.
        """
        flight, retries = of
        if flight.state == State.MOVING and flight.retries == retries:
            self._arrived(flight)

    def _arrived(self, flight: Flight) -> None:
        """Hand a request over to its next worker, which now has all of its KV cache."""
        source: Engine = flight.engine
        sink: Worker = flight.sink
        tokens, target = flight.landing
        if sink is flight.first:
            sink.engine.read(flight)
            flight.cached = tokens
            if flight.second is None or flight.second.engine is not source:  # the decode worker keeps its copy
                source.settle()
                source.kv.drop(flight.arrival.session or flight.id)
            self._holdings.read(flight)
        else:
            self.count += 1
            self.time += self._events.now - flight.queued
            source.release(flight)
            self._holdings.left(flight.first)
            flight.first = None
            flight.queued = self._events.now
            if self._lifecycle.admission.waiting:
                self._lifecycle.admission.look()
        flight.sent, flight.sink = 0, None
        flight.done, flight.target = tokens, target
        if tokens == flight.isl + flight.emitted:  # the next token came with the KV cache
            self._gaps.token(flight, self._events.now)
            if flight.emitted >= flight.osl:
                flight.engine = sink.engine
                sink.engine.unreserve(flight)
                self._lifecycle.finish(flight)
                return
        sink.engine.receive(flight)
