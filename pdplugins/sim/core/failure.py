"""Failures of requests: the client cancels, the worker dies, or no worker can serve them."""

from __future__ import annotations

from pdplugins.sim.core.clock import Events
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.flight import Flight, State
from pdplugins.sim.core.holdings import Holdings
from pdplugins.sim.core.lifecycle import CANCELLED, Lifecycle


class Failures:
    """Ends requests early, or starts them again.

    :param retries: how often a request may start again.
    """

    def __init__(self, events: Events, lifecycle: Lifecycle, holdings: Holdings, fleet: Fleet, retries: int) -> None:
        self.retries = 0
        """How often requests started again, in total."""
        self._events = events
        self._lifecycle = lifecycle
        self._holdings = holdings
        self._fleet = fleet
        self._most_retries = retries

    def cancel(self, flight: Flight) -> None:
        """Give up a request whose client has gone away. One on an engine ends with the step in progress."""
        if flight.state == State.OVER:
            return
        if flight.state in (State.WAITING, State.MOVING):
            self._lifecycle.admission.left(flight)
            self.end(flight, CANCELLED)
        else:
            flight.error = CANCELLED
            flight.engine.purge = True
            flight.engine.wake()

    def purged(self, flight: Flight) -> None:
        """End a request that its engine has given up because its `error` was set."""
        self.end(flight, flight.error or "given up")

    def end(self, flight: Flight, why: str) -> None:
        """Fail a request that waits for a worker."""
        self._holdings.drop(flight)
        self._lifecycle.failed(flight, why)

    def retry(self, flight: Flight, why: str) -> None:
        """Place a request again. Its prompt and its output tokens so far are computed again."""
        self._holdings.drop(flight)
        if flight.error is not None:
            self._lifecycle.failed(flight, flight.error)
        elif flight.retries >= self._most_retries:
            self._lifecycle.failed(flight, f"{why}, after {flight.retries} retries")
        else:
            flight.retries += 1
            self.retries += 1
            flight.state = State.WAITING
            self._holdings.leave(flight)
            self._lifecycle.admission.arrived(flight)

    def worker_dies(self, name: str) -> None:
        """Remove a worker with everything on it. Its requests start again elsewhere, as often as they may."""
        worker = self._fleet.workers[name]
        engine = worker.engine
        live = self._lifecycle.live()
        leaving = [
            flight
            for flight in live
            if flight.engine is engine and flight.state == State.MOVING and not flight.has_arrived
        ]
        reading = [flight for flight in leaving if flight.sink is not None and flight.sink is flight.first]
        lost = [*engine.abandon(), *(flight for flight in leaving if flight not in reading)]
        self._fleet.kill(worker)
        for flight in reading:
            self._read_no_more(flight)
        known = {flight.index for flight in lost}
        coming = [flight for flight in live if flight.sink is worker and flight.index not in known]
        for flight in sorted((*lost, *coming), key=lambda flight: flight.index):
            if flight.index in known or flight.state == State.MOVING:
                self.retry(flight, f"worker {name} died")
            else:  # it still prefills elsewhere, and gets another second worker when that is done
                self._holdings.drop(flight)

    def _read_no_more(self, flight: Flight) -> None:
        """Let a round compute its history again, because the worker that it was read from has died."""
        first = flight.first
        self._holdings.drop(flight)
        first.engine.submit(flight)

    def give_up(self) -> None:
        """Fail the requests that are left at the end of the run, because no worker can serve them.

        Where all workers have gone, that is when the last worker had gone and the last request had come: the events
        since then were for nobody.
        """
        left = self._lifecycle.live()
        if left and not self._fleet.workers:
            gone = max([worker.ended or 0 for worker in self._fleet.gone], default=0)
            self._events.now = max(gone, left[-1].arrived, self._lifecycle.last_end)
        for flight in left:
            self._lifecycle.admission.left(flight)
            self.end(flight, "no worker to serve it")
