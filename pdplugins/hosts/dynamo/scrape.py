"""Reads what is on the Prometheus ``/metrics`` page of Dynamo's frontend, without a Prometheus server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

FRONTEND = "dynamo_frontend_"
"""How the names of the frontend's metrics begin; some are on the page from the start."""


def samples(page: str, names: tuple[str, ...], model: str | None = None) -> list[Sample]:
    """Return the samples of the metrics called `names`; of one model, in lower case as the frontend's label, if given.

    Lines of other metrics are not parsed: a page has hundreds of them. Raises ValueError when it is not the page of a
    frontend: without this, any other page would tell that there is no traffic.
    """
    if FRONTEND not in page:
        raise ValueError(f"there is no metric {FRONTEND}… on the page")
    lines = [line for line in page.splitlines() if line.startswith(names)]
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    return [s for family in families for s in family.samples if model in {None, s.labels.get("model")}]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Running totals of one metric, over all its labels."""

    count: float
    total: float
    """Sum of all samples."""
    bounds: tuple[tuple[float, float], ...]
    """Upper bound of each bucket, ascending, and how many samples are at most that."""

    def since(self, before: Histogram) -> Histogram:
        """Return the samples that came after `before`."""
        then = dict(before.bounds)
        bounds = tuple((bound, count - then.get(bound, 0.0)) for bound, count in self.bounds)
        return Histogram(self.count - before.count, self.total - before.total, bounds)

    def plus(self, other: Histogram) -> Histogram:
        """Return the samples of both."""
        bounds = dict(self.bounds)
        for bound, count in other.bounds:
            bounds[bound] = bounds.get(bound, 0.0) + count
        return Histogram(self.count + other.count, self.total + other.total, tuple(sorted(bounds.items())))

    @property
    def mean(self) -> float | None:
        """Mean of the samples; None without samples."""
        return self.total / self.count if self.count > 0 else None

    @property
    def mean_square(self) -> float | None:
        """Estimate the mean of the squares; None where the buckets do not tell.

        Samples count as uniform within their bucket, those beyond the last bound as at it; then all are scaled to the
        mean, which is known exactly.
        """
        low, below, first, second = 0.0, 0.0, 0.0, 0.0
        for bound, count in self.bounds:
            high, inside = low if bound == float("inf") else bound, count - below
            first += inside * (low + high) / 2
            second += inside * (low * low + low * high + high * high) / 3
            low, below = high, count
        if self.mean is None or first <= 0:
            return None
        return second / self.count * (self.total / first) ** 2

    def share_below(self, limit: float) -> float | None:
        """Return the share of samples up to `limit`, linear within the bucket that it falls into."""
        if self.count <= 0:
            return None
        low, below = 0.0, 0.0
        for bound, count in self.bounds:
            if bound >= limit:
                part = (limit - low) / (bound - low) if bound != float("inf") else 0.0
                return (below + (count - below) * part) / self.count
            low, below = bound, count
        return 1.0


def histogram(found: Sequence[Sample], name: str) -> Histogram:
    """Return the histogram called `name` among the samples of a page; an empty one when it is not there."""
    buckets: dict[float, float] = {}
    for sample in _named(found, f"{name}_bucket"):
        bound = float(sample.labels["le"])
        buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return Histogram(
        count=sum(s.value for s in _named(found, f"{name}_count")),
        total=sum(s.value for s in _named(found, f"{name}_sum")),
        bounds=tuple(sorted(buckets.items())),
    )


def _named(found: Iterable[Sample], name: str) -> Iterable[Sample]:
    return (sample for sample in found if sample.name == name)
