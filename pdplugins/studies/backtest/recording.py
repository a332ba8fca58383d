"""What was recorded: the requests, the times that clients felt, and the workers that there were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdplugins.hosts.dynamo.scrape import Histogram
from pdplugins.results import Spread
from pdplugins.workloads.trace import TraceRequest

PARTS = 12
"""Parts of equal length in which a recording is compared with its simulation."""


@dataclass(frozen=True, slots=True)
class Pools:
    """The workers from a moment on."""

    at_s: float
    """Seconds since the start of the recording."""
    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.prefill}P{self.decode}D"


@dataclass(frozen=True, slots=True)
class Latencies:
    """Mean latencies of the requests that came in a part of the recording; None where nothing says them."""

    start_s: float
    end_s: float
    requests: int
    ttft_s: float | None
    """Mean."""
    itl_s: float | None
    """Mean of the gaps between output tokens."""


@dataclass(frozen=True, slots=True)
class AttainmentBounds:
    """Bounds on the share of requests inside both objectives: it is exact where they are equal."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Recording:
    """Traffic that has been."""

    name: str
    requests: list[TraceRequest]
    """Times count from the start of the recording."""
    duration_s: float
    ttft: Spread
    itl: Spread
    attainment: AttainmentBounds | None
    by_part: tuple[Latencies, ...]
    pools: tuple[Pools, ...]
    """Ascending; empty where nothing says it."""
    notes: tuple[str, ...]
    """What a reader must know of it, a line each."""
    per_request: bool = False
    """Whether `itl` has the mean of each request, not every gap."""

    def gpu_s(self, prefill_tp: int, decode_tp: int) -> float:
        """Return the GPU-seconds that its workers held."""
        ends = [*(pools.at_s for pools in self.pools[1:]), self.duration_s]
        return sum(
            (pools.prefill * prefill_tp + pools.decode * decode_tp) * (end_s - pools.at_s)
            for pools, end_s in zip(self.pools, ends, strict=True)
        )


def changes(history: Sequence[Pools]) -> tuple[Pools, ...]:
    """Return only those that differ from the ones before."""
    kept: list[Pools] = []
    for pools in history:
        if not kept or (pools.prefill, pools.decode) != (kept[-1].prefill, kept[-1].decode):
            kept.append(pools)
    return tuple(kept)


def total(parts: Sequence[Histogram]) -> Histogram:
    """Return the sum of histograms of one metric."""
    bounds: dict[float, float] = {}
    for part in parts:
        for bound, count in part.bounds:
            bounds[bound] = bounds.get(bound, 0.0) + count
    return Histogram(sum(p.count for p in parts), sum(p.total for p in parts), tuple(sorted(bounds.items())))


def quantile(found: Histogram, share: float) -> float | None:
    """Return a quantile, linear within its bucket; None without samples, or where it lies beyond the last bound."""
    low, below = 0.0, 0.0
    wanted = share * found.bounds[-1][1] if found.bounds else 0.0
    if wanted <= 0:
        return None
    for bound, count in found.bounds:
        if count >= wanted:
            return None if bound == float("inf") else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return None


def spread(found: Histogram) -> Spread:
    """Return mean and quantiles of a histogram."""
    return Spread(mean=found.mean, **{f"p{100 * q:.0f}": quantile(found, q) for q in (0.5, 0.9, 0.99)})
