"""What an engine computes now: one step with prefill, or a run of many decode steps that is a single event."""

from __future__ import annotations

from pdplugins.sim.core.clock import Events
from pdplugins.sim.core.decode import DecodeBatch
from pdplugins.sim.core.flight import Flight
from pdplugins.sim.core.kv import KvCache
from pdplugins.sim.core.steps import StepTimes


class PrefillStep:
    """The step with prefill that is in progress, if any."""

    __slots__ = ("began", "chunks", "decodes", "took", "worked")

    def __init__(self) -> None:
        self.chunks: list[Flight] = []
        """Requests that it prefills; empty when no such step is in progress."""
        self.began = 0
        """When it began."""
        self.took = 0
        """Ticks that it takes."""
        self.decodes = 0
        """Decoding requests that take part in it."""
        self.worked = 0
        """Ticks of all such steps that have ended."""


class Besides:
    """The work on requests besides their steps. The next step waits until all of it is over.

    :param begin: ticks of work on each request before its first step.
    """

    __slots__ = ("begin", "over")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.over = 0
        """When all of it will be over."""

    def begins(self, now: int) -> None:
        """Note the work on a request that begins here, from the end of the step in progress on."""
        self.over = max(self.over, now) + self.begin


class DecodeRun:
    """Decode steps of one batch that are known ahead, because no request joins or leaves before the last of them.

    The batch and the KV cache show the end of the last step that was made. `steps` more steps are known, and the first
    of them is in progress. `grown` returns what the steps since then have added.
    """

    __slots__ = (
        "batch", "began", "besides", "end", "events", "kv", "line", "lines", "slow", "steps", "times", "worked",
    )  # fmt: skip

    def __init__(self, batch: DecodeBatch, kv: KvCache, times: StepTimes, events: Events) -> None:
        self.batch = batch
        self.kv = kv
        self.times = times
        self.events = events
        self.steps = 0
        """Steps that are known but not made yet."""
        self.end = 0
        """When the last of them ends."""
        self.worked = 0
        """Ticks of the steps made so far."""
        self.began = -1
        """When the engine last decided what to run. A step that begins at this instant counts as begun."""
        self.besides = 0
        """Ticks of work besides steps in the first of the known steps, before its decodes."""
        self.slow = 1.0
        """Slowdown: step time over the step time that the profile says."""
        self.lines = times.lines(1.0)
        self.line = times.line(1)
        """Step times of the run in progress."""

    def set_slow(self, slow: float) -> None:
        """Make steps `slow` times as long from the next run on."""
        self.slow = slow
        self.lines = self.times.lines(slow)

    def begin(self, most: int, free: int) -> int:
        """Begin a run and return when it ends: when a request leaves, the KV cache is full, or after `most` steps.

        :param free: when the work besides steps will be over.
        """
        batch = self.batch
        size = batch.size
        steps = batch.first_leave - batch.steps
        if steps * size > self.kv.free or steps > most:
            steps = min(self.kv.free // size, most)
        line = self.line = self.lines.get(size) or self.times.line(size, self.slow)
        self.steps = steps
        besides = self.besides = free - batch.time if free > batch.time else 0
        end = self.end = batch.time + besides + line.span(batch.context, steps)
        return end

    def finish(self) -> None:
        """Make all steps that are known."""
        self._advance(self.steps, self.end)
        self.steps = 0

    def _advance(self, steps: int, end: int) -> None:
        """Make `steps` steps, the last of which ends at `end`."""
        batch, kv = self.batch, self.kv
        self.worked += end - batch.time
        batch.time += self.besides  # which makes the first gap an irregular one
        self.besides = 0
        kv.free -= steps * batch.size
        if kv.idle_tokens > kv.free:
            kv.shrink(kv.free)
        batch.advance(self.line, steps, end)

    def cut(self) -> bool:
        """Make the steps up to the one in progress, which may end later than now, and forget the later ones.

        Return False, with nothing done, when the step in progress is the last one anyway.
        """
        batch, now = self.batch, self.events.now
        elapsed = now - batch.time
        if elapsed > 0 or (elapsed == 0 and self.began == now):  # a step may have begun at this very instant
            steps, took = self._until(elapsed)
            if steps >= self.steps:
                return False
            end = batch.time + took
            if batch.gaps.mortal:  # the worker may die within this step: make it separately, so it can be undone
                if steps > 1:
                    self._advance(steps - 1, end - self.line.step(batch.context + (steps - 1) * batch.size))
                    steps = 1
                batch.remember()
            self._advance(steps, end)
        self.steps = 0
        return True

    def _until(self, elapsed: int) -> tuple[int, int]:
        """Return the fewest steps, one at least, that take `elapsed` ticks, and the ticks that they take."""
        besides = self.besides
        steps, took = self.line.until(self.batch.context, elapsed - besides if elapsed > besides else 1)
        return steps, took + besides

    def boundary(self) -> int:
        """Return when the step in progress ends; now, or the end of the last step, where none is."""
        batch, now = self.batch, self.events.now
        elapsed = now - batch.time
        if self.steps and (elapsed > 0 or (elapsed == 0 and self.began == now)):
            return batch.time + self._until(elapsed)[1]
        return max(batch.time, now)

    def end_now(self) -> None:
        """Make the steps that have ended by now, and undo one that was made ahead, because the worker has died."""
        batch, now = self.batch, self.events.now
        if self.steps and batch.time < now:
            steps, took = self._until(now - batch.time)
            if batch.time + took >= now:  # a worker that dies as a step ends does not end it
                steps -= 1
            if steps:
                batch.time += self.besides
                batch.advance(self.line, steps, batch.time + self.line.span(batch.context, steps))
        elif batch.time > now:
            batch.undo_step()
        self.steps = 0

    def grown(self) -> int:
        """Return the tokens of context that the steps so far, and the one in progress, have added."""
        batch, now = self.batch, self.events.now
        if not self.steps or not (batch.time < now or (batch.time == now and self.began == now)):
            return 0
        started = self._until(now - batch.time)[0]
        return min(started, self.steps) * batch.size

    def note_first_tokens(self) -> None:
        """Note the first tokens that the run has given by now."""
        if self.steps:
            end = self.batch.time + self.besides + self.line.step(self.batch.context)
            if end < self.events.now:
                self.batch.first_tokens(end)
