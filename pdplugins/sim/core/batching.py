"""Which requests prefill in the next step: first come, first served, or as a batch scheduler decides."""

from __future__ import annotations

from pdplugins.contracts.batching import BatchPlan, BatchView, QueuedPrefill
from pdplugins.runtime.batching import SafeBatchScheduler
from pdplugins.sim.core.clock import seconds, ticks
from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.flight import Flight


class FirstComeFirstServed:
    """Takes prompts in order of arrival, up to the tokens that a step may have. The last prompt is cut to fit."""

    always_ask = False

    def compose(self, engine: Engine) -> list[Flight]:
        """Return the requests to prefill in the next step."""
        if engine.prefilling and engine.prefilling[0].late:
            return _hand_overs(engine)
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
        """Do nothing."""


def _hand_overs(engine: Engine) -> list[Flight]:
    """Return the hand-overs that were asked for late. They share a step with no prompt, for which they would wait."""
    late = [flight for flight in engine.prefilling if flight.late]
    for flight in late:
        flight.chunk = 1
    return late


def _fits(engine: Engine, left: int) -> bool:
    """Whether the next prompt may start in a step that has `left` tokens free."""
    return not (engine.settings.whole_prompts and engine.queue and engine.queue[0].target > left)


def _read_ahead(engine: Engine) -> None:
    """Read missing histories of the next rounds in the queue while the step computes (AMPD, section 6)."""
    queue = engine.queue
    while queue and queue[0].history is not None and engine.owner.read_history(queue[0], engine):
        pass


def _lacks_history(flight: Flight, engine: Engine) -> bool:
    """Return whether a queued request must wait for the history of its session, and start reading that."""
    return flight.history is not None and (engine.owner.read_history(flight, engine) or flight.history is not None)


def _admit_head(engine: Engine) -> bool:
    """Admit the first request of the queue that needs no history. False when there is none, or it does not fit."""
    _read_ahead(engine)
    queue = engine.queue
    return bool(queue) and queue[0].history is None and engine.admit(queue[0])


def _cut(flight: Flight, left: int) -> int:
    flight.chunk = min(left, flight.target - flight.done)
    return flight.chunk


class Scheduled:
    """Follows a batch scheduler. A request waits if the scheduler leaves it out, or if its KV cache does not fit.

    The engine batches first come, first served when the scheduler fails. It also does so when the scheduler leaves an
    engine with work idle and names no time to wait.
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
            engine.most_steps = 1  # decode one step, then ask again
            return []
        if plan.wait_s > 0:
            # A tick later at least: time that stands still would have it asked for ever.
            engine.events.call_at(engine.events.now + max(ticks(plan.wait_s), 1), lambda _: engine.wake())
            return []
        return self._own.compose(engine)

    def stepped(self, took: int) -> None:
        """Tell the scheduler what its last step really ran, and how long that took."""
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
    batch = engine.batch
    return BatchView(waiting, batch.size, batch.context, tuple(batch.own_tpots.values()))


def _follow(plan: BatchPlan, engine: Engine) -> list[Flight]:
    by_id = {flight.id: flight for flight in (*engine.prefilling, *engine.queue)}
    chunks = []
    for name, tokens in plan.prefill_tokens.items():
        flight = by_id.get(name)
        if flight is None or tokens <= 0:
            continue
        if flight in engine.queue:
            engine.queue.remove(flight)  # admit() takes the first of the queue, and the scheduler's order counts
            engine.queue.appendleft(flight)
            if _lacks_history(flight, engine) or not engine.admit(flight):
                continue
        _cut(flight, tokens)
        chunks.append(flight)
    _read_ahead(engine)
    return chunks
