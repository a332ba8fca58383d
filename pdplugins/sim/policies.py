"""What policies cost and how often they failed, apart from the simulation itself."""

from __future__ import annotations

import logging
from collections import Counter

log = logging.getLogger("pdplugins.sim")


class PolicyClock:
    """Wall time, calls and faults of each kind of policy."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.nanoseconds: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def add(self, kind: str, nanoseconds: int) -> None:
        """Count one call."""
        self.calls[kind] += 1
        self.nanoseconds[kind] += nanoseconds

    def fault(self, kind: str, why: Exception | str) -> None:
        """Count one call that did not give an answer to follow; log the first."""
        self.faults[kind] += 1
        if self.faults[kind] == 1:
            log.warning("%s: %s; the simulator's own way is taken", kind, why)
