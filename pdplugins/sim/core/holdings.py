"""Frees what a request holds on workers and links."""

from __future__ import annotations

from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.flight import Flight, State
from pdplugins.sim.core.links import Links
from pdplugins.sim.core.worker import Worker


class Holdings:
    """Removes requests from links and workers."""

    def __init__(self, links: Links, fleet: Fleet) -> None:
        self._links = links
        self._fleet = fleet

    def drop(self, flight: Flight) -> None:
        """Free the KV cache and the transfer of a request, on its current worker and on its next one."""
        if flight.transfer is not None:
            self._links.stop(flight.transfer)
            flight.transfer = None
        sink = flight.sink
        if sink is not None and not sink.gone:
            if flight in sink.engine.reading:
                sink.engine.read(flight)
            if flight.waits:
                sink.engine.incoming.remove(flight)
            if flight.reserved:
                sink.engine.unreserve(flight)
        flight.reserved, flight.waits, flight.late, flight.sent = 0, False, False, 0
        engine = flight.engine
        if engine is not None and flight.state == State.MOVING:
            engine.release(flight)
        if sink is not None and not sink.gone:
            sink.engine.freed()
        flight.sink = None
        self.read(flight)

    def read(self, flight: Flight) -> None:
        """Let the worker go from which a request has read the history of its session, or will not."""
        source: Worker | None = flight.read_from
        flight.read_from = None
        if source is not None and not source.gone:
            self.left(source)

    def leave(self, flight: Flight) -> None:
        """Remove a request from the workers that it was placed on."""
        first: Worker | None = flight.first
        second: Worker | None = flight.second
        if first is not None:
            self.left(first)
        if second is not None and second is not first:
            self.left(second)
        flight.first = flight.second = None

    def left(self, worker: Worker) -> None:
        """Count one request less on `worker`, and check whether it has drained."""
        worker.open -= 1
        if worker.draining and not worker.open:
            self._fleet.look(worker)
