"""What a node does with its watts, as Prometheus metrics named ``pdplugins_power_…``."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pdplugins.power.node import PowerNode


class NodeMetrics(Collector):
    """The metrics of one node. Any thread may scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.node: PowerNode | None = None
        self.held = {"stale": 0, "refused": 0, "rolled_back": 0}
        """Decisions that were not followed, and why."""
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Yield the families without values."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield every family with its values now."""
        prefix, node = "pdplugins_power_", self.node
        held = CounterMetricFamily(prefix + "held", "Decisions that were not followed, by why", labels=["why"])
        for why, count in self.held.items():
            held.add_metric([why], count)
        yield held
        if node is None:
            return
        names = {
            "draw_watts": "What a GPU draws now (measured)",
            "cap_watts": "The cap of a GPU (read back from the device)",
            "target_watts": "The cap that a GPU should have",
            "kept_watts": "The most that a GPU may draw now",
            "healthy": "Whether a GPU answered the last call, and took the last cap",
        }
        gauges = {name: GaugeMetricFamily(prefix + name, text, labels=["gpu"]) for name, text in names.items()}
        energy = CounterMetricFamily(prefix + "energy_joules", "Energy by the GPU's own counter", labels=["gpu"])
        for uuid, gpu in list(node.gpus.items()):
            gauges["healthy"].add_metric([uuid], float(gpu.fault is None and not gpu.refusal))
            account, reading = node.caps.accounts.get(uuid), gpu.reading
            if account is not None:
                gauges["target_watts"].add_metric([uuid], account.target_w)
                gauges["kept_watts"].add_metric([uuid], account.kept_w)
            if reading is not None:
                gauges["draw_watts"].add_metric([uuid], reading.draw_w)
                gauges["cap_watts"].add_metric([uuid], reading.cap_w)
                if reading.energy_j is not None:
                    energy.add_metric([uuid], reading.energy_j)
        yield from (*gauges.values(), energy)
        budget_w = node.caps.budget_w or 0.0
        yield GaugeMetricFamily(prefix + "budget_watts", "What all caps may sum to", value=budget_w)
        over_w = max(node.kept_w - budget_w, 0.0)
        yield GaugeMetricFamily(prefix + "over_budget_watts", "By which all may exceed the budget now", value=over_w)
        events = CounterMetricFamily(
            prefix + "events",
            "Writes, rollbacks, changes by others, draws over a cap and faults of GPUs",
            labels=["event"],
        )
        for name, count in list(node.counts.items()):
            events.add_metric([name], count)
        yield events
