"""The history of a session: prompt tokens of a round that a worker has cached from earlier rounds."""

from __future__ import annotations

from pdplugins.sim.core.flight import Flight
from pdplugins.sim.core.worker import Worker


def expect(flight: Flight, source: Worker | None, *, reads: bool) -> None:
    """Note which tokens a newly placed round need not compute, because `source` has them.

    :param reads: whether workers read a history from another worker. If not, they compute it again.
    """
    here = source is flight.first
    if source is None or not (here or reads):
        return
    if tokens := held(flight, source):
        flight.expected = tokens
        flight.history = None if here else source


def held(flight: Flight, source: Worker) -> int:
    """Return the tokens of a round's prompt that its session has left on `source`."""
    source.engine.settle()
    arrival = flight.arrival
    return min(source.engine.kv.held(arrival.session or flight.id), flight.target - 1, arrival.history_tokens)
