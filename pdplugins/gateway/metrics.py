"""What a gateway does, as Prometheus metrics named ``pdplugins_gateway_…``, and the log of what went wrong."""

from __future__ import annotations

import logging
from collections import Counter

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as PrometheusCounter

from pdplugins.contracts.kinds import Kind
from pdplugins.errors import one_line
from pdplugins.runtime.decision import Fault, Journal

log = logging.getLogger("pdplugins.gateway")

LOG_EVERY = 1000
"""After the first fault of a kind, one in this many is logged."""
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class GatewayMetrics:
    """The metrics of one gateway.

    :param prefix: how their names begin; another host that serves requests has its own.
    """

    def __init__(self, prefix: str = "pdplugins_gateway_") -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> PrometheusCounter:
            return PrometheusCounter(prefix + name, text, labels, registry=self.registry)

        self.requests = counter("requests", "Requests by how they ended", "outcome")
        self.primitives = counter("primitives", "What placements came to: pair, push, local, head, warm", "primitive")
        self._faults = counter("faults", "What did not go as the router or the client wanted, by kind", "kind")
        self.servers = counter("server_events", "Servers of --launch: started, ready, hung, died", "server", "event")
        self.ttft = Histogram(prefix + "ttft_seconds", "Time to first token", buckets=BUCKETS_S, registry=self.registry)
        self.in_flight = Gauge(prefix + "requests_in_flight", "Requests now", registry=self.registry)
        self.waiting = Gauge(
            prefix + "requests_waiting", "Requests that wait before the workers now", registry=self.registry
        )
        self.refused = counter("requests_refused", "Requests that the flow policy refused, or that found a full queue")
        self.connections = Gauge(
            prefix + "connections", "Connections to a listener now", ["listener"], registry=self.registry
        )
        self.closed = counter("connections_closed", "Connections that the gateway closed, and why", "why")
        self._overloads = counter("overloads", "Refusals because of a limit, by what there was too much of", "of")
        self.wait = Histogram(
            prefix + "wait_seconds", "Time in the queue before the workers", buckets=BUCKETS_S, registry=self.registry
        )
        self.pools = Gauge(
            prefix + "elastic_pool", "Workers in the pools of a router with its own", ["role"], registry=self.registry
        )
        self.role_changes = counter(
            "role_changes", "Changes of workers' labels: begun, done or refused, by who proposed them", "by", "stage"
        )
        self._load = Gauge(
            prefix + "load", "Load by worker, as the router sees it", ["worker", "of"], registry=self.registry
        )
        self.faults: Counter[str] = Counter()

    def fault(self, kind: str, why: object, error: Exception | None = None) -> None:
        """Count one fault; log the first of its kind, with its traceback, and then one in a thousand."""
        self.count(kind)
        if self.faults[kind] % LOG_EVERY == 1:
            log.warning("%s (%d so far): %s", kind, self.faults[kind], one_line(why), exc_info=error)

    def overload(self, of: str) -> None:
        """Count a refusal: there is too much of something."""
        self._overloads.labels(of).inc()

    def count(self, kind: str) -> None:
        """Count one fault that is logged elsewhere."""
        self.faults[kind] += 1
        self._faults.labels(kind).inc()

    def load(self, worker: str, values: dict[str, float]) -> None:
        """Show the load of one worker."""
        for name, value in values.items():
            self._load.labels(worker, name).set(value)


class GatewayJournal:
    """A `pdplugins.runtime.decision.Journal` that also counts the faults of policies with those of the gateway."""

    def __init__(self, inner: Journal, metrics: GatewayMetrics) -> None:
        self._inner = inner
        self._metrics = metrics
        self.skips = inner.skips
        self.decided = inner.decided
        self.signals = inner.signals
        self.close = inner.close

    def fault(self, kind: Kind, fault: Fault, why: str, error: Exception | None = None) -> None:
        """Count a fault as ``<kind>_<fault>``, such as ``router_policy_error``. The policy's safe wrapper logs it."""
        self._inner.fault(kind, fault, why, error)
        self._metrics.count(f"{kind}_{fault}")
