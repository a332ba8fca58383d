"""What policies cost and how often they failed, apart from the simulation itself."""

from __future__ import annotations

import logging
from collections import Counter

log = logging.getLogger("pdplugins.sim")


class PolicyClock:
    """Wall time, calls and faults of each kind of policy."""

    def __init__(self) -> None:
        self.router_calls = 0
        self.router_ns = 0
        self.faults: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._ns: Counter[str] = Counter()

    def add(self, kind: str, nanoseconds: int) -> None:
        """Count one call of anything but a router, which is called too often for this."""
        self._calls[kind] += 1
        self._ns[kind] += nanoseconds

    @property
    def calls(self) -> Counter[str]:
        """Calls by kind of policy."""
        return self._calls + Counter(router=self.router_calls)

    @property
    def seconds(self) -> dict[str, float]:
        """Wall seconds by kind of policy."""
        return {kind: ns / 1e9 for kind, ns in (self._ns + Counter(router=self.router_ns)).items()}

    def fault(self, kind: str, why: Exception | str) -> None:
        """Count one call that did not give an answer to follow; log the first."""
        self.faults[kind] += 1
        if self.faults[kind] == 1:
            log.warning("%s: %s; the simulator's own way is taken", kind, why)
