"""A histogram for what is seen for each token: several equal values are one call, and nothing is locked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Histogram(Collector):
    """One histogram without labels. One thread observes, any may scrape.

    :param bounds: upper bounds of its buckets, ascending; one without a bound is added.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float, times: int = 1) -> None:
        """Take in one value, or several of the same."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[Metric]:
        """Yield the family with its values now."""
        total, buckets = 0, []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], list(self._counts), strict=True):
            total += count
            buckets.append((bound, float(total)))
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], buckets, self._sum)
        yield family
