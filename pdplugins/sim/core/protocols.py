"""Whom an engine tells what, who composes its steps, and what policies see of it.

`E_contra` is the type of the engine: the fast one, or the plain one that tests compare it with.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from pdplugins.sim.core.flight import Flight

E_contra = TypeVar("E_contra", contravariant=True)


class Owner(Protocol[E_contra]):
    """What an engine tells the simulation."""

    def leg_done(self, flight: Flight, engine: E_contra, /) -> None:
        """`flight` has computed its part on `engine`; its KV cache is still there."""

    def chunk_done(self, flight: Flight, engine: E_contra, /) -> None:
        """`flight` has computed a part of its prompt, and goes on."""

    def prefill_begun(self) -> None:
        """A step with prefill has begun: what waits for prefill has become less."""

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
