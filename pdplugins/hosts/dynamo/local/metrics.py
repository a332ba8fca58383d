"""What the workers of the local stack do, as Prometheus metrics named ``pdplugins_local_…``."""

from __future__ import annotations

from functools import cache

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge


class FleetMetrics:
    """The metrics of one fleet. Each `registry` holds them once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        prefix = "pdplugins_local_"
        self._workers = Gauge(
            prefix + "workers", "Workers, by phase: starting, ready, draining", ["role", "phase"], registry=registry
        )
        self._events = Counter(
            prefix + "worker_events",
            "What happened to workers: started, ready, draining, stopped, died, never_ready, hung, not_drained, "
            "not_started, no_gpu",
            ["role", "event"],
            registry=registry,
        )
        self._planner_failures = Counter(
            prefix + "planner_failures", "Times that Dynamo's planner loop ended by itself", registry=registry
        )
        self._gpu_s = Counter(prefix + "gpu_seconds", "GPU-seconds held by workers", registry=registry)

    @classmethod
    def unseen(cls) -> FleetMetrics:
        """Return metrics that nobody can read."""
        return cls(CollectorRegistry())

    def workers(self, role: str, phase: str, count: int) -> None:
        """Say how many workers of a role are in a phase."""
        self._workers.labels(role, phase).set(count)

    def event(self, role: str, event: str) -> None:
        """Count one event."""
        self._events.labels(role, event).inc()

    def planner_failed(self) -> None:
        """Count one end of the planner loop."""
        self._planner_failures.inc()

    def gpu_seconds(self, spent_s: float) -> None:
        """Add GPU-seconds."""
        self._gpu_s.inc(spent_s)


@cache
def process_metrics() -> FleetMetrics:
    """Return the metrics in prometheus-client's own registry, which Dynamo's planner and ours already serve."""
    return FleetMetrics(REGISTRY)
