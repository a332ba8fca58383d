"""One engine: continuous batching over a KV cache, with chunked prefill.

At the end of each step it releases finished requests and takes in new ones. Every decoding request must be able to grow
by one token: if need be the one that joined last is preempted. Then the engine asks for a batch and starts the next
step. Steps that only decode are known ahead until a request leaves: they are one event, a
`pdplugins.sim.core.runs.DecodeRun`. Work that arrives in between cuts the run at the end of the step in progress. An
engine has no kind of its own: the requests sent to it make it a prefill, decode, co-located or unified engine.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush
from typing import Final

from pdplugins.sim.core.clock import STEP, Events, ticks
from pdplugins.sim.core.decode import DecodeBatch
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.flight import Flight, State
from pdplugins.sim.core.gauges import Gauges
from pdplugins.sim.core.kv import KvCache
from pdplugins.sim.core.links import Port
from pdplugins.sim.core.prompt_cache import forget, share_prompt, take_prompt
from pdplugins.sim.core.protocols import Batching, Owner
from pdplugins.sim.core.records import Gaps
from pdplugins.sim.core.runs import Besides, DecodeRun, PrefillStep
from pdplugins.sim.core.steps import StepTimes
from pdplugins.sim.core.views import LiveView
from pdplugins.sim.core.window import Recent

MANY: Final = 1 << 60  # more decode steps than any run has

# What an engine does:
IDLE: Final = 0
RUN: Final = 1  # decode steps that are known up to the next change
STEPPING: Final = 2  # a step with prefill, or it handles an event
GONE: Final = 3  # its worker has died


class Engine:
    """One worker's engine."""

    __slots__ = (
        "batch", "batching", "besides", "coming", "events", "first_tokens", "gauges", "id", "incoming", "kv", "largest",
        "mode", "most_steps", "owner", "port", "preemptions", "prefilling", "purge", "queue", "reading", "ready", "run",
        "settings", "slow", "spare", "step", "times", "version", "view",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913, PLR0917 - all of it is the simulation's
        self,
        view: LiveView,
        times: StepTimes,
        kv: KvCache,
        port: Port,
        settings: EngineSettings,
        batching: Batching[Engine],
        events: Events,
        owner: Owner[Engine],
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
        self.spare = int(kv.capacity * settings.watermark)
        """Tokens of KV cache that must stay free when a request is admitted."""
        self.largest = kv.capacity - self.spare
        """A request with this many tokens or more is refused."""
        self.queue: deque[Flight] = deque()
        """Wait for prefill, and hold no KV cache here."""
        self.reading: list[Flight] = []
        """Hold KV capacity, and wait for the history of their session."""
        self.prefilling: list[Flight] = []
        """Hold KV capacity, and prefill chunk by chunk."""
        self.ready: deque[Flight] = deque()
        """Join the decode batch at the next step."""
        self.batch = DecodeBatch(gaps)
        self.incoming: deque[Flight] = deque()
        """Wait on another worker for KV capacity here."""
        self.coming = 0
        """Requests that have reserved KV capacity here and are on their way."""
        self.mode = IDLE
        self.run = DecodeRun(self.batch, kv, times, events)
        self.version = 0
        """Version of the next event. Queued events of earlier versions are void."""
        self.step = PrefillStep()
        self.besides = Besides(ticks(settings.begin_s))
        self.most_steps = MANY  # decode steps that may pass before the batch scheduler is asked again
        self.purge = False  # whether some requests have an `error`, so that the next step must give them up
        self.slow = (1.0, 1.0)  # slowdown of prefill, and of decode
        self.preemptions = 0
        self.first_tokens = Recent()
        self.gauges = Gauges(self.batch, self.run, self.step, self.ready, times)

    @property
    def busy(self) -> bool:
        """Whether it computes something."""
        return self.mode in (RUN, STEPPING)

    def worked(self) -> tuple[int, int]:
        """Return the ticks spent by now in steps with prefill, and in steps without."""
        now, run, step = self.events.now, self.run, self.step
        if self.mode == RUN:
            return step.worked, run.worked + now - self.batch.time
        return step.worked + (now - step.began if step.chunks else 0), run.worked

    def boundary(self) -> int:
        """Return when it next looks for what others have sent it: at the end of the step in progress, or now."""
        if self.step.chunks:
            return self.step.began + self.step.took
        return self.run.boundary() if self.busy else self.events.now

    def free_tokens(self) -> int:
        """Return the tokens of KV cache that are free or only cached, at the end of the step in progress."""
        return self.kv.free - self.run.grown()

    def prefill_history(self) -> int:
        """Return the tokens that the KV cache has, or is about to read, of all prompts that are not computed yet."""
        waiting = sum([flight.done + flight.expected for flight in self.queue])
        return waiting + sum([flight.done + flight.expected for flight in (*self.reading, *self.prefilling)])

    def awaited(self) -> list[int]:
        """Return the tokens of each request that another worker is done with, and that waits for KV capacity here."""
        return [flight.landing[1] for flight in self.incoming if flight.state == State.MOVING]

    def note_first_tokens(self) -> None:
        """Note the first tokens that the run in progress has given by now."""
        self.run.note_first_tokens()

    def settle(self) -> None:
        """Evict what the growing contexts of the run in progress have displaced from the cache by now."""
        kv = self.kv
        if kv.idle_tokens > (left := kv.free - self.run.steps * self.batch.size):
            if self.run.cut():
                self._resume()
            else:
                kv.shrink(left)

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

    def expect(self) -> None:
        """Work on a request that has come, and whose KV cache will."""
        if self.besides.begin:
            self.besides.begins(self.boundary())
            if self.run.steps and self.run.cut():
                self._resume()

    def receive(self, flight: Flight) -> None:
        """Take in a request whose KV cache has arrived in the capacity that was reserved for it."""
        flight.engine = self
        flight.kv, flight.reserved = flight.reserved, 0
        self.coming -= 1
        if flight.target > flight.done:  # it holds KV cache, so it must not queue behind requests that wait for some
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
            self.run.steps
            and len(self.ready) == 1
            and self.batch.size < self.settings.max_batch
            and not (self.queue and self.batching.always_ask)
            and self.run.cut()
        ):
            # Nothing else can change before the step in progress ends, so the request may join the batch already.
            self.ready.popleft()
            flight.state = State.DECODE
            self.batch.join(flight)
            self._resume()

    def hand_over(self, flight: Flight, work: int) -> None:
        """Compute a prompt's last token again for a late hand-over, in `work` ticks more than a step of a token."""
        flight.state, flight.late, flight.late_work = State.PREFILL, True, work
        flight.done = flight.target - 1
        self.prefilling.insert(0, flight)
        self.view.load.queued_tokens += 1
        self.wake()

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
        """Reserve KV capacity, and a place in the batch, for a request that comes with its KV cache.

        Return False when it has to wait. Without a place, requests that cannot run would fill the KV cache.
        """
        if flight.may_be_cached:
            self.settle()  # what the run has displaced by now is lost
        size, steps = self.batch.size, self.run.steps
        if size + self.coming + len(self.ready) + len(self.prefilling) >= self.settings.max_batch:
            return False
        need = tokens + size + len(self.ready) + self.spare
        if self.kv.free - steps * size >= need:
            self._reserve_for(flight, tokens)
            return True
        if not steps or not self.run.cut():
            return False
        if fits := self.kv.free >= need:
            self._reserve_for(flight, tokens)
        self._resume()
        return fits

    def _reserve_for(self, flight: Flight, tokens: int) -> None:
        if flight.may_be_cached and (session := flight.arrival.session) is not None:
            flight.kept = self.kv.drop(session)  # it is part of `tokens`, which must not evict it
        self.kv.take(tokens)
        self.coming += 1
        flight.reserved = tokens

    def unreserve(self, flight: Flight) -> None:
        """Free what was reserved for a request that will not arrive."""
        if self.kv.idle_tokens:
            self.settle()
        self.kv.give(flight.reserved)
        self.coming -= 1
        flight.reserved = 0

    def release(self, flight: Flight) -> None:
        """Free what a request holds here."""
        if self.kv.idle_tokens:
            self.settle()  # what was displaced before now is lost, even if capacity is free again
        self.kv.free += flight.kv
        flight.kv = 0
        if flight.pins:
            forget(self.kv, flight)
        if self.incoming or self.queue:
            self.freed()

    def freed(self) -> None:
        """Admit requests that waited for KV capacity."""
        if self.incoming:
            self.owner.capacity_freed(self)
        if self.queue and self.mode != STEPPING and self._may_start():
            self.wake()

    def wake(self) -> None:
        """Decide again at the end of the step in progress."""
        if self.mode == IDLE:
            self.mode = STEPPING
            self.batch.time = self.events.now
            self._next()
        elif self.run.steps and self.run.cut():
            self._schedule(self.batch.time)

    def set_slow(self, prefill: float, decode: float) -> None:
        """Make every step from the next one on this many times as long."""
        self.slow = (prefill, decode)
        self.run.set_slow(decode)
        if self.mode != IDLE:
            self.wake()

    def on_step(self, version: int) -> None:
        """Handle the end of a step, or of a run of them."""
        if version != self.version:
            return
        batch = self.batch
        if self.mode == STEPPING:
            self._finish_prefill()
        else:
            self.mode = STEPPING
            if self.run.steps:
                self.run.finish()
        if batch.first_leave == batch.steps:
            gone = batch.leaving()
            self.view.load.running_requests -= len(gone)
            for flight in gone:
                self._part_done(flight)
        self._next()

    def _finish_prefill(self) -> None:
        now, batch, step = self.events.now, self.batch, self.step
        if step.decodes:
            batch.one_step(now)
        batch.time = now
        step.worked += step.took
        chunks, step.chunks = step.chunks, []
        self.view.load.running_requests -= len(chunks)
        if self.batching.always_ask:
            self.batching.stepped(now - step.began)
        for flight in chunks:
            flight.done += flight.chunk
            flight.chunk = 0
            if flight.done == flight.target:
                self.prefilling.remove(flight)
                self._prefilled(flight, now)
            else:
                self.owner.chunk_done(flight, self)

    def _prefilled(self, flight: Flight, now: int) -> None:
        if flight.late:
            flight.late = False
            self._part_done(flight)
            return
        if flight.may_be_cached and flight.arrival.blocks:
            share_prompt(self.kv, flight)
        if not flight.emitted and flight.target == flight.isl:
            self.first_tokens.add(now, now - flight.arrived)
        if flight.stop:
            self.batch.gaps.token(flight, now)
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

    def _next(self) -> None:
        """Start the next step at the end of the last one, which is now."""
        batch = self.batch
        self.run.began = self.events.now
        if self.purge:
            self._purge()
        if self.ready:
            self._admit()
        if self.kv.free < batch.size:
            self._preempt()
        if self.incoming:  # a request that moves or was preempted has left its place in the batch
            self.owner.capacity_freed(self)
        self.most_steps = MANY
        if (self.prefilling or (self.queue and self._may_start())) and (chunks := self.batching.compose(self)):
            self._prefill(chunks)
        elif batch.size:
            self._decode()
        else:
            self.mode = IDLE

    def _purge(self) -> None:
        """Give up the requests that are marked with an error."""
        self.purge = False
        load, batch = self.view.load, self.batch
        all_here = (*self.queue, *self.prefilling, *self.ready, *batch.members())
        for flight in [flight for flight in all_here if flight.error]:
            if flight.state == State.QUEUED:
                self.queue.remove(flight)
                load.queued_requests -= 1
            elif flight.state == State.PREFILL:
                self.prefilling.remove(flight)
            else:
                self.ready.remove(flight) if flight.state == State.READY else batch.remove(flight)
                load.running_requests -= 1
            self._give_up(flight)

    def _give_up(self, flight: Flight) -> None:
        if flight.state in (State.QUEUED, State.PREFILL):
            self.view.load.queued_tokens -= flight.target - flight.done - flight.expected
        flight.state = State.MOVING
        self.owner.purged(flight)

    def abandon(self) -> list[Flight]:
        """Stop at once, as a dead worker does. Return every request that was here, with its tokens by now."""
        batch = self.batch
        self.step.worked, self.run.worked = self.worked()
        self.run.end_now()
        decoding = batch.members()
        for flight in decoding:
            batch.remove(flight)
        lost = [*self.queue, *self.prefilling, *self.ready, *decoding]
        for flight in lost:
            flight.kv, flight.pins, flight.block_hits, flight.chunk = 0, (), 0, 0
        self.step.chunks = []
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
        """Whether the first request of the queue may fit. How much of it is cached shows only when it is admitted."""
        flight = self.queue[0]
        fits = self.kv.free - self.batch.size - self.spare >= flight.target
        return fits or flight.may_be_cached or flight.history is not None or self.batching.always_ask

    def admit(self, flight: Flight) -> bool:
        """Start the prefill of the first request of the queue, if its whole prompt fits."""
        if self.batch.size + self.coming + len(self.ready) + len(self.prefilling) >= self.settings.max_batch:
            return False
        if not take_prompt(self.kv, flight, self.kv.free - self.batch.size - self.spare):
            return False
        load = self.view.load
        load.queued_requests -= 1
        if flight.may_be_cached:
            load.queued_tokens -= flight.done - flight.expected
            flight.expected = 0
        self.queue.popleft()
        self.besides.begins(self.events.now)
        flight.state = State.PREFILL
        self.prefilling.append(flight)
        return True

    def _preempt(self) -> None:
        """Preempt the requests that joined last until the others can grow by one token. They compute again later."""
        batch, load = self.batch, self.view.load
        while self.kv.free < batch.size:
            flight = batch.latest()
            batch.remove(flight)
            load.running_requests -= 1
            forget(self.kv, flight)
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
        why = f"needs {flight.target + 1} tokens of KV cache, worker {self.id} has room for {self.largest}"
        self.owner.failed(flight, why)

    def _prefill(self, chunks: list[Flight]) -> None:
        step, batch, load = self.step, self.batch, self.view.load
        step.chunks = chunks
        load.running_requests += len(chunks)
        sizes, work = [], max(self.besides.over - batch.time, 0)
        for flight in chunks:
            load.queued_tokens -= flight.chunk
            work += flight.late_work if flight.late else 0
            sizes.append((flight.chunk, flight.done))
        decodes = step.decodes = batch.size if self.settings.order == "decode_first" else 0
        if decodes:
            self.kv.take(decodes)
        took = step.took = work + self.times.mixed(sizes, decodes, batch.context, self.slow)
        step.began = batch.time
        admission = self.owner.admission
        if admission.waiting:  # this worker now has fewer queued tokens, so a held request may go on
            admission.look()
        self._schedule(batch.time + took)

    def _decode(self) -> None:
        """Decode until a request leaves, or the KV cache is full."""
        self.mode = RUN
        self._schedule(self.run.begin(self.most_steps, self.besides.over))

    def _resume(self) -> None:
        """Continue after a cut that changed nothing for the queue."""
        if self.batch.size <= self.kv.free:
            self._decode()
        else:
            self._schedule(self.batch.time)

    def _schedule(self, time: int) -> None:
        """Let `on_step` handle the end of the step in progress, at `time`."""
        events = self.events
        version = self.version = self.version + 1
        sequence = events.sequence = events.sequence + 1
        heappush(events.heap, (time, STEP, sequence, self, version))
