"""Requests that wait before the workers, and go on in the order of a flow policy.

The router places a request when it goes on, not when it comes (late binding).
"""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic
from typing import Any

from pdplugins.contracts.flow import Flow, Hold, Refuse, Waiting
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Outcome
from pdplugins.gateway.admission import overloaded
from pdplugins.gateway.errors import FlowRefusedError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.workers import Workers
from pdplugins.runtime.decision import Journal
from pdplugins.runtime.flow import SafeFlow

RETRY_S = 1.0
"""Pause of the queue after a fault of its own."""


class AdmissionQueue:
    """The queue of one gateway. `run` asks the flow policy for as long as the gateway serves.

    :param ttft_s: the TTFT objective: a request is due so long after it came.
    :param most_waiting: requests that may wait for a place; what comes on top is refused.
    :param worker_wait_s: so long after the last worker has gone all that wait are refused.
    """

    def __init__(
        self,
        flow: Flow,
        backends: Workers[Any],
        metrics: GatewayMetrics,
        ttft_s: float,
        *,
        most_waiting: int,
        worker_wait_s: float,
        journal: Journal | None = None,
    ) -> None:
        self._flow = SafeFlow(flow, most_waiting=most_waiting, journal=journal)
        self._most_waiting = most_waiting
        self._backends = backends
        self._metrics = metrics
        self._ttft_s = ttft_s
        self._worker_wait_s = worker_wait_s
        self._alone_since_s: float | None = None
        """Since when no worker is there; None while the workers can serve a request."""
        self._waiting: dict[str, asyncio.Future[Refuse | None]] = {}
        self._in_service: set[str] = set()
        self._changed = asyncio.Event()
        self._asked = asyncio.Event()
        """Clear while the policy has not been asked since the last change."""
        backends.listen(self._change)

    @property
    def length(self) -> int:
        """Requests that wait."""
        return len(self._flow)

    async def admit(self, request: Request) -> None:
        """Return once `request` may go on. Raises FlowRefusedError.

        Cancelled, it leaves the queue. In a burst, requests that will go on at once still fill it: they do not wait,
        so before it refuses one the queue lets them go.
        """
        if len(self._flow) >= self._most_waiting:
            await self._asked.wait()
        now_s = monotonic()
        own_s = request.terms and request.terms.ttft_s
        waiting = Waiting(request, now_s, request.arrival_s + (own_s or self._ttft_s))
        if (refusal := self._flow.arrived(waiting, now_s)) is not None:
            self._metrics.overload("waiting")
            raise self._error(refusal)
        future = self._waiting[request.id] = asyncio.get_running_loop().create_future()
        self._metrics.waiting.set(len(self._flow))
        self._change()
        try:
            refusal = await future
        finally:
            if self._waiting.pop(request.id, None) is not None:
                self._flow.left(request.id)
                self._metrics.waiting.set(len(self._flow))
            self._metrics.wait.observe(monotonic() - now_s)
        if refusal is not None:
            raise self._error(refusal)

    def ended(self, request: Request, outcome: Outcome) -> None:
        """Tell the flow policy how a request ended, whether or not it went on."""
        self._in_service.discard(request.id)
        self._flow.ended(request, outcome)
        self._change()

    async def run(self) -> None:
        """Ask the flow policy whenever something has changed, or at the time that it has named."""
        while True:
            self._changed.clear()
            try:
                until_s = self._refuse_all_without_workers(await self._ask())
            except Exception as error:  # a fault of the gateway: what waits must not wait for ever
                self._metrics.fault("gateway_error", error, error)
                until_s = monotonic() + RETRY_S
            self._asked.set()
            if self._changed.is_set():
                self._asked.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if until_s is None else max(until_s - monotonic(), 0.0)):
                    await self._changed.wait()

    def _change(self) -> None:
        """Have the policy asked in the next turn of the event loop."""
        self._changed.set()
        self._asked.clear()

    async def _ask(self) -> float | None:
        """Let go on, and refuse, what the policy says; return when it wants to be asked again."""
        while True:
            decision = self._flow.next(self._backends.now_ready(), monotonic(), len(self._in_service))
            if isinstance(decision, Hold):
                return decision.until_s
            self._metrics.waiting.set(len(self._flow))
            future = self._waiting.pop(decision.request_id)
            if future.done():  # its client has gone away
                continue
            if isinstance(decision, Refuse):
                future.set_result(decision)
                continue
            self._in_service.add(decision.request_id)
            future.set_result(None)
            await self._entered()

    def _refuse_all_without_workers(self, until_s: float | None) -> float | None:
        """Refuse all that wait where no worker has been there for too long; return when to look again.

        Those that come meanwhile wait before the queue, for as long.
        """
        if self._backends.serves.is_set():
            self._alone_since_s = None
            return until_s
        now_s = monotonic()
        self._alone_since_s = now_s if self._alone_since_s is None else self._alone_since_s
        end_s = self._alone_since_s + self._worker_wait_s
        if now_s < end_s:
            return end_s if until_s is None else min(until_s, end_s)
        for request_id, future in self._waiting.items():
            self._flow.left(request_id)
            if not future.done():
                future.set_exception(overloaded("no worker is there"))
        self._waiting.clear()
        self._metrics.waiting.set(len(self._flow))
        return until_s

    @staticmethod
    async def _entered() -> None:
        """Wait until the books show the request that went on. Before that its place would seem free to the policy.

        It is placed in the next turn of the event loop, and its legs enter the books in the one after that.
        """
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _error(self, refusal: Refuse) -> FlowRefusedError:
        self._metrics.refused.inc()
        why = f": {refusal.reason}" if refusal.reason else ""
        return FlowRefusedError(503, f"too many requests wait{why}", refusal.retry_after_s)
