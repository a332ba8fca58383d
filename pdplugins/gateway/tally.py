"""A counter for what is counted with every request: Prometheus's own takes a lock each time."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class Tally(Collector):
    """One counter, with at most one label. One thread counts, any may scrape.

    :param label: the name of its label; None: it has none, and is there from the beginning.
    """

    def __init__(self, name: str, text: str, registry: CollectorRegistry, label: str | None = None) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._counts: dict[str, float] = {} if label else {"": 0}
        registry.register(self)

    def add(self, count: float = 1, value: str = "") -> None:
        """Count so many more, of this value of the label."""
        self._counts[value] = self._counts.get(value, 0) + count

    def count(self, value: str = "") -> float:
        """Return what has been counted of a value of the label."""
        return self._counts.get(value, 0)

    def collect(self) -> Iterator[Metric]:
        """Yield the family with its counts now."""
        family = CounterMetricFamily(self._name, self._text, labels=[self._label] if self._label else None)
        for value, count in list(self._counts.items()):
            family.add_metric([value] if self._label else [], count)
        yield family
