"""The same engine, token by token and as plainly as possible: what the fast one must agree with.

Every step is one event, every total is counted anew, and every token is noted on its own. It shares with the fast
engine the tables of step times and the KV cache, which have tests of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from types import SimpleNamespace
from typing import Any

from pdplugins.contracts.workers import ANYTHING
from pdplugins.sim.core.clock import STEP, TICKS_PER_S, seconds, ticks
from pdplugins.sim.core.flight import Flight, State
from pdplugins.types import Role, WorkerLoad


class PlainLoad:
    def __init__(self, engine: PlainEngine) -> None:
        self._engine = engine
        self.worker = engine.id

    @property
    def queued_requests(self) -> int:
        return len(self._engine.queue) + len(self._engine.reading)

    @property
    def queued_tokens(self) -> int:
        waiting = (*self._engine.queue, *self._engine.reading, *self._engine.prefilling)
        return sum(flight.target - flight.done - flight.chunk - flight.expected for flight in waiting)

    @property
    def running_requests(self) -> int:
        engine = self._engine
        return len(engine.running) + len(engine.ready) + len(engine.chunks)

    @property
    def running_tokens(self) -> int:
        engine = self._engine
        tokens = sum(flight.context for flight in (*engine.running, *engine.ready))
        return tokens + len(engine.stepping) + sum(flight.chunk for flight in engine.chunks)

    @property
    def decode_requests(self) -> int:
        return len(self._engine.running) + len(self._engine.ready)

    @property
    def decode_tokens(self) -> int:
        engine = self._engine
        return sum(flight.context for flight in (*engine.running, *engine.ready)) + len(engine.stepping)

    @property
    def prefill_tokens(self) -> int:
        return sum(flight.chunk for flight in self._engine.chunks)

    @property
    def prefill_history_tokens(self) -> int:
        engine = self._engine
        return sum(flight.done + flight.expected for flight in (*engine.queue, *engine.reading, *engine.prefilling))

    @property
    def recent_ttft_s(self) -> float | None:
        engine = self._engine
        lately = [took for at, took in engine.first_tokens if at >= engine.events.now - ticks(10.0)]
        return sum(lately) / (len(lately) * TICKS_PER_S) if lately else None

    @property
    def recent_tbt_s(self) -> float | None:
        engine = self._engine
        decoding = [*engine.running, *engine.ready]
        if not decoding:
            return None
        if engine.chunks and engine.stepping:
            return seconds(engine.took)
        context = sum(flight.context for flight in decoding) + len(engine.stepping)
        alone = engine.times.line(len(decoding), engine.slow[1]).step(context)
        return seconds((engine.took if engine.chunks else 0) + alone)

    def frozen(self) -> WorkerLoad:
        numbers = self.queued_requests, self.queued_tokens, self.running_requests, self.running_tokens
        recent = self.recent_ttft_s, self.recent_tbt_s
        step = self.decode_requests, self.decode_tokens, self.prefill_tokens, self.prefill_history_tokens
        return WorkerLoad(self.worker, *numbers, *recent, *step)


class PlainView:
    """In place of `pdplugins.sim.core.views.LiveView`, whose load is that of the fast engine."""

    def __init__(self, worker: str, role: Role, tp: int, kv_capacity_tokens: int, blocks: Container[int]) -> None:
        self.id, self.role, self.tp = worker, role, tp
        self.kv_capacity_tokens, self.cached_blocks = kv_capacity_tokens, blocks
        self.capabilities = ANYTHING

    def watch(self, engine: PlainEngine) -> None:
        self.load = PlainLoad(engine)
        self._engine = engine

    @property
    def free_kv_tokens(self) -> int:
        return self._engine.free_tokens()


class PlainEngine:
    def __init__(  # noqa: PLR0917 - the engine's own signature
        self,
        view: Any,
        times: Any,
        kv: Any,
        port: Any,
        settings: Any,
        batching: Any,
        events: Any,
        owner: Any,
        gaps: Any,
    ) -> None:
        self.id, self.view, self.times, self.kv, self.port = view.id, view, times, kv, port
        self.settings, self.batching, self.events, self.owner, self.gaps = settings, batching, events, owner, gaps
        self.spare = int(kv.capacity * settings.watermark)
        self.largest = kv.capacity - self.spare
        self.queue: deque[Flight] = deque()
        self.prefilling: list[Flight] = []
        self.reading: list[Flight] = []
        self.ready: deque[Flight] = deque()
        self.running: list[Flight] = []
        self.incoming: deque[Flight] = deque()
        self.chunks: list[Flight] = []
        self.stepping: list[Flight] = []
        self.busy = False
        self.dead = False
        self.purge = False
        self.coming = self.preemptions = self.began = 0
        self.most_steps = self.took = 0
        self.times_so_far = 0, 0
        self.begin_work = ticks(settings.begin_s)
        self.free_at = 0
        self.first_tokens: list[tuple[int, int]] = []
        self.slow = (1.0, 1.0)

    @property
    def batch(self) -> Any:
        own_tpots = {flight.index: flight.tpot_s for flight in self.running if flight.tpot_s}
        context = sum(flight.context for flight in self.running)
        return SimpleNamespace(size=len(self.running), context=context, own_tpots=own_tpots)

    def boundary(self) -> int:
        return self.began + self.took if self.stepping or self.chunks else int(self.events.now)

    def free_tokens(self) -> int:
        return int(self.kv.free)

    def wake(self) -> None:
        if not self.busy and not self.dead:
            self.next()

    def set_slow(self, prefill: float, decode: float) -> None:
        self.slow = (prefill, decode)

    def settle(self) -> None:
        pass

    def worked(self) -> tuple[int, int]:
        prefill, decode = self.times_so_far
        here = self.events.now - self.began
        if self.chunks:
            return prefill + here, decode
        return prefill, decode + (here if self.stepping else 0)

    def note_first_tokens(self) -> None:
        pass

    def submit(self, flight: Flight) -> None:
        flight.engine = self
        if self.too_long(flight):
            return
        flight.state, flight.queued = State.QUEUED, self.events.now
        self.queue.append(flight)
        self.wake()

    def too_long(self, flight: Flight) -> bool:
        if flight.target < self.largest:
            return False
        needs = f"needs {flight.target + 1} tokens of KV cache"
        self.owner.failed(flight, f"{needs}, worker {self.id} has room for {self.largest}")
        return True

    def receive(self, flight: Flight) -> None:
        flight.engine = self
        flight.kv, flight.reserved = flight.reserved, 0
        self.coming -= 1
        if flight.target > flight.done:
            flight.state = State.PREFILL
            self.prefilling.append(flight)
            self.wake()
        else:
            flight.state = State.READY
            self.ready.append(flight)
            self.wake()

    def withdraw(self, flight: Flight) -> None:
        self.queue.remove(flight)
        self.reading.append(flight)

    def read(self, flight: Flight) -> None:
        self.reading.remove(flight)
        flight.expected = 0

    def hand_over(self, flight: Flight, work: int) -> None:
        flight.state, flight.late, flight.late_work = State.PREFILL, True, work
        flight.done = flight.target - 1
        self.prefilling.insert(0, flight)
        self.wake()

    def awaited(self) -> list[int]:
        return [flight.landing[1] for flight in self.incoming if flight.state == State.MOVING]

    def keep(self, flight: Flight) -> None:
        flight.state = State.READY
        self.ready.append(flight)

    def slots(self) -> int:
        return self.settings.max_batch - len(self.running) - len(self.ready) - len(self.prefilling) - self.coming

    def reserve(self, flight: Flight, tokens: int) -> bool:
        if self.slots() < 1 or self.kv.free < tokens + len(self.running) + len(self.ready) + self.spare:
            return False
        flight.kept = self.kv.drop(flight.arrival.session)
        self.kv.take(tokens)
        self.coming += 1
        flight.reserved = tokens
        return True

    def unreserve(self, flight: Flight) -> None:
        self.kv.give(flight.reserved)
        self.coming -= 1
        flight.reserved = 0

    def forget(self, flight: Flight) -> None:
        self.kv.give(flight.kv)
        self.kv.unpin(flight.pins)
        flight.kv, flight.pins, flight.block_hits = 0, [], 0

    def release(self, flight: Flight) -> None:
        self.forget(flight)
        self.freed()

    def freed(self) -> None:
        if self.incoming:
            self.owner.capacity_freed(self)
        if self.queue:
            self.wake()

    def part_done(self, flight: Flight) -> None:
        flight.state = State.MOVING
        self.owner.leg_done(flight, self)

    def expect(self) -> None:
        self.begin_work_begins()

    def begin_work_begins(self) -> None:
        self.free_at = max(self.free_at, self.boundary()) + self.begin_work

    @property
    def step(self) -> PlainEngine:
        """What runs now has `chunks`."""
        return self

    def on_step(self, _version: int) -> None:
        if self.dead:
            return
        now, stepping, chunks = self.events.now, self.stepping, self.chunks
        self.times_so_far = self.worked()
        self.stepping, self.chunks = [], []
        for flight in stepping:
            self.token(flight)
            flight.kv += 1
        if chunks:
            self.batching.stepped(now - self.began)
        for flight in chunks:
            flight.done += flight.chunk
            flight.chunk = 0
            if flight.done < flight.target:
                self.owner.chunk_done(flight, self)
            else:
                self.prefilled(flight)
        leaving = [flight for flight in self.running if flight.emitted == flight.stop]
        self.running = [flight for flight in self.running if flight.emitted < flight.stop]
        for flight in leaving:
            self.part_done(flight)
        self.next()

    def prefilled(self, flight: Flight) -> None:
        self.prefilling.remove(flight)
        if flight.late:
            flight.late = False
            self.part_done(flight)
            return
        self.share(flight)
        if not flight.emitted and flight.target == flight.isl:
            self.first_tokens.append((self.events.now, self.events.now - flight.arrived))
        if flight.stop:
            self.token(flight)
        if flight.emitted >= flight.stop:
            self.part_done(flight)
        else:
            self.keep(flight)

    def token(self, flight: Flight) -> None:
        self.gaps.token(flight, self.events.now)

    def share(self, flight: Flight) -> None:
        if blocks := flight.arrival.blocks:
            whole = min(flight.done // self.kv.block_tokens, len(blocks))
            added = self.kv.share(blocks[flight.block_hits : whole])
            flight.kv -= len(added) * self.kv.block_tokens
            flight.pins = [*flight.pins, *added]

    def next(self) -> None:
        self.busy = True
        now = self.began = self.events.now
        if self.purge:
            self.give_up()
        while self.ready and len(self.running) < self.settings.max_batch:
            self.ready[0].state = State.DECODE
            self.running.append(self.ready.popleft())
        while self.kv.free < len(self.running):
            self.preempt(self.running.pop())
        if self.incoming:
            self.owner.capacity_freed(self)
        self.most_steps = 1 << 60
        chunks = self.batching.compose(self) if self.queue or self.prefilling else []
        if chunks:
            self.chunks = chunks
            self.owner.admission.look()
            if self.settings.order == "decode_first":
                self.stepping = list(self.running)
            sizes = [(flight.chunk, flight.done) for flight in chunks]
            context = sum(flight.context for flight in self.stepping)
            took = self.times.mixed(sizes, len(self.stepping), context, self.slow)
            took += sum(flight.late_work for flight in chunks if flight.late)
        elif self.running:
            self.stepping = list(self.running)
            context = sum(flight.context for flight in self.running)
            took = self.times.line(len(self.running), self.slow[1]).step(context)
        else:
            self.busy = False
            return
        took += max(self.free_at - now, 0)
        self.took = took
        self.kv.take(len(self.stepping))
        self.events.push(now + took, STEP, self, 0)

    def preempt(self, flight: Flight) -> None:
        self.forget(flight)
        self.preemptions += 1
        flight.done, flight.target = 0, flight.isl + flight.emitted
        if not self.too_long(flight):
            flight.state = State.QUEUED
            self.queue.appendleft(flight)

    def admit(self, flight: Flight) -> bool:
        if self.slots() < 1:
            return False
        if not self.take_prompt(flight):
            return False
        self.queue.popleft()
        self.begin_work_begins()
        flight.state = State.PREFILL
        self.prefilling.append(flight)
        return True

    def take_prompt(self, flight: Flight) -> bool:
        kv, arrival, size = self.kv, flight.arrival, self.kv.block_tokens
        hits = min(kv.match(arrival.blocks), (flight.target - 1) // size)
        shared = arrival.blocks[:hits]
        private = flight.target - hits * size
        if kv.free - len(self.running) - self.spare < private + kv.idle_among(shared):
            return False
        flight.done = hits * size
        if arrival.session is not None:
            flight.done = max(flight.done, min(kv.drop(arrival.session), flight.target - 1, arrival.history_tokens))
        kv.pin(shared)
        kv.take(private)
        flight.expected = 0
        flight.kv, flight.pins, flight.block_hits = private, list(shared), hits
        if not flight.emitted:
            flight.cached = flight.done
        return True

    def give_up(self) -> None:
        self.purge = False
        for place in (self.queue, self.prefilling, self.ready, self.running):
            for flight in [flight for flight in place if flight.error]:
                place.remove(flight)
                flight.state = State.MOVING
                self.owner.purged(flight)

    def abandon(self) -> list[Flight]:
        self.times_so_far = self.worked()
        self.stepping, self.chunks = [], []
        lost = [*self.queue, *self.prefilling, *self.ready, *self.running]
        for flight in lost:
            flight.kv, flight.pins, flight.block_hits, flight.chunk = 0, [], 0, 0
        self.incoming.clear()
        self.dead = True
        return lost
