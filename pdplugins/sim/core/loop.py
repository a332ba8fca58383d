"""The loop of a run: whatever comes next, an arrival or a queued event, is handled at its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop
from typing import Final

from pdplugins.sim.core.clock import ACTION, STEP, seconds, ticks
from pdplugins.sim.core.dispatch import Dispatcher
from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.flight import Arrival

PROGRESS_EVERY: Final = 1000
"""Arrivals and other events between two calls of `progress`."""


def handle_all(dispatcher: Dispatcher, arrivals: Iterator[Arrival], progress: Callable[[float], None]) -> None:
    """Handle arrivals and events until every request has ended, or nothing can happen any more.

    :param progress: see `pdplugins.sim.core.simulation.Simulation.run`.
    """
    events, links, lifecycle = dispatcher.events, dispatcher.links, dispatcher.lifecycle
    heap = events.heap
    upcoming = next(arrivals, None)
    dispatcher.more = upcoming is not None
    next_arrival = 0 if upcoming is None else ticks(upcoming.arrival_s)
    countdown = PROGRESS_EVERY
    while True:
        countdown -= 1
        if not countdown:
            countdown = PROGRESS_EVERY
            progress(seconds(events.now))
        if upcoming is not None and (not heap or next_arrival <= heap[0][0]):
            events.now = next_arrival
            dispatcher.arrive(upcoming)
            if (upcoming := next(arrivals, None)) is None:
                dispatcher.more = False
            else:
                next_arrival = ticks(upcoming.arrival_s)
            continue
        if not heap or not (dispatcher.more or lifecycle.open):
            return
        time, kind, _, target, argument = heappop(heap)
        events.now = time
        if kind == STEP:
            engine: Engine = target
            engine.on_step(argument)
        elif kind == ACTION:
            target(argument)
        else:
            links.on_event(target, argument)
