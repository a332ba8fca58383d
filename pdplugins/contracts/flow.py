"""Flow control: which requests wait before the router, in which order they go on, and which are refused.

A flow policy owns the order of one queue. The host tells it about each arrival. The host asks for the next request to
place whenever something may have changed: a request arrived, a worker became free, started or changed its role, or the
time has come that the policy asked for. The router places a request only when the policy lets it go on (late binding).
The host keeps the requests, so a policy cannot lose one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pdplugins.contracts.request import Request
from pdplugins.contracts.workers import WorkerView


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request that waits before the router."""

    request: Request
    since_s: float
    """Time at which it came."""
    due_s: float
    """Time by which its first token is due: arrival plus the TTFT objective."""


@dataclass(frozen=True, slots=True)
class Go:
    """Place this request now."""

    request_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer this request with 503 and ``Retry-After``."""

    request_id: str
    retry_after_s: float
    """Seconds after which the client may come again."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Place no request now."""

    until_s: float | None = None
    """Ask again at this time even if nothing has changed; None to ask only when something changes."""


FlowDecision = Go | Refuse | Hold


class Flow(Protocol):
    """Orders the waiting requests. Every call costs at most O(log n) for n waiting requests.

    Where it raises, or answers with what cannot be followed, the request that came first goes on.
    """

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        """Take in a request that waits from now on."""
        ...

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        """Decide what happens next. The host asks again after each `Go` and `Refuse`, until the answer is `Hold`.

        :param workers: the workers that take new work, as routers see them. It is the same tuple until one changes.
        """
        ...

    def on_left(self, request_id: str) -> None:
        """Forget a waiting request whose client has gone away."""
        ...
