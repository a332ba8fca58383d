"""What runs beside the requests for as long as the gateway does, and must not end before it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pdplugins.gateway.metrics import GatewayMetrics

AGAIN_S = 1.0
"""Pause before a watcher that has failed starts anew."""


async def keep(work: Callable[[], Awaitable[None]], metrics: GatewayMetrics) -> None:
    """Run `work`, which has no end; what it raises is counted and logged, and it starts anew."""
    while True:
        try:
            await work()
        except Exception as error:
            metrics.fault("gateway_error", error, error)
        await asyncio.sleep(AGAIN_S)
