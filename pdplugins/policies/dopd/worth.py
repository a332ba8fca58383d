"""What pools are worth by the planner's own model: the share of requests expected inside both objectives.

It is an estimate to explain decisions with. No decision depends on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from pdplugins.policies.dopd.staffing import Service, whole_workers

PARTS = 8
"""Moments of the time ahead at which the queue is looked at."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The load of one start-up time, as the planner expects it when the workers that it asks for serve."""

    ttft_s: float
    """The TTFT objective."""
    ahead_s: float
    """The time that is looked at."""
    work: float
    """Busy prefill workers."""
    service: Service
    dispersion_s: float
    """D of :mod:`pdplugins.policies.dopd.staffing`."""
    backlog_s: float
    """Prefill work that waits already, in seconds of one worker."""
    remote_share: float
    """Share of the requests that prefill on prefill workers."""
    busy: float
    """Decode workers that the mean concurrency fills, and those that local prompts keep busy."""
    busy_deviation: float
    """Standard deviation of these."""

    @property
    def pools(self) -> tuple[int, int]:
        """The prefill and decode workers that the load keeps busy, rounded up."""
        return whole_workers(self.work), whole_workers(self.busy)

    def attainment(self, prefill: int, decode: int) -> float:
        """Return the share of requests that pools of this size would serve inside both objectives, 0 to 1."""
        remote = self._in_time(prefill) if self.work > 0 else 1.0
        spare = decode - self.busy
        fits = NormalDist().cdf(spare / self.busy_deviation) if self.busy_deviation > 0 else float(spare >= 0)
        return min(max((self.remote_share * remote + 1 - self.remote_share) * fits, 0.0), 1.0)

    def _in_time(self, workers: int) -> float:
        """Return the share of prompts that `workers` compute within the TTFT objective.

        What waits changes by the work less the workers. On top comes Kingman's wait of Eq. 10, which is exponential
        where workers are busy (Kingman 1962). As it takes time to build up, it is no longer than after `ahead_s`.
        """
        spread = self.work * self.dispersion_s
        gap = max(workers - self.work, workers * math.sqrt(self.dispersion_s / self.ahead_s))
        busy, mean_s = min(self.work / workers, 1.0), spread / (2 * gap) if gap > 0 else 0.0  # no gap: nothing varies
        found = 0.0
        for part in range(PARTS):
            waiting_s = self.backlog_s + (self.work - workers) * self.ahead_s * (part + 0.5) / PARTS
            for weight, time_s in self.service.times:
                left_s = self.ttft_s - time_s - max(waiting_s, 0.0) / workers
                if left_s >= 0:
                    found += weight * (1 - busy * math.exp(-left_s * busy / mean_s if mean_s > 0 else -math.inf))
        return found / PARTS
