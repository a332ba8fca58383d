"""Routers decide where each token range of a request runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from pdplugins.contracts.request import Request
from pdplugins.contracts.swift import swift
from pdplugins.contracts.workers import WorkerView


@dataclass(frozen=True, slots=True)
class Placement:
    """Tokens ``[0, split)`` of prompt plus output run on `first`, the rest on `second`.

    ``split == prompt`` is disaggregation, and ``first == second`` is local execution. Any other split is a pair of
    micro-requests (DynaServe). `second` may be None at arrival; the host then asks again when prefill is done (Arrow),
    or at once where prefill needs to know it (`BindsEarly`).
    """

    first: str
    """`WorkerView.id` of the worker that begins."""
    second: str | None
    """That of the one that goes on."""
    split: int
    """Tokens of prompt plus output."""
    reason: str = ""
    """One readable line for the log."""


swift_placement = swift(Placement)
"""``Placement(*values)`` in a third of the time."""


class Router(Protocol):
    """Decides where each token range of a request runs.

    `workers` are the workers that take new work. Hosts pass the same tuple object as long as neither the workers nor
    their roles have changed, so a router may cache what it derives from it. The loads change all the time.

    Where a router raises, or names a worker that takes no work, its own fallback places that request, else the least
    loaded workers get it.
    """

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request, or one round of a session, that has just arrived."""
        ...

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Fill in `second` of a placement that was left open at arrival, or whose `second` is gone since."""
        ...


class Ending(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """The client went away."""
    REFUSED = "refused"
    """The flow policy refused it; no router saw it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended, and how many tokens it had by then."""

    ending: Ending
    output_tokens: int = 0
    """Output tokens that the client got."""
    ttft_s: float | None = None
    """Time to its first token; None without one, or where the host does not see it, as for an answer in one piece."""
    tpot_s: float | None = None
    """Its time per output token; None like `ttft_s`, and for an answer that is not whole."""


@runtime_checkable
class HearsOutcomes(Protocol):
    """A router or flow policy that hears exactly once how each request ended, whatever happened to it."""

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Learn from a request that has ended."""
        ...


@runtime_checkable
class FallsBack(Protocol):
    """A router with a simpler one in place of itself: hosts ask that where the router itself raises."""

    @property
    def fallback(self) -> Router:
        """The simpler router."""
        ...


@runtime_checkable
class PlansAhead(Protocol):
    """A router with work that no request should wait for, such as solving a programme.

    Hosts call `plan_ahead` about once a second, between requests, and then take the role moves of a router that has
    any. A host that never calls it loses only what the router would have changed there.
    """

    def plan_ahead(self, workers: tuple[WorkerView, ...], now_s: float) -> None:
        """Do that work, if it is time for it."""
        ...


@runtime_checkable
class BindsEarly(Protocol):
    """A router that leaves `second` open, keeps books of prompts, and can serve where prefill needs to know `second`.

    SGLang's stock prefill servers begin only when a decode server has been named. A host that has such workers calls
    `bind_early` at arrival, and `on_prefilled` once the prompt is computed. It calls `on_prefill_done` at arrival for
    a router that is not one of these, which must take it for the end of prefill.
    """

    def bind_early(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Fill in `second` of a placement whose prompt is still to be computed."""
        ...

    def on_prefilled(self, request: Request, now_s: float) -> None:
        """Learn that the prompt of a request that was bound early is computed, unless the request ended before."""
        ...


@runtime_checkable
class ElasticRouter(Protocol):
    """A router with its own pools, which treats roles as labels that it changes. Hosts show its pools over time."""

    @property
    def pools(self) -> tuple[int, int]:
        """Number of workers that get new prefills now, and number of workers that get new decodes."""
        ...
