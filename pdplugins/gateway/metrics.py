"""What a gateway does, as Prometheus metrics named ``pdplugins_gateway_…``, and the log of what went wrong."""

from __future__ import annotations

import logging
from collections import Counter

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as PrometheusCounter

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.request import Slo
from pdplugins.contracts.router import Ending, Outcome
from pdplugins.errors import one_line
from pdplugins.gateway.histogram import Histogram
from pdplugins.gateway.tally import Tally
from pdplugins.runtime.decision import Fault, Journal

log = logging.getLogger("pdplugins.gateway")

LOG_EVERY = 1000
"""After the first fault of a kind, one in this many is logged."""
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Of waits and times to first token."""
TOKEN_BUCKETS_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
"""Of times between tokens."""
WHOLE_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Of whole requests."""


class GatewayMetrics:
    """The metrics of one gateway.

    :param prefix: how their names begin; another host that serves requests has its own.
    :param slo: the objectives. They are bounds of buckets, so that the share of the requests that keep them is exact.
    """

    def __init__(self, prefix: str = "pdplugins_gateway_", slo: Slo | None = None) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> PrometheusCounter:
            return PrometheusCounter(prefix + name, text, labels, registry=self.registry)

        def seconds(name: str, text: str, bounds: tuple[float, ...], objective_s: float | None = None) -> Histogram:
            more = () if objective_s is None else (objective_s,)
            return Histogram(prefix + name, text, sorted({*bounds, *more}), self.registry)

        def tally(name: str, text: str, label: str | None = None) -> Tally:
            return Tally(prefix + name, text, self.registry, label)

        self._requests = tally("requests", "Requests by how they ended", "outcome")
        self.primitives = tally(
            "primitives", "What placements came to: pair, push, local, head, warm, history", "primitive"
        )
        self._faults = counter("faults", "What did not go as the router or the client wanted, by kind", "kind")
        self.servers = counter("server_events", "Servers of --launch: started, ready, hung, died", "server", "event")
        ttft_s, tpot_s = (None, None) if slo is None else (slo.ttft_s, slo.tpot_s)
        self.ttft = seconds("ttft_seconds", "Time to first token (TTFT) of streams", BUCKETS_S, ttft_s)
        between = "Time from one token of a stream to the next (ITL); streams of one answer only"
        self.itl = seconds("itl_seconds", between, TOKEN_BUCKETS_S, tpot_s)
        each = "Time per output token after the first (TPOT), by stream of one answer"
        self._tpot = seconds("tpot_seconds", each, TOKEN_BUCKETS_S, tpot_s)
        self._whole = seconds("e2e_seconds", "Time from arrival to the end of a whole answer", WHOLE_BUCKETS_S)
        self._prompt_tokens = tally("prompt_tokens", "Prompt tokens of the requests that were answered")
        self._output_tokens = tally("output_tokens", "Output tokens that clients got")
        self._in_flight = 0
        in_flight = Gauge(prefix + "requests_in_flight", "Requests now", registry=self.registry)
        in_flight.set_function(lambda: self._in_flight)
        self.waiting = Gauge(
            prefix + "requests_waiting", "Requests that wait in the flow queue now", registry=self.registry
        )
        self.refused = counter("requests_refused", "Requests that the flow policy refused, or that found a full queue")
        self.connections = Gauge(
            prefix + "connections", "Connections to a listener now", ["listener"], registry=self.registry
        )
        self.closed = counter("connections_closed", "Connections that the gateway closed, and why", "why")
        self._overloads = counter("overloads", "Refusals because of a limit, by what there was too much of", "of")
        self.wait = seconds("wait_seconds", "Time in the queue before the workers", BUCKETS_S)
        self.pools = Gauge(
            prefix + "elastic_pool", "Workers in the pools of a router with its own", ["role"], registry=self.registry
        )
        self.shadow = counter(
            "shadow", "Placements of a router in shadow: the same as the one followed, or another one", "placement"
        )
        self.role_changes = counter(
            "role_changes", "Changes of workers' labels: begun, done or refused, by who proposed them", "by", "stage"
        )
        self._load = Gauge(
            prefix + "load", "Load by worker, as the router sees it", ["worker", "of"], registry=self.registry
        )
        self.faults: Counter[str] = Counter()

    def fault(self, kind: str, why: object, error: BaseException | None = None) -> None:
        """Count one fault; log the first of its kind and then one in a thousand, with the traceback of `error`."""
        self.count(kind)
        if self.faults[kind] % LOG_EVERY == 1:
            log.warning("%s (%d so far): %s", kind, self.faults[kind], one_line(why), exc_info=error)

    def begun(self) -> None:
        """Count a request that has come."""
        self._in_flight += 1

    def over(self, outcome: str) -> None:
        """Count a request that `begun` has counted, by how it ended."""
        self._in_flight -= 1
        self._requests.add(1, outcome)

    def primitive(self, primitive: str) -> None:
        """Count what a placement came to."""
        self.primitives.add(1, str(primitive))

    def ended(self, outcome: Outcome, took_s: float, prompt_tokens: int) -> None:
        """Take in how a request ended, `took_s` after it came."""
        self._output_tokens.add(outcome.output_tokens)
        if outcome.ending is not Ending.FINISHED:
            return
        self._prompt_tokens.add(prompt_tokens)
        self._whole.observe(took_s)
        if outcome.tpot_s is not None:
            self._tpot.observe(outcome.tpot_s)

    def overload(self, of: str) -> None:
        """Count a refusal: there is too much of something."""
        self._overloads.labels(of).inc()

    def count(self, kind: str) -> None:
        """Count one fault that is logged elsewhere."""
        self.faults[kind] += 1
        self._faults.labels(kind).inc()

    def clear_loads(self) -> None:
        """Show the load of no worker."""
        self._load.clear()

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

    def fault(self, kind: Kind, fault: Fault, why: str, error: BaseException | None = None) -> None:
        """Count a fault as ``<kind>_<fault>``, such as ``router_policy_error``. The policy's safe wrapper logs it."""
        self._inner.fault(kind, fault, why, error)
        self._metrics.count(f"{kind}_{fault}")
