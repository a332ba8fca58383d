"""Interfaces around an engine: admission of requests, the owner that it reports to, and the composer of its steps.

`E_contra` is the type of the engine: the fast one, or the plain one that tests compare it with.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from pdplugins.contracts.router import Outcome
from pdplugins.sim.core.flight import Flight

E_contra = TypeVar("E_contra", contravariant=True)


class Admission(Protocol):
    """Decides when requests go on to the router."""

    @property
    def waiting(self) -> bool:
        """Whether requests wait for a worker to have less to do. Only then `look` needs to be called."""
        ...

    @property
    def hears(self) -> bool:
        """Whether `ended` needs to be called at all."""
        ...

    def arrived(self, flight: Flight) -> None:
        """Take in a request that has arrived or starts again."""

    def left(self, flight: Flight) -> None:
        """Forget a request whose client has gone away, if it waits here."""

    def ended(self, flight: Flight, outcome: Outcome) -> None:
        """Learn how a request ended."""

    def look(self) -> None:
        """Check soon whether a request may go on, because a worker has less to do."""

    def workers_changed(self) -> None:
        """Check now whether a request may go on, because workers have started, stopped or changed their role."""


class Owner(Protocol[E_contra]):
    """What an engine reports to. It also calls `admission.look` when a step with prefill begins."""

    admission: Admission

    def leg_done(self, flight: Flight, engine: E_contra, /) -> None:
        """`flight` has computed its part on `engine`; its KV cache is still there."""

    def chunk_done(self, flight: Flight, engine: E_contra, /) -> None:
        """`engine` has computed a chunk of the prompt of `flight`, and more is left."""

    def read_history(self, flight: Flight, engine: E_contra, /) -> bool:
        """Read the history that the queued `flight` lacks, and take it off the queue until the history has arrived.

        False, with nothing changed in the queue, when that is not possible now.
        """
        ...

    def capacity_freed(self, engine: E_contra, /) -> None:
        """`engine` has more free KV capacity than before, and requests wait for it."""

    def failed(self, flight: Flight, why: str, /) -> None:
        """`flight` cannot be served by its engine; it holds nothing there."""

    def purged(self, flight: Flight, /) -> None:
        """The engine has given up `flight`, because its `error` was set."""


class Batching(Protocol[E_contra]):
    """Composes the steps with prefill."""

    def compose(self, engine: E_contra, /) -> list[Flight]:
        """Return the requests to prefill in the next step, with `chunk` set; empty for a step that only decodes."""
        ...

    def stepped(self, took: int, /) -> None:
        """Take note of how long the composed step took."""
        ...

    @property
    def always_ask(self) -> bool:
        """Whether its answer may change even when no request has been admitted or has left."""
        ...
