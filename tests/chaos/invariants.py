"""What must hold after every fault of a gateway: nothing of any request is left, and nobody else was hurt."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from tests.chaos.plan import Fault
from tests.chaos.stage import Stage

SETTLE_S = 40.0
"""Within which everything is back: above the longest deadline of a request."""
SPARE_DESCRIPTORS = 24
"""Idle connections to workers, which come and go."""
GROWTH_MIB = 32.0
"""By which the memory may differ from that after the first round, which fills caches and the allocator's arenas."""
OURS = ("gateway_error", "router_policy_error", "flow_policy_error")
"""Faults that would be the gateway's own."""


async def come_true(what: Callable[[], Any], within_s: float = SETTLE_S) -> Any:
    """Return what `what` last said, at the latest when the time is over."""
    ends_s = time.monotonic() + within_s
    while not (said := what()) and time.monotonic() < ends_s:
        await asyncio.sleep(0.05)
    return said


class Invariants:
    """The checks of one gateway. Make it after the first steady requests."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.descriptors = stage.descriptors
        self.held: list[dict[str, float]] = []
        """Memory and descriptors after each round."""

    async def after(self, batch: Sequence[Fault[Stage]]) -> None:
        """Raise AssertionError where a fault left something, or hurt somebody."""
        stage = self.stage
        assert stage.gateway.child.poll() is None, f"the gateway ended: {stage.gateway.said[-2000:]}"
        async with stage.steady.quiet():
            stage.steady.check(max(fault.others for fault in batch))
            await self._books()

    async def _books(self) -> None:
        """Gateway and workers hold nothing, all workers serve again, and no fault was the gateway's own."""
        left: list[str] = []
        ends_s = time.monotonic() + SETTLE_S
        while time.monotonic() < ends_s:
            left = await self._left()
            if not left:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"after {SETTLE_S:g} s without requests there are still {'; '.join(left)}")

    async def _left(self) -> list[str]:
        async with aiohttp.ClientSession() as client:
            async with client.get(self.stage.admin_url + "/workers") as answer:
                workers = await answer.json()
            async with client.get(self.stage.admin_url + "/metrics") as answer:
                page = await answer.text()
        left = [f"{w['id']} {name} {n}" for w in workers for name, n in w["load"].items() if n and "recent" not in name]
        left += [f"{worker['id']} is away" for worker in workers if not worker["alive"]]
        names = ("requests_in_flight", "requests_waiting")
        left += [f"{name} {n:g}" for name in names if (n := value(page, f"pdplugins_gateway_{name}"))]
        left += [f"{len(worker.running)} requests run on a worker" for worker in self.stage.workers if worker.running]
        left += [f"{worker.rooms.alone} legs are alone" for worker in self.stage.workers[:1] if worker.rooms.alone]
        for kind in OURS:
            count = value(page, f'pdplugins_gateway_faults_total{{kind="{kind}"}}')
            assert not count, f"{count:g} faults {kind}: {self.stage.gateway.said[-3000:]}"
        return left

    async def after_round(self) -> None:
        """Note what the process holds; raise AssertionError where it grew."""
        most = self.descriptors + SPARE_DESCRIPTORS
        async with self.stage.steady.quiet():
            assert await come_true(lambda: self.stage.descriptors <= most), f"{self.stage.descriptors} descriptors"
        now = {"rss_mib": round(self.stage.rss_mib, 1), "descriptors": self.stage.descriptors}
        self.held.append(now)
        grown = now["rss_mib"] - self.held[0]["rss_mib"]
        assert grown <= GROWTH_MIB, f"memory grew by {grown:.0f} MiB since the first round: {self.held}"


def value(page: str, name: str) -> float:
    """Return the value of a metric; 0 where the page has none."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0
