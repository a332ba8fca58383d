"""What policies do, as Prometheus metrics named ``pdplugins_<kind>_…``: the same structure for every kind.

Counts are plain numbers that a scrape reads, since a router decides thousands of times a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import PlannerView, ScalePlan
from pdplugins.contracts.workers import Role
from pdplugins.errors import cannot_listen, one_line
from pdplugins.runtime.decision import Fault

SLOW_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Of policies that decide every few seconds."""
FAST_BUCKETS_S = (0.000002, 0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.01, 0.1, 1.0)
"""Of policies that decide for each request or step."""
READ_S = 10.0
"""How long a client of the metrics may take for each part of its request."""
CHANGES = ("scale_up", "scale_down", "hold")
MOST_SIGNALS = 64
"""Signals of one policy that are exported; further names are left out."""
MOST_NAME = 64
"""Characters of a signal's name."""


class Metrics(Collector):
    """The metrics of one kind of policy. Each `registry` holds them once. One thread counts, any may scrape."""

    def __init__(self, kind: Kind, registry: CollectorRegistry) -> None:
        self.kind = kind
        self.registry = registry
        self._prefix = f"pdplugins_{kind}_"
        self._bounds = SLOW_BUCKETS_S if kind in {Kind.PLANNER, Kind.POWER} else FAST_BUCKETS_S
        self._buckets = [0] * (len(self._bounds) + 1)
        self._step_s = 0.0
        self._errors: Counter[str] = Counter()
        self._signals: dict[str, float] = {}
        self.shadow = False
        """Whether nobody follows what is decided."""
        # From the first scrape on: a rule sees no increase in a series that begins with the event.
        self._changes = Counter({(role.value, change): 0 for role in Role for change in CHANGES})
        self._workers: dict[str, dict[str, float]] = {"target_replicas": {}, "ready_replicas": {}}
        registry.register(self)

    def decided(self, step_s: float) -> None:
        """Count one decision."""
        self._buckets[bisect_left(self._bounds, step_s)] += 1
        self._step_s += step_s

    def scaled(self, plan: ScalePlan, before: ScalePlan | None, view: PlannerView | None) -> None:
        """Take in a planner's answer; `before` is the plan that held until now, None when it is not known."""
        for role in Role:
            now = _workers_of(plan, role)
            then = now if before is None else _workers_of(before, role)
            self._workers["target_replicas"][role] = now
            self._changes[role, "scale_up" if now > then else "scale_down" if now < then else "hold"] += 1
            if view is not None:
                with suppress(TypeError, ValueError, OverflowError):  # a page with what is no number is no page at all
                    ready = (view.prefill if role is Role.PREFILL else view.decode).ready
                    self._workers["ready_replicas"][role] = float(ready)
        self.signals(plan.signals)

    def signals(self, signals: Mapping[str, float]) -> None:
        """Show the numbers behind the last decision."""
        for said, value in islice(signals.items(), MOST_SIGNALS):
            # A page with a name that cannot be encoded is no page at all.
            name = said if said in self._signals else one_line(said, MOST_NAME)
            if name in self._signals or len(self._signals) < MOST_SIGNALS:
                self._signals[name] = float(value)

    def fault(self, fault: Fault) -> None:
        """Count one fault."""
        self._errors[fault.value] += 1

    def describe(self) -> Iterator[Metric]:
        """Yield the families without values, by which a registry knows the names that are taken."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield every family with its values now."""
        prefix = self._prefix
        yield GaugeMetricFamily(prefix + "shadow", "1: nobody follows what is decided; else 0", value=self.shadow)
        signals = GaugeMetricFamily(
            prefix + "signal", "Forecasts and other numbers behind the last decision that had some", labels=["name"]
        )
        for name, value in list(self._signals.items()):
            signals.add_metric([name], value)
        yield signals
        if self.kind is Kind.PLANNER:
            yield from self._planned()
        else:
            yield CounterMetricFamily(prefix + "decisions", "Decisions", value=sum(self._buckets))
        errors = CounterMetricFamily(
            prefix + "errors", "Decisions that are not the policy's own, and other faults, by kind", labels=["kind"]
        )
        for name, count in list(self._errors.items()):
            errors.add_metric([name], count)
        yield errors
        yield self._steps()

    def _planned(self) -> Iterator[Metric]:
        for name, text in (("target_replicas", "Workers that the planner wants"), ("ready_replicas", "Workers ready")):
            gauge = GaugeMetricFamily(self._prefix + name, text, labels=["role"])
            for role, value in list(self._workers[name].items()):
                gauge.add_metric([role], value)
            yield gauge
        decisions = CounterMetricFamily(
            self._prefix + "decisions", "Decisions: scale_up, scale_down or hold", labels=["role", "kind"]
        )
        for labels, count in list(self._changes.items()):
            decisions.add_metric(labels, count)
        yield decisions

    def _steps(self) -> Metric:
        total, buckets = 0, []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], list(self._buckets), strict=True):
            total += count
            buckets.append((bound, float(total)))
        family = HistogramMetricFamily(self._prefix + "step_seconds", f"Time of one decision of the {self.kind}")
        family.add_metric([], buckets, self._step_s)
        return family

    def serve(self, port: int, host: str = "127.0.0.1") -> Callable[[], None]:
        """Serve ``/metrics`` on `port`; returns what stops it. Raises HostError when it cannot listen."""
        try:
            server, thread = start_http_server(port, host, self.registry)
        except (OSError, OverflowError, UnicodeError) as error:
            raise cannot_listen(f"{self.kind} metrics", host, port, error) from None
        handler: Any = server.RequestHandlerClass  # each connection has a thread, for as long as nobody closes it
        server.RequestHandlerClass = type("Handler", (handler,), {"timeout": READ_S})

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop


def _workers_of(plan: ScalePlan, role: Role) -> int:
    return plan.prefill if role is Role.PREFILL else plan.decode


@cache
def process_metrics(kind: Kind) -> Metrics:
    """Return the metrics in prometheus-client's own registry, which hosts such as Dynamo's planner already serve."""
    return Metrics(kind, REGISTRY)
