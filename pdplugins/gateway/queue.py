"""Requests that wait before the workers, and go on in the order of a flow policy.

The router places a request when it goes on, not when it comes (late binding).
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from pdplugins.contracts.flow import Hold, Refuse, Waiting
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Outcome
from pdplugins.gateway.errors import FlowRefusedError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.workers import Workers
from pdplugins.runtime.flow import SafeFlow

RETRY_S = 1.0
"""Pause of the queue after a fault of its own."""


class AdmissionQueue:
    """The queue of one gateway. `run` asks the flow policy for as long as the gateway serves.

    :param ttft_s: the TTFT objective: a request is due so long after it came.
    """

    def __init__(self, flow: SafeFlow, backends: Workers[Any], metrics: GatewayMetrics, ttft_s: float) -> None:
        self._flow = flow
        self._backends = backends
        self._metrics = metrics
        self._ttft_s = ttft_s
        self._waiting: dict[str, asyncio.Future[Refuse | None]] = {}
        self._in_service: set[str] = set()
        self._changed = asyncio.Event()
        backends.listen(self._changed.set)

    @property
    def length(self) -> int:
        """Requests that wait."""
        return len(self._flow)

    async def admit(self, request: Request) -> None:
        """Return once `request` may go on. Raises FlowRefusedError.

        Cancelled, it leaves the queue.
        """
        now_s = monotonic()
        own_s = request.terms and request.terms.ttft_s
        waiting = Waiting(request, now_s, request.arrival_s + (own_s or self._ttft_s))
        if (refusal := self._flow.arrived(waiting, now_s)) is not None:
            raise self._error(refusal)
        future = self._waiting[request.id] = asyncio.get_running_loop().create_future()
        self._metrics.waiting.set(len(self._flow))
        self._changed.set()
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
        self._changed.set()

    async def run(self) -> None:
        """Ask the flow policy whenever something has changed, or at the time that it has named."""
        while True:
            try:
                until_s = await self._ask()
            except Exception as error:  # a fault of the gateway: what waits must not wait for ever
                self._metrics.fault("gateway_error", error, error)
                until_s = monotonic() + RETRY_S
            try:
                async with asyncio.timeout(None if until_s is None else max(until_s - monotonic(), 0.0)):
                    await self._changed.wait()
            except TimeoutError:
                continue
            self._changed.clear()

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
