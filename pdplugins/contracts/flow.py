"""Flow control: what waits before the workers, in which order it goes on, and what is refused.

A flow policy owns the order of one queue. The host tells it of each arrival, and asks for the next request to place
whenever something may have changed: an arrival, a worker that became free, a worker that came or changed its role, or
the time that the policy itself asked for. A request is placed by the router at the moment it goes on, not before (late
binding). The host keeps the requests; whatever a policy does, none of them is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pdplugins.contracts.request import Request
from pdplugins.contracts.workers import WorkerView


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request that waits before the workers."""

    request: Request
    since_s: float
    """Time at which it came."""
    due_s: float
    """Time by which its first token must be there: arrival plus the TTFT objective."""


@dataclass(frozen=True, slots=True)
class Go:
    """Place this request now."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer this request with 503 and ``Retry-After``."""

    request_id: str
    retry_after_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing goes on now."""

    until_s: float | None = None
    """Ask again at this time even if nothing has changed; None: when something changes."""


FlowDecision = Go | Refuse | Hold


class Flow(Protocol):
    """Orders what waits. Every call costs at most O(log n) of n waiting requests."""

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        """Take in a request that waits from now on."""
        ...

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        """Say what happens next. The host asks again after each `Go` and `Refuse`, until the answer is `Hold`.

        :param workers: those that take new work, as routers see them: the same tuple until one of them changes.
        """
        ...

    def on_left(self, request_id: str) -> None:
        """Forget a waiting request whose client has gone away."""
        ...
