"""One engine: continuous batching over a KV cache, with chunked prefill, in events instead of steps.

At the end of each step the engine lets finished requests go, takes in what has arrived, makes room for one more token
of every decoding request (preempting the latest), asks for a batch, and starts the next step. As long as a step has
nothing but decodes, and none of them leaves, the steps after it are known: they are one event. Work that arrives in
between cuts the run at the end of the step in progress.

What kind of engine it is (prefill, decode, co-located, unified) is only a matter of what is sent to it.
"""

from __future__ import annotations

from pdplugins.sim.core.flight import Flight, State
from pdplugins.sim.core.runs import GONE, IDLE, MANY, RUN, STEP_MODE, Runner


class Engine(Runner):
    """One worker's engine."""

    __slots__ = ()

    # --- what arrives ----------------------------------------------------------------------------------------------

    def submit(self, flight: Flight) -> None:
        """Queue a request for prefill."""
        flight.engine = self
        if flight.target >= self.largest:
            self._refuse(flight)
            return
        flight.state = State.QUEUED
        flight.queued = self.events.now
        self.queue.append(flight)
        load = self.view.load
        load.queued_requests += 1
        load.queued_tokens += flight.target - flight.done - flight.expected
        if len(self.queue) == 1 or self.batching.always_ask:
            self.wake()

    def receive(self, flight: Flight) -> None:
        """Take in a request whose KV cache has come, into room that was reserved."""
        flight.engine = self
        flight.kv, flight.reserved = flight.reserved, 0
        self.coming -= 1
        if flight.target > flight.done:  # holds its room: it must not wait behind what waits for room
            flight.state = State.PREFILL
            self.prefilling.append(flight)
            self.view.load.queued_tokens += flight.target - flight.done
            self.wake()
            return
        flight.state = State.READY
        self.ready.append(flight)
        self.view.load.running_requests += 1
        if self.mode == IDLE:
            self.wake()
        elif (
            self.mode == RUN
            and self.run_steps
            and len(self.ready) == 1
            and self.batch.size < self.settings.max_batch
            and not (self.queue and self.batching.always_ask)
            and self._cut()
        ):
            # Nothing but this can change before the step in progress ends, so the request may join already.
            self.ready.popleft()
            flight.state = State.DECODE
            self.batch.join(flight)
            self._resume()

    def withdraw(self, flight: Flight) -> None:
        """Take a request out of the queue while its history is read; it still counts as waiting."""
        self.queue.remove(flight)
        self.reading.append(flight)

    def read(self, flight: Flight) -> None:
        """Forget a request whose history has been read, or will not be."""
        self.reading.remove(flight)
        load = self.view.load
        load.queued_requests -= 1
        load.queued_tokens -= flight.target - flight.done - flight.expected
        flight.expected = 0

    def reserve(self, flight: Flight, tokens: int) -> bool:
        """Take room for a request that comes with its KV cache. False when it has to wait: see `Owner.capacity_freed`.

        It takes a place in the batch too, or requests that cannot run would fill the cache of those that do.
        """
        batch = self.batch
        size = batch.size
        if size + self.coming + len(self.ready) + len(self.prefilling) >= self.settings.max_batch:
            return False
        need = tokens + size + len(self.ready) + self.spare
        if self.mode != RUN or self.kv.room - self.run_steps * size >= need:
            if self.kv.room < need:
                return False
            self._take_for(flight, tokens)
            return True
        if not self.run_steps or not self._cut():
            return False
        if fits := self.kv.room >= need:
            self._take_for(flight, tokens)
        self._resume()
        return fits

    def release(self, flight: Flight) -> None:
        """Free what a request holds here."""
        if self.kv.idle_tokens:
            self.settle()  # what was pushed out before now is gone, although there is room again
        self.kv.room += flight.kv
        flight.kv = 0
        if flight.pins:
            self.forget(flight)
        if self.incoming or self.queue:
            self.freed()

    def freed(self) -> None:
        """Let in what waited for room."""
        if self.incoming:
            self.owner.capacity_freed(self)
        if self.queue and self.mode != STEP_MODE and self._may_start():
            self.wake()

    def wake(self) -> None:
        """Decide anew at the end of the step in progress."""
        if self.mode == IDLE:
            self.mode = STEP_MODE
            self.batch.time = self.events.now
            self._next()
        elif self.mode == RUN and self.run_steps and self._cut():
            self._schedule(self.batch.time)

    def set_slow(self, prefill: float, decode: float) -> None:
        """Take this many times as long for every step from the next one on."""
        self.slow = (prefill, decode)
        self.lines = self.times.lines(decode)
        if self.mode != IDLE:
            self.wake()

    # --- the end of a step -----------------------------------------------------------------------------------------

    def on_step(self, version: int) -> None:
        """Handle the end of a step, or of a run of them."""
        if version != self.version:
            return
        batch = self.batch
        if self.mode == STEP_MODE:
            self._finish_prefill()
        else:
            self.mode = STEP_MODE
            if steps := self.run_steps:
                self._advance(steps, self.run_end)
        if batch.first_leave == batch.steps:
            gone = batch.leaving()
            self.view.load.running_requests -= len(gone)
            leg_done = self.owner.leg_done
            for flight in gone:
                flight.state = State.MOVING
                leg_done(flight, self)
        self._next()

    def _finish_prefill(self) -> None:
        now, batch = self.events.now, self.batch
        if self.mixed:
            batch.one_step(now)
        batch.time = now
        self.prefill_time += self.step_took
        chunks, self.running = self.running, []
        self.view.load.running_requests -= len(chunks)
        if self.batching.always_ask:
            self.batching.stepped(now - self.step_from)
        for flight in chunks:
            flight.done += flight.chunk
            flight.chunk = 0
            if flight.done == flight.target:
                self.prefilling.remove(flight)
                self._prefilled(flight, now)
            else:
                self.owner.chunk_done(flight, self)

    def _prefilled(self, flight: Flight, now: int) -> None:
        if flight.may_be_cached and flight.arrival.blocks:
            flight.pins = [*flight.pins, *self._share(flight)]
        if not flight.emitted and flight.target == flight.isl:
            self.first_tokens.add(now, now - flight.arrived)
        if flight.stop:
            if not flight.emitted:
                self.batch.gaps.first_token(flight, now)
            flight.token(now)
        if flight.emitted >= flight.stop:
            self._part_done(flight)
        else:
            self.keep(flight)

    def keep(self, flight: Flight) -> None:
        """Let a request that has computed its prompt here decode here."""
        flight.state = State.READY
        self.ready.append(flight)
        self.view.load.running_requests += 1

    def _part_done(self, flight: Flight) -> None:
        flight.state = State.MOVING
        self.owner.leg_done(flight, self)

    # --- the next step ---------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Start the next step at the end of the last one, which is now."""
        batch = self.batch
        self.began = self.events.now
        if self.purge:
            self._purge()
        if self.ready:
            self._admit()
        if self.kv.room < batch.size:
            self._make_room()
        self.most_steps = MANY
        if (self.prefilling or (self.queue and self._may_start())) and (chunks := self.batching.compose(self)):
            self._prefill(chunks)
        elif batch.size:
            self._run()
        else:
            self.mode = IDLE

    def _purge(self) -> None:
        """Give up what is marked with an error."""
        self.purge = False
        load = self.view.load
        for flight in [flight for flight in self.queue if flight.error]:
            self.queue.remove(flight)
            load.queued_requests -= 1
            self._give_up(flight)
        for flight in [flight for flight in self.prefilling if flight.error]:
            self.prefilling.remove(flight)
            self._give_up(flight)
        for flight in [flight for flight in self.ready if flight.error]:
            self.ready.remove(flight)
            load.running_requests -= 1
            self._give_up(flight)
        for flight in [flight for flight in self.batch.members() if flight.error]:
            self.batch.remove(flight)
            load.running_requests -= 1
            self._give_up(flight)

    def _give_up(self, flight: Flight) -> None:
        if flight.state in (State.QUEUED, State.PREFILL):
            self.view.load.queued_tokens -= flight.target - flight.done - flight.expected
        flight.state = State.MOVING
        self.owner.purged(flight)

    def abandon(self) -> list[Flight]:
        """Die: stop at once and return every request that was here, with the tokens that it had by now."""
        batch, now = self.batch, self.events.now
        self.prefill_time, self.decode_time = self.worked()
        if self.mode == RUN:
            if self.run_steps and batch.time < now:
                steps, took = self.line.until(batch.context, now - batch.time)
                if batch.time + took > now:
                    steps -= 1
                if steps:
                    batch.advance(self.line, steps, batch.time + self.line.span(batch.context, steps))
            elif batch.time > now:
                batch.undo_step()
        decoding = batch.members()
        for flight in decoding:
            batch.remove(flight)
        lost = [*self.queue, *self.prefilling, *self.ready, *decoding]
        for flight in lost:
            flight.kv, flight.pins, flight.block_hits = 0, (), 0
        self.running = []
        self.incoming.clear()
        self.mode = GONE
        self.version += 1
        return lost

    def _admit(self) -> None:
        """Let requests join the decode batch."""
        ready, batch = self.ready, self.batch
        while ready and batch.size < self.settings.max_batch:
            flight = ready.popleft()
            flight.state = State.DECODE
            batch.join(flight)

    def _may_start(self) -> bool:
        """Whether the first request of the queue may find room; what is cached of it shows when it is let in."""
        flight = self.queue[0]
        return (
            self.kv.room - self.batch.size - self.spare >= flight.target
            or flight.history is not None
            or flight.may_be_cached
            or self.batching.always_ask
        )

    def admit(self, flight: Flight) -> bool:
        """Let the first request of the queue prefill, if there is room for its whole prompt."""
        if self.batch.size + self.coming + len(self.ready) + len(self.prefilling) >= self.settings.max_batch:
            return False
        if not self._take_prompt(flight):
            return False
        self.queue.popleft()
        flight.state = State.PREFILL
        self.prefilling.append(flight)
        self.view.load.queued_requests -= 1
        return True

    def _make_room(self) -> None:
        """Preempt the request that joined last, until the others can grow by one token; it computes anew later."""
        batch, load = self.batch, self.view.load
        while self.kv.room < batch.size:
            flight = batch.latest()
            batch.remove(flight)
            load.running_requests -= 1
            self.forget(flight)
            self.preemptions += 1
            flight.done, flight.target = 0, flight.isl + flight.emitted
            if flight.target >= self.largest:
                self._refuse(flight)
                continue
            flight.state = State.QUEUED
            self.queue.appendleft(flight)
            load.queued_requests += 1
            load.queued_tokens += flight.target

    def _refuse(self, flight: Flight) -> None:
        """Fail a request that this engine can never hold."""
        self.owner.failed(
            flight, f"needs {flight.target + 1} tokens of KV cache, worker {self.id} has room for {self.largest}"
        )

    def _prefill(self, chunks: list[Flight]) -> None:
        self.running = chunks
        batch, load = self.batch, self.view.load
        load.running_requests += len(chunks)
        sizes = []
        for flight in chunks:
            load.queued_tokens -= flight.chunk
            sizes.append((flight.chunk, flight.done))
        self.mixed = batch.size if self.settings.order == "decode_first" else 0
        if self.mixed:
            self.kv.take(self.mixed)
        took = self.times.mixed(sizes, self.mixed, batch.context, self.slow)
        self.step_from, self.step_took = batch.time, took
        self._schedule(batch.time + took)
