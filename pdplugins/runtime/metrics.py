"""What a planner does, as Prometheus metrics named ``pdplugins_planner_…``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from pdplugins.contracts.planner import PlannerView, ScalePlan
from pdplugins.contracts.workers import Role
from pdplugins.errors import HostError

if TYPE_CHECKING:
    from pdplugins.runtime.decision import Decision, Fault

STEP_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class PlannerMetrics:
    """The metrics of one planner. Each `registry` holds them once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        prefix = "pdplugins_planner_"
        self._signal = Gauge(
            prefix + "signal",
            "Forecasts and other numbers behind the last decision",
            ["name"],
            registry=registry,
        )
        self._target = Gauge(prefix + "target_replicas", "Workers that the planner wants", ["role"], registry=registry)
        self._ready = Gauge(prefix + "ready_replicas", "Workers that serve", ["role"], registry=registry)
        self._decisions = Counter(
            prefix + "decisions", "Decisions: scale_up, scale_down or hold", ["role", "kind"], registry=registry
        )
        self._errors = Counter(prefix + "errors", "Why the last good plan held, by kind", ["kind"], registry=registry)
        self._step = Histogram(
            prefix + "step_seconds", "Time of one planner step", buckets=STEP_BUCKETS_S, registry=registry
        )

    def record(self, decision: Decision[ScalePlan], *, before: ScalePlan, view: PlannerView | None) -> None:
        """Take in one decision; `before` is the plan that held until now."""
        for role, now, then in (
            (Role.PREFILL, decision.answer.prefill, before.prefill),
            (Role.DECODE, decision.answer.decode, before.decode),
        ):
            self._target.labels(role).set(now)
            kind = "scale_up" if now > then else "scale_down" if now < then else "hold"
            self._decisions.labels(role, kind).inc()
            if view is not None:
                self._ready.labels(role).set((view.prefill if role is Role.PREFILL else view.decode).ready)
        for name, value in decision.answer.signals.items():
            self._signal.labels(name).set(value)
        self._step.observe(decision.step_s)

    def fault(self, fault: Fault) -> None:
        """Count one fault."""
        self._errors.labels(fault.value).inc()

    def serve(self, port: int, host: str = "127.0.0.1") -> Callable[[], None]:
        """Serve ``/metrics`` on `port`; returns what stops it. Raises HostError when the port is taken."""
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise HostError(
                f"planner metrics: cannot listen on {host}:{port} ({error.strerror}); choose another port"
            ) from None

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop


@cache
def process_metrics() -> PlannerMetrics:
    """Return the metrics in prometheus-client's own registry, which hosts such as Dynamo's planner already serve."""
    return PlannerMetrics(REGISTRY)
