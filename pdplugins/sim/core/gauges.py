"""The load of one engine now, in the middle of a step or of a run of steps."""

from __future__ import annotations

from collections import deque

from pdplugins.sim.core.decode import DecodeBatch
from pdplugins.sim.core.flight import Flight
from pdplugins.sim.core.runs import DecodeRun, PrefillStep
from pdplugins.sim.core.steps import StepTimes


class Gauges:
    """Load figures of an engine. Each is computed only when it is read.

    :param ready: requests that join the next step.
    """

    __slots__ = ("_batch", "_ready", "_run", "_step", "_times")

    def __init__(
        self, batch: DecodeBatch, run: DecodeRun, step: PrefillStep, ready: deque[Flight], times: StepTimes
    ) -> None:
        self._batch = batch
        self._run = run
        self._step = step
        self._ready = ready
        self._times = times

    def running_tokens(self) -> int:
        """Return the tokens of the step in progress, and of the requests that join the next one."""
        return self.decode_tokens() + self.prefill_tokens()

    def prefill_tokens(self) -> int:
        """Return the prompt tokens of the step in progress."""
        return sum(flight.chunk for flight in self._step.chunks)

    def decode_requests(self) -> int:
        """Return how many requests decode, or join the next step."""
        return self._batch.size + len(self._ready)

    def decode_tokens(self) -> int:
        """Return the context of the requests that decode, or join the next step."""
        step = self._step
        grown = step.decodes if step.chunks else self._run.grown()
        return self._batch.context + grown + sum(flight.context for flight in self._ready)

    def decode_gap(self) -> int:
        """Return the ticks between tokens of the requests that decode or join the next step; 0 when there are none.

        This is the time of the step in progress. Where decodes wait for its prefill, the next step is added.
        """
        size = self.decode_requests()
        took = self._step.took if self._step.chunks else 0
        if not size or (took and self._step.decodes):
            return took if size else 0
        return took + self._times.line(size, self._run.slow).step(self.decode_tokens())
