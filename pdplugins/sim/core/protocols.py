"""Who lets requests go on to the router, whom an engine tells what, and who composes its steps.

`E_contra` is the type of the engine: the fast one, or the plain one that tests compare it with.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from pdplugins.contracts.router import Ending
from pdplugins.sim.core.flight import Flight

E_contra = TypeVar("E_contra", contravariant=True)


class Admission(Protocol):
    """Lets requests go on to the router."""

    waiting: bool
    """Whether requests wait that may go on when a worker has less to do: then `look` wants to be called."""

    hears: bool
    """Whether `ended` needs to be called at all."""

    def arrived(self, flight: Flight) -> None:
        """Take in a request that has arrived, or starts anew."""

    def left(self, flight: Flight) -> None:
        """Forget a request whose client has gone away, if it waits here."""

    def ended(self, flight: Flight, ending: Ending) -> None:
        """Learn how a request ended."""

    def look(self) -> None:
        """See soon whether something may go on: a worker has less to do."""

    def workers_changed(self) -> None:
        """See now whether something may go on: workers have come, gone, or changed their role."""


class Owner(Protocol[E_contra]):
    """What an engine tells the simulation. When a step with prefill begins it tells `admission`."""

    admission: Admission

    def leg_done(self, flight: Flight, engine: E_contra, /) -> None:
        """`flight` has computed its part on `engine`; its KV cache is still there."""

    def chunk_done(self, flight: Flight, engine: E_contra, /) -> None:
        """`flight` has computed a part of its prompt, and goes on."""

    def read_history(self, flight: Flight, engine: E_contra, /) -> bool:
        """Bring the history that the queued `flight` lacks; it leaves the queue until that has come. False: not now."""
        ...

    def capacity_freed(self, engine: E_contra, /) -> None:
        """`engine` has free KV capacity that it had not before, and requests wait for it."""

    def failed(self, flight: Flight, why: str, /) -> None:
        """`flight` cannot be served by its engine; it holds nothing there."""

    def purged(self, flight: Flight, /) -> None:
        """`flight` was given up, as its `error` asked."""


class Batching(Protocol[E_contra]):
    """Composes the steps that have prefill in them."""

    def compose(self, engine: E_contra, /) -> list[Flight]:
        """Return the requests to prefill in the next step, their `chunk` set; empty for decodes only."""
        ...

    def stepped(self, took: int, /) -> None:
        """Learn how long the composed step took."""
        ...

    @property
    def always_ask(self) -> bool:
        """Whether its answer may change although nothing was admitted and nothing left."""
        ...
