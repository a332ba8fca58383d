"""Samples for the charts of a report: workers and requests over time. Sampling changes nothing in the simulation."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from pdplugins.contracts.workers import Role
from pdplugins.runtime.roster import Life
from pdplugins.sim.core.clock import seconds, ticks
from pdplugins.sim.core.dispatch import Dispatcher
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.power import Power

MOST_SAMPLES = 2000
"""When there are more samples, every second one is dropped and the interval doubles."""


class Sample(NamedTuple):
    """The fleet at one moment. Pairs are (prefill, decode)."""

    at_s: float
    ready: tuple[int, int]
    """Workers that take new work."""
    held: tuple[int, int]
    """All workers, including those that start, drain or change their role."""
    queued: tuple[int, int]
    """Requests that wait on all workers."""
    running: tuple[int, int]
    draw_w: float | None = None
    """Draw of all GPUs; None where the profile has no power table."""
    cap_w: float | None = None
    """Sum of the caps of all GPUs."""


class Sampler:
    """Samples the fleet every `every_s` seconds, until no event is left."""

    def __init__(self, every_s: float = 1.0) -> None:
        self.samples: list[Sample] = []
        self._every = ticks(every_s)

    def begin(self, dispatcher: Dispatcher, fleet: Fleet, power: Power) -> None:
        """Take the first sample now."""
        self._dispatcher, self._fleet, self._power = dispatcher, fleet, power
        dispatcher.events.call_at(dispatcher.events.now, self._tick)

    def _tick(self, _: object) -> None:
        events = self._dispatcher.events
        self.samples.append(sample(self._fleet, self._power, seconds(events.now)))
        if len(self.samples) > MOST_SAMPLES:
            del self.samples[1::2]
            self._every *= 2
        if events.heap or self._dispatcher.more:
            events.call_at(events.now + self._every, self._tick)


def sample(fleet: Fleet, power: Power, at_s: float) -> Sample:
    """Count the workers and the requests of each role, and the watts."""
    counts = {role: [0, 0, 0, 0] for role in Role}
    for worker in fleet.workers.values():
        load, total = worker.view.load, counts[worker.view.role]
        here = (worker.life is Life.READY, 1, load.queued_requests, load.running_requests)
        for index, count in enumerate(here):
            total[index] += count
    ready, held, queued, running = zip(counts[Role.PREFILL], counts[Role.DECODE], strict=True)
    gpus = [device.view() for device in power.devices()]
    watts = sum(gpu.draw_w for gpu in gpus), sum(gpu.cap_w for gpu in gpus)
    known = watts if isfinite(watts[0]) and isfinite(watts[1]) else (None, None)
    return Sample(at_s, ready, held, queued, running, *known)
