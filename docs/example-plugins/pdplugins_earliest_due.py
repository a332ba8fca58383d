"""A flow policy: who must be answered first goes first, and who can no longer be answered in time is refused."""

from heapq import heappop, heappush

from pydantic import BaseModel, Field

import pdplugins
from pdplugins.types import (
    Deployment,
    FlowDecision,
    Go,
    Hold,
    Outcome,
    Refuse,
    Register,
    Request,
    Waiting,
    WorkerView,
)


class EarliestDueSettings(BaseModel, extra="forbid"):
    """The keys that users may write under ``flow:``, beside ``name: earliest_due``."""

    per_worker: int = Field(16, ge=1, description="requests in service for each worker; the others wait")
    retry_after_s: float = Field(5.0, gt=0, description="what a refused client is told")


class EarliestDue:
    """Keeps what waits in a heap by deadline. Every operation costs O(log n)."""

    def __init__(self, settings: EarliestDueSettings, deployment: Deployment) -> None:
        self._settings = settings
        self._heap: list[tuple[float, str]] = []
        self._waiting: set[str] = set()
        self._in_service: set[str] = set()

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        """Take in a request that waits."""
        self._waiting.add(waiting.request.id)
        heappush(self._heap, (waiting.due_s, waiting.request.id))

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        """Let the most urgent request go when there is a free place, and refuse what is too late already."""
        while self._heap and self._heap[0][1] not in self._waiting:
            heappop(self._heap)  # it has left meanwhile
        if not self._heap:
            return Hold()
        due_s, request_id = self._heap[0]
        if due_s <= now_s:
            self.on_left(request_id)
            return Refuse(
                request_id, self._settings.retry_after_s, f"its first token was due {now_s - due_s:.2f} s ago"
            )
        if len(self._in_service) >= self._settings.per_worker * len(workers):
            return Hold(until_s=due_s)
        self.on_left(request_id)
        self._in_service.add(request_id)
        return Go(request_id)

    def on_left(self, request_id: str) -> None:
        """Forget a request that no longer waits."""
        self._waiting.discard(request_id)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Free the place of a request that has ended, however it did."""
        self._in_service.discard(request.id)


@pdplugins.hookimpl
def pd_register_flows(register: Register) -> None:
    """Make ``flow: earliest_due`` a valid choice."""
    register("earliest_due", EarliestDue, EarliestDueSettings)
