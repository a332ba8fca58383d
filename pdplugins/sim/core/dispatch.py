"""Takes each request from its arrival to its last token, over the workers that the router chose."""

from __future__ import annotations

from typing import Final

from pdplugins.sim.core.clock import TICKS_PER_S, Events, seconds, ticks
from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.fleet import Fleet, Worker
from pdplugins.sim.core.flight import Arrival, Flight, State
from pdplugins.sim.core.links import Links
from pdplugins.sim.core.records import Gaps, Record, record, unsent
from pdplugins.sim.core.routing import Routing
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.window import Window

PUSH_TOKENS: Final = 64
"""Tokens of a chunk of KV cache, where it is sent chunk by chunk and the first worker decodes too. A link moves a chunk
in far less time than it takes to decode as many tokens. So all but the last, unfinished one go just before the end, and
take room on the second worker no earlier than then; where there is none by then, all of it goes when there is."""


class Dispatcher:
    """The owner of all engines: see `pdplugins.sim.core.engine.Owner`."""

    def __init__(
        self, events: Events, fleet: Fleet, links: Links, routing: Routing, settings: SimSettings, gaps: Gaps
    ) -> None:
        self.events = events
        self.links = links
        self.records: list[Record] = []
        self.open = 0
        """Requests that have come and not ended, and rounds of sessions that will come."""
        self.arrived = 0
        self.more = True
        """Whether the workload has more."""
        self.retries = 0
        self.handoffs = 0
        self.handoff = 0
        """Time between the end of a request's part on its first worker and its arrival on the second, over all."""
        self.last_end = 0
        self._fleet = fleet
        self._routing = routing
        self._settings = settings
        self._gaps = gaps
        self._windows = gaps.windows
        self._gives_token = settings.first_token == "prefill"  # noqa: S105 - no password
        self._computed_twice = int(settings.first_token == "decode")  # noqa: S105 - no password
        """Tokens of a prompt that the decode worker computes again, to get the first token out of it."""
        self._timeout = ticks(settings.handoff_timeout_s)
        self._stranded: dict[int, Flight] = {}
        self._flights: list[Flight | None] = []
        """All requests by index; None for those that have ended."""
        self._bound: dict[str, str] = {}
        fleet.changed = self._workers_changed

    def watched(self) -> Window:
        """Return a new window on what clients do and feel."""
        window = Window()
        self._windows.append(window)
        return window

    # --- arrival ---------------------------------------------------------------------------------------------------

    def arrive(self, arrival: Arrival) -> None:
        """Take in a request."""
        now = self.events.now
        flight = Flight(self.arrived, arrival, now)
        self._flights.append(flight)
        self.arrived += 1
        self.open += 1
        for window in self._windows:
            window.arrived(flight)
        if arrival.cancel_after_s is not None:
            self.events.call_at(now + ticks(arrival.cancel_after_s), self.cancel, flight)
        self._place(flight)

    def _place(self, flight: Flight) -> None:
        fleet = self._fleet
        if not fleet.ready:
            self._stranded[flight.index] = flight
            return
        session = flight.arrival.session
        bound = None if session is None else self._bound.get(session)
        placement = self._routing.on_arrival(flight, bound, fleet, self.events.now)
        prompt, split = flight.isl + flight.emitted, placement.split
        first = fleet.alive[placement.first]
        second = None if placement.second is None else fleet.alive[placement.second]
        if second is not None and split <= 0:
            first = second
        flight.first, flight.second = first, second
        split = prompt if second is None else split
        flight.plan(prompt, split, alone=second is first, gives_token=self._gives_token)
        flight.names = placement.first, placement.second
        first.open += 1
        if second is not None and second is not first:
            second.open += 1
        flight.history, flight.expected = None, 0
        if bound is not None:
            self._expect_history(flight, fleet.workers.get(bound))
        engine = first.engine
        engine.submit(flight)
        if flight.history is not None and engine.queue and engine.queue[0] is flight:
            self.read_history(flight, engine)

    def _expect_history(self, flight: Flight, source: Worker | None) -> None:
        """Note where the history of a round is: here, or on `source`, from where it is read when its turn comes."""
        here = source is flight.first
        if source is None or not (here or self._settings.history == "transfer"):
            return
        if tokens := self._held(flight, source):
            flight.expected = tokens
            flight.history = None if here else source

    @staticmethod
    def _held(flight: Flight, source: Worker) -> int:
        """Return the tokens of a round's prompt that its session has left on `source`."""
        source.engine.settle()
        return min(source.engine.kv.held(flight.arrival.session or flight.id), flight.target - 1)

    def read_history(self, flight: Flight, engine: Engine) -> bool:
        """Read the history of a queued round from the worker that has it: see `pdplugins.sim.core.protocols.Owner`.

        Reads run while earlier prompts compute, and no further ahead than one step's tokens.
        """
        source, first = flight.history, flight.first
        if source.gone or not (tokens := self._held(flight, source)):
            flight.history = None  # it has gone meanwhile, and is computed anew
            return False
        ahead = sum(other.target - other.landing[0] for other in engine.reading)
        ahead += sum(other.target - other.done - other.chunk for other in engine.prefilling)
        if ahead >= self._settings.engine.step_tokens or not engine.reserve(flight, flight.target):
            return False
        engine.withdraw(flight)
        flight.history = None
        flight.engine, flight.sent = source.engine, 0
        flight.state = State.MOVING
        flight.sink, flight.landing = first, (tokens, flight.target)
        self._send(flight, tokens)
        return True

    # --- from one worker to the next -------------------------------------------------------------------------------

    def leg_done(self, flight: Flight, engine: Engine) -> None:
        """Finish a request, or take it to its second worker."""
        if flight.error is not None:
            self._end_on(flight, flight.error)
        elif flight.emitted >= flight.osl:
            self._finish(flight, engine)
        else:
            second = flight.second
            if second is None or second.gone:
                second = self._second(flight)
            if second is None:
                self._again(flight, f"worker {engine.id} found no second worker")
            elif second.engine is not engine:
                self._move(flight, second)
            elif flight.stop:
                flight.stop = flight.osl
                engine.keep(flight)
            elif flight.target == flight.isl + flight.emitted:  # it stays where its prompt was computed
                flight.stop = flight.osl
                self._token(flight)
                if flight.emitted < flight.osl:
                    engine.keep(flight)
                else:
                    self._finish(flight, engine)
            else:  # the worker for the rest of the prompt is gone, and this one was chosen instead
                engine.release(flight)
                flight.stop, flight.done, flight.target = flight.osl, 0, flight.isl + flight.emitted
                engine.submit(flight)

    def _second(self, flight: Flight) -> Worker | None:
        """Ask the router where the rest of a request runs."""
        if not self._fleet.ready:
            return None
        name = self._routing.on_prefill_done(flight, self._fleet, self.events.now)
        flight.second = second = self._fleet.alive[name]
        flight.names = flight.names[0], name
        if second is not flight.first:
            second.open += 1
        return second

    def _move(self, flight: Flight, second: Worker) -> None:
        """Take a request with its KV cache to `second`, which reserves room before anything is sent."""
        flight.sink, flight.landing = second, flight.beyond(self._computed_twice)
        flight.stop = flight.osl
        flight.queued = self.events.now
        stays = self._settings.no_room == "stay" and flight.landing[0] > flight.isl and not flight.waits
        if not flight.reserved and not self._reserve(flight, second.engine, wait=not stays):
            if stays:
                self._stay(flight)
            return
        if flight.transfer is None:
            if self._settings.overlap and flight.landing[0] > flight.isl:
                flight.sent = max(flight.sent, flight.landing[0] - flight.landing[0] % PUSH_TOKENS)
            self._send(flight, flight.landing[0] - flight.sent)

    def _stay(self, flight: Flight) -> None:
        """Let a request decode on where it does: its second worker has no room, and to wait would hold room in vain."""
        first = flight.first
        self._left(flight.second)
        flight.sink, flight.second = None, first
        flight.names = flight.names[0], flight.names[0]
        first.engine.keep(flight)

    def _watch(self, second: Worker) -> None:
        """Untie workers that wait for each other's room.

        A worker that computes nothing while requests wait for it will not get room by itself: the one that has waited
        longest gives up its KV cache where it is, and is computed anew.
        """
        engine = second.engine
        if engine.incoming and not engine.busy and not engine.coming:
            flight = engine.incoming[0]
            if flight.state == State.MOVING:
                self._drop(flight)
                self._left(flight.first)
                flight.first = None
                flight.done, flight.target = 0, flight.isl + flight.emitted
                engine.submit(flight)
        second.watched = bool(engine.incoming)
        if second.watched:
            self.events.call_at(self.events.now + self._timeout, self._watch, second)

    def _reserve(self, flight: Flight, engine: Engine, *, wait: bool = True) -> bool:
        """Reserve room for a request on its next worker. False when it has to wait, if it may, or will never fit."""
        if flight.waits:
            return False
        need = flight.landing[1]
        if engine.incoming or not engine.reserve(flight, need):
            if not wait:
                return False
            if need >= engine.largest:
                if flight.state == State.MOVING:  # until then its engine computes it, and it ends when that is done
                    why = f"needs {need + 1} tokens of KV cache, worker {engine.id} has room for {engine.largest}"
                    self._end_on(flight, why)
                return False
            flight.waits, flight.queued = True, self.events.now
            engine.incoming.append(flight)
            if not flight.sink.watched:
                flight.sink.watched = True
                self.events.call_at(self.events.now + self._timeout, self._watch, flight.sink)
            return False
        if flight.may_be_cached:
            self._use_history(flight, engine)
        return True

    def _use_history(self, flight: Flight, engine: Engine) -> None:
        """What the session left on the second worker need not be sent again."""
        session = flight.arrival.session
        if session is not None:
            engine.settle()
            flight.sent = max(flight.sent, min(engine.kv.drop(session), max(flight.landing[0] - 1, 0)))

    def room(self, engine: Engine) -> None:
        """Let requests come that waited for room on `engine`, first come first served."""
        incoming = engine.incoming
        self.links.gather()
        while incoming and engine.reserve(incoming[0], incoming[0].landing[1]):
            flight = incoming.popleft()
            flight.waits = False
            if flight.may_be_cached:
                self._use_history(flight, engine)
            ready = flight.landing[0] if flight.state == State.MOVING else flight.done
            if ready > flight.sent or flight.state == State.MOVING:
                self._send(flight, ready - flight.sent)
        self.links.spread()

    def chunk_done(self, flight: Flight, engine: Engine) -> None:
        """Send what is computed of a prompt, while the rest computes."""
        second = flight.second
        if not self._settings.overlap or second is None or second.engine is engine or second.gone:
            return
        if flight.stop > flight.emitted + 1:  # it decodes here first: see PUSH_TOKENS
            return
        if not flight.reserved and not flight.waits:
            flight.sink, flight.landing = second, flight.beyond(self._computed_twice)
            self._reserve(flight, second.engine)
        if flight.reserved and flight.transfer is None and flight.done > flight.sent:
            self._send(flight, flight.done - flight.sent)

    def _send(self, flight: Flight, tokens: int) -> None:
        flight.sent += tokens
        flight.transfer = self.links.start(
            flight.engine.port, flight.sink.engine.port, max(tokens, 0), self._sent, flight
        )

    def _sent(self, flight: Flight) -> None:
        """Handle the end of a transfer: of a chunk, of the rest, or of a session's history."""
        flight.transfer = None
        held, target = flight.landing
        if flight.state != State.MOVING:
            if flight.done > flight.sent:
                self._send(flight, flight.done - flight.sent)
            return
        if held > flight.sent:
            self._send(flight, held - flight.sent)
            return
        source, sink = flight.engine, flight.sink
        if sink is flight.first:
            sink.engine.read(flight)
            if flight.second is None or flight.second.engine is not source:  # where it decodes it stays
                source.settle()
                source.kv.drop(flight.arrival.session)
        else:
            self.handoffs += 1
            self.handoff += self.events.now - flight.queued
            source.release(flight)
            self._left(flight.first)
            flight.first = None
            flight.queued = self.events.now
        flight.sent, flight.sink = 0, None
        flight.done, flight.target = held, target
        if held == flight.isl + flight.emitted:  # the next token came with the KV cache
            self._token(flight)
            if flight.emitted >= flight.osl:
                flight.engine = sink.engine
                sink.engine.unreserve(flight)
                self._finish(flight, sink.engine)
                return
        sink.engine.receive(flight)

    def _token(self, flight: Flight) -> None:
        """Give the client a token that is out already."""
        now = self.events.now
        if not flight.emitted:
            self._gaps.first_token(flight, now)
        flight.token(now)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _finish(self, flight: Flight, engine: Engine) -> None:
        if flight.sink is not None:  # chunks were on their way, but the first token was the last one too
            self._drop(flight)
        engine.release(flight)
        now = self.events.now
        if flight.may_be_cached and flight.arrival.rounds:
            self._next_round(flight, engine)
        ttft_s = (flight.first_token - flight.arrived) / TICKS_PER_S
        if self._routing.learns is not None:
            self._routing.on_finished(flight)
        gaps = flight.osl - 1
        tpot_s = (flight.last_token - flight.first_token) / (gaps * TICKS_PER_S) if gaps else 0.0
        for window in self._windows:
            window.ended(flight, tpot_s)
        self._record(flight, ttft_s, tpot_s)
        self.last_end = now

    def _next_round(self, flight: Flight, engine: Engine) -> None:
        arrival = flight.arrival
        session = arrival.session or flight.id
        self.open += 1
        at = self.events.now + ticks(arrival.rounds[0].gap_s)
        coming = arrival.following(seconds(at), session, flight.isl + flight.osl)
        if coming.history_tokens:
            engine.kv.keep(session, min(flight.context, coming.history_tokens))
            self._bound[session] = engine.id
        else:
            self._bound.pop(session, None)
        self.events.call_at(at, self._round, coming)

    def _round(self, arrival: Arrival) -> None:
        self.open -= 1
        self.arrive(arrival)

    def failed(self, flight: Flight, why: str) -> None:
        """End a request without an answer; it holds nothing any more."""
        flight.error = why
        tokens = flight.emitted
        ttft_s = seconds(flight.first_token - flight.arrived) if tokens else None
        self._record(flight, ttft_s, None)
        self.last_end = self.events.now
        if why != "cancelled":
            self._unsent(flight.arrival)

    def _unsent(self, arrival: Arrival) -> None:
        """Record the rounds that will not come as failed: else a policy that ends sessions early would look better."""
        now_s = seconds(self.events.now)
        while arrival.rounds:
            arrival = arrival.following(now_s, arrival.session or "", arrival.isl_tokens + arrival.osl_tokens)
            self.records.append(unsent(str(self.arrived), arrival))
            self._flights.append(None)
            self.arrived += 1

    def _record(self, flight: Flight, ttft_s: float | None, tpot_s: float | None) -> None:
        self.records.append(record(flight, ttft_s, tpot_s, self.events.now))
        flight.state = State.OVER
        self._flights[flight.index] = None
        self.open -= 1
        self._leave(flight)

    def _leave(self, flight: Flight) -> None:
        """Take a request off the workers that it was placed on."""
        first, second = flight.first, flight.second
        if first is not None:
            self._left(first)
        if second is not None and second is not first:
            self._left(second)
        flight.first = flight.second = None

    def _left(self, worker: Worker) -> None:
        worker.open -= 1
        if worker.draining and not worker.open:
            self._fleet.look(worker)

    def cancel(self, flight: Flight) -> None:
        """The client has gone away: give the request up, at the end of the step in progress if it takes part in it."""
        if flight.state == State.OVER:
            return
        if flight.state in (State.WAITING, State.MOVING):
            self._stranded.pop(flight.index, None)
            self._end_on(flight, "cancelled")
        else:
            flight.error = "cancelled"
            flight.engine.purge = True
            flight.engine.wake()

    def purged(self, flight: Flight) -> None:
        """End a request that its engine has given up on demand."""
        self._end_on(flight, flight.error or "given up")

    def _end_on(self, flight: Flight, why: str) -> None:
        """End a request that waits to leave its engine, or that waits for any."""
        self._drop(flight)
        self.failed(flight, why)

    def _drop(self, flight: Flight) -> None:
        """Free what a request holds on the workers where it is and where it goes."""
        if flight.transfer is not None:
            self.links.stop(flight.transfer)
            flight.transfer = None
        sink = flight.sink
        if sink is not None and not sink.gone:
            if flight in sink.engine.reading:
                sink.engine.read(flight)
            if flight.waits:
                sink.engine.incoming.remove(flight)
            if flight.reserved:
                sink.engine.unreserve(flight)
        flight.reserved, flight.waits, flight.sent = 0, False, 0
        engine = flight.engine
        if engine is not None and flight.state == State.MOVING:
            engine.release(flight)
        if sink is not None and not sink.gone:
            sink.engine.freed()
        flight.sink = None

    # --- workers that come and go ----------------------------------------------------------------------------------

    def worker_dies(self, name: str) -> None:
        """Take a worker away, with everything in it; its requests start anew elsewhere, as often as they may."""
        worker = self._fleet.workers[name]
        engine = worker.engine
        live = self._live()
        leaving = [flight for flight in live if flight.engine is engine and flight.state == State.MOVING]
        lost = [*engine.abandon(), *leaving]
        self._fleet.kill(worker)
        known = {flight.index for flight in lost}
        coming = [flight for flight in live if flight.sink is worker and flight.index not in known]
        for flight in sorted((*lost, *coming), key=lambda flight: flight.index):
            if flight.index in known or flight.state == State.MOVING:
                self._again(flight, f"worker {name} died")
            else:  # still prefills elsewhere: it looks for another second worker when it is done
                self._drop(flight)

    def _again(self, flight: Flight, why: str) -> None:
        """Place a request anew: its prompt and the tokens it has had are computed again."""
        self._drop(flight)
        if flight.error is not None:
            self.failed(flight, flight.error)
        elif flight.retries >= self._settings.retries:
            self.failed(flight, f"{why}, after {flight.retries} retries")
        else:
            flight.retries += 1
            self.retries += 1
            flight.state = State.WAITING
            self._leave(flight)
            self._place(flight)

    def _live(self) -> list[Flight]:
        """Return the requests that have not ended, in the order of arrival."""
        return [flight for flight in self._flights if flight is not None]

    def _workers_changed(self) -> None:
        waiting, self._stranded = self._stranded, {}
        for flight in waiting.values():
            self._place(flight)

    def give_up(self) -> None:
        """End what nothing can serve any more."""
        for flight in self._live():
            self._end_on(flight, "no worker to serve it")
