"""What pools are worth: the share of requests that is expected inside both SLOs, by the models that size the pools."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Worth:
    """The load, as both phases see it."""

    work: float
    """Prefill work in busy workers."""
    dispersion_s: float
    """D of Eq. 10."""
    slack_s: float
    """Seconds that a mean prompt may wait: the TTFT SLO without its own prefill."""
    concurrency: float
    """Requests that decode."""
    spread: float
    """Standard deviation of these."""
    cc_d: float
    """Requests that one decode worker may hold."""

    def of(self, prefill: int, decode: int) -> float:
        """Return the share of requests that is expected in time with these pools, 0 to 1.

        Prefill: the wait of Eq. 10 is exponential in heavy traffic (Kingman, 1962). Decode: the requests in flight are
        about normal, and in time while they fit. A queue that grows without end serves nobody in time.
        """
        rho = self.work / prefill
        if rho >= 1:
            return 0.0
        waits = 0.0 if self.dispersion_s <= 0 else rho * math.exp(-2 * (1 - rho) * self.slack_s / self.dispersion_s)
        free = self.cc_d * decode - self.concurrency
        fits = float(free >= 0) if self.spread <= 0 else NormalDist().cdf(free / self.spread)
        return (1 - waits) * fits
