"""One engine: continuous batching over a KV cache, with chunked prefill, in events instead of steps.

At the end of each step the engine lets finished requests go, takes in what has arrived, makes room for one more token
of every decoding request (preempting the latest), asks for a batch, and starts the next step. As long as a step has
nothing but decodes, and none of them leaves, the steps after it are known: they are one event. Work that arrives in
between cuts the run at the end of the step in progress.

What kind of engine it is (prefill, decode, co-located, unified) is only a matter of what is sent to it.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush

from pdplugins.sim.clock import STEP, Events
from pdplugins.sim.contracts import Batching, EngineSettings, Owner
from pdplugins.sim.decode import DecodeBatch
from pdplugins.sim.flight import Flight, State
from pdplugins.sim.kv import KvCache
from pdplugins.sim.links import Port
from pdplugins.sim.records import Gaps
from pdplugins.sim.steps import StepTimes
from pdplugins.sim.views import LiveView

MANY = 1 << 60
"""More decode steps than any run has."""


IDLE, RUN, STEP_MODE, GONE = range(4)
"""What an engine does: nothing; decode steps, known up to the next change; a step with prefill, or it is in the middle
of an event; it is dead. Plain numbers, because they are compared several times for each request."""


class Engine:
    """One worker's engine."""

    __slots__ = (
        "batch", "batching", "began", "coming", "events", "id", "incoming", "kv", "largest", "line", "lines",
        "mixed", "mode", "most_steps", "owner", "port", "preemptions", "prefilling", "purge", "queue", "ready",
        "run_end", "run_steps", "running", "settings", "slow", "spare", "step_from", "times", "version", "view",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913, PLR0917 - all of it is the simulation's
        self,
        view: LiveView,
        times: StepTimes,
        kv: KvCache,
        port: Port,
        settings: EngineSettings,
        batching: Batching,
        events: Events,
        owner: Owner,
        gaps: Gaps,
    ) -> None:
        self.id = view.id
        self.view = view
        self.times = times
        self.kv = kv
        self.port = port
        self.settings = settings
        self.batching = batching
        self.events = events
        self.owner = owner
        self.batch = DecodeBatch(gaps)
        self.queue: deque[Flight] = deque()
        """Waits for prefill; nothing of it is in the KV cache unless `reserved`."""
        self.prefilling: list[Flight] = []
        """Has its room, and prefills chunk by chunk."""
        self.running: list[Flight] = []
        """What the current step prefills."""
        self.ready: deque[Flight] = deque()
        self.coming = 0
        """Requests that have room here and are on their way."""
        self.incoming: deque[Flight] = deque()
        """Waits elsewhere for room here."""
        self.spare = int(kv.capacity * settings.watermark)
        self.largest = kv.capacity - self.spare
        """Tokens that a request may come with."""
        self.mode = IDLE
        self.version = 0
        self.run_steps = 0
        self.run_end = 0
        self.step_from = 0
        self.mixed = 0
        self.most_steps = MANY
        self.began = -1
        """When it last decided what to run."""
        self.purge = False
        """Requests that are to be given up: those with an `error`."""
        self.preemptions = 0
        self.slow = (1.0, 1.0)
        self.lines = times.lines(1.0)
        self.line = times.line(1)
        """Step times of the run in progress."""

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
        load.queued_tokens += flight.target - flight.done
        if self.mode != RUN or len(self.queue) == 1 or self.batching.always_ask:
            self.wake()

    def receive(self, flight: Flight) -> None:
        """Take in a request whose KV cache has come, into room that was reserved."""
        flight.engine = self
        flight.kv, flight.reserved = flight.reserved, 0
        self.coming -= 1
        if flight.target > flight.done:  # holds its room: it must not wait behind what waits for room
            flight.state = State.PREFILL
            flight.queued = self.events.now
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

    def reserve(self, flight: Flight, tokens: int) -> bool:
        """Take room for a request that comes with its KV cache. False when it has to wait: see `Owner.room`.

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

    def _take_for(self, flight: Flight, tokens: int) -> None:
        kv = self.kv
        kv.room -= tokens
        if kv.idle_tokens > kv.room:
            kv.shrink(kv.room)
        self.coming += 1
        flight.reserved = tokens

    def unreserve(self, flight: Flight) -> None:
        """Give back what was reserved for a request that does not come."""
        if self.kv.idle_tokens:
            self.settle()
        self.kv.give(flight.reserved)
        self.coming -= 1
        flight.reserved = 0

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
            self.owner.room(self)
        if self.queue:
            self.wake()

    def forget(self, flight: Flight) -> None:
        """Drop the KV cache of a request."""
        self.kv.room += flight.kv
        flight.kv = 0
        if flight.pins:
            self.kv.unpin(flight.pins)
            flight.pins, flight.block_hits = (), 0

    def wake(self) -> None:
        """Decide anew at the end of the step in progress."""
        if self.mode == IDLE:
            self.mode = STEP_MODE
            self.batch.time = self.events.now
            self._next()
        elif self.mode == RUN and self.run_steps and self._cut():
            self._schedule(self.batch.time)

    @property
    def busy(self) -> bool:
        """Whether it computes something."""
        return self.mode in (RUN, STEP_MODE)

    def settle(self) -> None:
        """Evict what the run in progress has pushed out of the cache by now."""
        kv = self.kv
        if self.mode == RUN and kv.idle_tokens > (left := kv.room - self.run_steps * self.batch.size):
            if not self._cut():
                kv.shrink(left)
            elif not self.run_steps:
                self._resume()

    def running_tokens(self) -> int:
        """Return the tokens of the step in progress, and of the requests that join the next one."""
        batch = self.batch
        tokens = batch.context + sum(flight.context for flight in self.ready)
        now = self.events.now
        if self.mode == RUN and self.run_steps and (batch.time < now or (batch.time == now and self.began == now)):
            started = self.line.until(batch.context, now - batch.time or 1)[0]
            tokens += min(started, self.run_steps) * batch.size
        elif self.mode == STEP_MODE:
            tokens += self.mixed + sum(flight.chunk for flight in self.running)
        return tokens

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
        if batch.leaves and batch.leaves[0][0] == batch.steps:
            gone = batch.leaving()
            self.view.load.running_requests -= len(gone)
            leg_done = self.owner.leg_done
            for flight in gone:
                flight.state = State.MOVING
                leg_done(flight, self)
        self._next()

    def _advance(self, steps: int, end: int) -> None:
        batch, kv = self.batch, self.kv
        kv.room -= steps * batch.size
        if kv.idle_tokens > kv.room:
            kv.shrink(kv.room)
        batch.advance(self.line, steps, end)

    def _finish_prefill(self) -> None:
        now, batch = self.events.now, self.batch
        if self.mixed:
            batch.one_step(now)
        batch.time = now
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
        if flight.arrival.blocks:
            flight.pins = [*flight.pins, *self._share(flight)]
        if flight.stop:
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

    def _share(self, flight: Flight) -> list[int]:
        """Let other requests use the prompt's blocks."""
        blocks = flight.arrival.blocks
        whole = min(flight.done // self.kv.block_tokens, len(blocks))
        added = self.kv.share(blocks[flight.block_hits : whole])
        flight.kv -= len(added) * self.kv.block_tokens
        return added

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
        if (self.queue or self.prefilling) and (chunks := self.batching.compose(self)):
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
            self.view.load.queued_tokens -= flight.target - flight.done
        flight.state = State.MOVING
        self.owner.purged(flight)

    def abandon(self) -> list[Flight]:
        """Die: stop at once and return every request that was here, with the tokens that it had by now."""
        batch, now = self.batch, self.events.now
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

    def _take_prompt(self, flight: Flight) -> bool:
        """Take room for a prompt, less what is cached of it: prefix blocks, or the history of its session."""
        kv, room = self.kv, self.kv.room - self.batch.size - self.spare
        arrival = flight.arrival
        if not arrival.blocks and arrival.session is None:
            if room < flight.target:
                return False
            kv.room -= flight.target
            if kv.idle_tokens > kv.room:
                kv.shrink(kv.room)
            flight.kv = flight.target
            return True
        hits = min(kv.match(arrival.blocks), (flight.target - 1) // kv.block_tokens) if arrival.blocks else 0
        shared = arrival.blocks[:hits]
        private = flight.target - hits * kv.block_tokens
        if room < private + kv.idle_among(shared):
            return False
        cached = hits * kv.block_tokens
        if arrival.session is not None:
            cached = max(cached, min(kv.drop(arrival.session), flight.target - 1, flight.isl))
        kv.pin(shared)
        kv.take(private)
        flight.kv, flight.pins, flight.block_hits, flight.done = private, list(shared), hits, cached
        self.view.load.queued_tokens -= cached
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
        self.step_from = batch.time
        self._schedule(batch.time + took)

    def _run(self) -> None:
        """Decode until someone leaves, or the KV cache is full."""
        batch = self.batch
        steps = batch.leaves[0][0] - batch.steps
        if steps * batch.size > self.kv.room or steps > self.most_steps:
            steps = min(self.kv.room // batch.size, self.most_steps)
        line = self.line = self.lines.get(batch.size) or self.times.line(batch.size, self.slow[1])
        self.mode = RUN
        self.run_steps = steps
        end = self.run_end = batch.time + line.span(batch.context, steps)
        events = self.events
        version = self.version = self.version + 1
        sequence = events.sequence = events.sequence + 1
        heappush(events.heap, (end, STEP, sequence, self, version))

    def _resume(self) -> None:
        """Go on after a cut that changed nothing for the queue."""
        if self.batch.size <= self.kv.room:
            self._run()
        else:
            self._schedule(self.batch.time)

    def _cut(self) -> bool:
        """Shorten the run to the step in progress. False when that is its last one anyway."""
        batch, now = self.batch, self.events.now
        elapsed = now - batch.time
        if elapsed > 0 or (elapsed == 0 and self.began == now):  # a step that began at this very instant has begun
            steps, took = self.line.until(batch.context, elapsed or 1)
            if steps >= self.run_steps:
                return False
            self._advance(steps, batch.time + took)
        self.run_steps = 0
        return True

    def _schedule(self, time: int) -> None:
        events = self.events
        version = self.version = self.version + 1
        sequence = events.sequence = events.sequence + 1
        heappush(events.heap, (time, STEP, sequence, self, version))
