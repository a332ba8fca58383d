"""What an engine holds, and its runs of decode steps: many steps in one event, cut where something changes."""

from __future__ import annotations

from collections import deque
from heapq import heappush
from typing import Final

from pdplugins.sim.core.clock import STEP, Events
from pdplugins.sim.core.decode import DecodeBatch
from pdplugins.sim.core.flight import Flight
from pdplugins.sim.core.kv import KvCache
from pdplugins.sim.core.links import Port
from pdplugins.sim.core.protocols import Batching, EngineSettings, Owner
from pdplugins.sim.core.records import Gaps
from pdplugins.sim.core.steps import StepTimes
from pdplugins.sim.core.views import LiveView
from pdplugins.sim.core.window import Recent

MANY: Final = 1 << 60
"""More decode steps than any run has."""

# What an engine does. Plain numbers, because they are compared several times for each request.
IDLE: Final = 0
RUN: Final = 1
"""Decode steps, known up to the next change."""
STEP_MODE: Final = 2
"""A step with prefill, or it is in the middle of an event."""
GONE: Final = 3
"""It is dead."""


class Runner:
    """An engine below its decisions: the KV cache, and decode steps that are known."""

    __slots__ = (
        "batch", "batching", "began", "coming", "decode_time", "events", "first_tokens", "id", "incoming", "kv",
        "largest", "line", "lines", "mixed", "mode", "most_steps", "owner", "port", "preemptions", "prefill_time",
        "prefilling", "purge", "queue", "reading", "ready", "run_end", "run_steps", "running", "settings", "slow",
        "spare", "step_from", "step_took", "times", "version", "view",
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
        self.reading: list[Flight] = []
        """Has its room, and waits for the history of its session."""
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
        """When the step with prefill began, and how long it takes."""
        self.step_took = 0
        self.mixed = 0
        """Decodes that take part in the step with prefill."""
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
        self.first_tokens = Recent()
        """Times from arrival to the end of prefill here."""
        self.prefill_time = 0
        """Time of steps with prefill, and of steps without, up to the end of the last one or of the run so far."""
        self.decode_time = 0

    @property
    def busy(self) -> bool:
        """Whether it computes something."""
        return self.mode in (RUN, STEP_MODE)

    def worked(self) -> tuple[int, int]:
        """Return the time spent by now in steps with prefill, and in steps without."""
        now = self.events.now
        if self.mode == RUN:
            return self.prefill_time, self.decode_time + now - self.batch.time
        return self.prefill_time + (now - self.step_from if self.running else 0), self.decode_time

    def running_tokens(self) -> int:
        """Return the tokens of the step in progress, and of the requests that join the next one."""
        return self.decode_tokens() + self.prefill_tokens()

    def prefill_tokens(self) -> int:
        """Return the prompt tokens of the step in progress."""
        return sum(flight.chunk for flight in self.running)

    def decode_requests(self) -> int:
        """Return how many requests decode, or join the next step."""
        return self.batch.size + len(self.ready)

    def free_tokens(self) -> int:
        """Return the tokens of KV cache that are free or only cached, at the end of the step in progress."""
        grown = self.decode_tokens() - self.batch.context - sum(flight.context for flight in self.ready)
        return self.kv.room - (grown if self.mode == RUN else 0)

    def decode_gap(self) -> int:
        """Return the time between tokens now, of the requests that decode or join the next step; 0 when there is none.

        It is the step in progress where they take part in it; where they wait for its prefill, the next one too.
        """
        size = self.batch.size + len(self.ready)
        took = self.step_took if self.running else 0
        if not size or (took and self.mixed):
            return took if size else 0
        return took + self.times.line(size, self.slow[1]).step(self.decode_tokens())

    def decode_tokens(self) -> int:
        """Return the context of the requests that decode, or join the next step."""
        batch = self.batch
        tokens = batch.context + sum(flight.context for flight in self.ready)
        now = self.events.now
        if self.mode == RUN and self.run_steps and (batch.time < now or (batch.time == now and self.began == now)):
            started = self.line.until(batch.context, now - batch.time or 1)[0]
            tokens += min(started, self.run_steps) * batch.size
        elif self.running:
            tokens += self.mixed
        return tokens

    def note_first_tokens(self) -> None:
        """Note the first tokens that the run in progress has given by now."""
        if self.mode == RUN and self.run_steps:
            end = self.batch.time + self.line.step(self.batch.context)
            if end < self.events.now:
                self.batch.first_tokens(end)

    def settle(self) -> None:
        """Evict what the run in progress has pushed out of the cache by now."""
        kv = self.kv
        if self.mode == RUN and kv.idle_tokens > (left := kv.room - self.run_steps * self.batch.size):
            if not self._cut():
                kv.shrink(left)
            elif not self.run_steps:
                self._resume()

    # --- room in the KV cache --------------------------------------------------------------------------------------

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

    def forget(self, flight: Flight) -> None:
        """Drop the KV cache of a request."""
        self.kv.room += flight.kv
        flight.kv = 0
        if flight.pins:
            self.kv.unpin(flight.pins)
            flight.pins, flight.block_hits = (), 0

    def _take_prompt(self, flight: Flight) -> bool:
        """Take room for a prompt, less what is cached of it: prefix blocks, or the history of its session."""
        kv, room = self.kv, self.kv.room - self.batch.size - self.spare
        if not flight.may_be_cached:
            if room < flight.target:
                return False
            kv.room -= flight.target
            if kv.idle_tokens > kv.room:
                kv.shrink(kv.room)
            flight.kv = flight.target
            return True
        arrival = flight.arrival
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
        self.view.load.queued_tokens -= cached - flight.expected
        flight.expected = 0
        return True

    def _share(self, flight: Flight) -> list[int]:
        """Let other requests use the prompt's blocks."""
        blocks = flight.arrival.blocks
        whole = min(flight.done // self.kv.block_tokens, len(blocks))
        added = self.kv.share(blocks[flight.block_hits : whole])
        flight.kv -= len(added) * self.kv.block_tokens
        return added

    # --- runs of decode steps --------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Decode until someone leaves, or the KV cache is full."""
        batch = self.batch
        steps = batch.first_leave - batch.steps
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

    def _advance(self, steps: int, end: int) -> None:
        batch, kv = self.batch, self.kv
        self.decode_time += end - batch.time
        kv.room -= steps * batch.size
        if kv.idle_tokens > kv.room:
            kv.shrink(kv.room)
        batch.advance(self.line, steps, end)

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
            end = batch.time + took
            if batch.gaps.mortal:  # the step in progress may be the last one: keep it apart
                if steps > 1:
                    self._advance(steps - 1, end - self.line.step(batch.context + (steps - 1) * batch.size))
                    steps = 1
                batch.remember()
            self._advance(steps, end)
        self.run_steps = 0
        return True

    def _schedule(self, time: int) -> None:
        events = self.events
        version = self.version = self.version + 1
        sequence = events.sequence = events.sequence + 1
        heappush(events.heap, (time, STEP, sequence, self, version))
