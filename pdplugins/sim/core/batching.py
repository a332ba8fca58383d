"""Who prefills in the next step: the engine's own way, or a batch scheduler's."""

from __future__ import annotations

from pdplugins.contracts.batching import BatchPlan, BatchView, QueuedPrefill
from pdplugins.runtime.batching import SafeBatchScheduler
from pdplugins.sim.core.clock import seconds, ticks
from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.flight import Flight


class FirstComeFirstServed:
    """Prompts in the order of arrival, as many tokens as a step may have, the last prompt cut to fit."""

    always_ask = False

    def compose(self, engine: Engine) -> list[Flight]:
        """Return the requests to prefill in the next step."""
        settings = engine.settings
        left = settings.step_tokens
        if settings.order == "decode_first":
            left -= engine.batch.size
        chunks = []
        for flight in engine.prefilling:
            if left > 0:
                left -= _cut(flight, left)
                chunks.append(flight)
        while left > 0 and (not chunks or _fits(engine, left)) and _admit_head(engine):
            flight = engine.prefilling[-1]
            left -= _cut(flight, left)
            chunks.append(flight)
        _read_ahead(engine)
        return chunks

    def stepped(self, took: int) -> None:
        """Learn nothing."""


def _fits(engine: Engine, left: int) -> bool:
    """Whether the next prompt may start in a step that may have `left` more tokens."""
    return not (engine.settings.whole_prompts and engine.queue and engine.queue[0].target > left)


def _read_ahead(engine: Engine) -> None:
    """Read the histories that the next rounds in the queue lack, while the step computes (AMPD, section 6)."""
    queue = engine.queue
    while queue and queue[0].history is not None and engine.owner.read_history(queue[0], engine):
        pass


def _lacks_history(flight: Flight, engine: Engine) -> bool:
    """Tell whether a queued request must wait for the history of its session, and start to read that."""
    return flight.history is not None and (engine.owner.read_history(flight, engine) or flight.history is not None)


def _admit_head(engine: Engine) -> bool:
    """Let the first request of the queue prefill that has all it needs. False when there is none, or none fits."""
    _read_ahead(engine)
    queue = engine.queue
    return bool(queue) and queue[0].history is None and engine.admit(queue[0])


def _cut(flight: Flight, left: int) -> int:
    flight.chunk = min(left, flight.target - flight.done)
    return flight.chunk


class Scheduled:
    """A batch scheduler decides. What it asks for beyond the free KV cache waits; so does what it leaves out.

    When it fails, or wants an engine that has work to stand still for no stated time, the engine's own way is taken.
    """

    always_ask = True

    def __init__(self, scheduler: SafeBatchScheduler) -> None:
        self._scheduler = scheduler
        self._own = FirstComeFirstServed()
        self._asked: tuple[BatchView, BatchPlan] | None = None

    def compose(self, engine: Engine) -> list[Flight]:
        """Return the requests that the scheduler wants in the next step."""
        self._asked = None
        view = batch_view(engine)
        plan = self._scheduler.next_batch(view, seconds(engine.events.now))
        if plan is None:
            return self._own.compose(engine)
        if chunks := _follow(plan, engine):
            self._asked = (view, BatchPlan({flight.id: flight.chunk for flight in chunks}))
            return chunks
        if engine.batch.size:
            engine.most_steps = 1  # it decodes, and asks before the next step
            return []
        if plan.wait_s > 0:
            engine.events.call_at(engine.events.now + ticks(plan.wait_s), lambda _: engine.wake())
            return []
        return self._own.compose(engine)

    def stepped(self, took: int) -> None:
        """Tell the scheduler what its last step ran, which is what fitted, and how long it took."""
        if self._asked is not None:
            (view, plan), self._asked = self._asked, None
            self._scheduler.on_step(view, plan, seconds(took))


def batch_view(engine: Engine) -> BatchView:
    """Return what a batch scheduler sees of `engine`."""
    waiting = tuple(
        QueuedPrefill(
            flight.request,
            flight.target - flight.done - flight.expected,
            seconds(flight.queued),
            flight.done + flight.expected,
        )
        for flight in (*engine.prefilling, *engine.queue)
        if flight.request is not None
    )
    return BatchView(waiting, engine.batch.size, engine.batch.context)


def _follow(plan: BatchPlan, engine: Engine) -> list[Flight]:
    by_id = {flight.id: flight for flight in (*engine.prefilling, *engine.queue)}
    chunks = []
    for name, tokens in plan.prefill_tokens.items():
        flight = by_id.get(name)
        if flight is None or tokens <= 0:
            continue
        if flight in engine.queue:
            engine.queue.remove(flight)  # the scheduler's order counts, not the queue's
            engine.queue.appendleft(flight)
            if _lacks_history(flight, engine) or not engine.admit(flight):
                continue
        _cut(flight, tokens)
        chunks.append(flight)
    _read_ahead(engine)
    return chunks
