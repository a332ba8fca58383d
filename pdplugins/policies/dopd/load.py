"""The load to plan for: forecasts of prompt length, output length, and request rate or concurrency."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.planner import PlannerView, Traffic
from pdplugins.contracts.workers import Pool
from pdplugins.policies.dopd.forecast import Lasting

LARGEST = 1e9
"""Larger metrics are cut to this, so that sums stay finite. No host has so many requests, or tokens in a request."""


@dataclass(frozen=True, slots=True)
class Load:
    """Forecast load."""

    isl_tokens: float
    osl_tokens: float
    amount: float
    """Requests per second. For Algorithm 2 as printed: requests in flight."""


class LoadForecast:
    """Forecasts three series independently."""

    def __init__(self, isl: Lasting, osl: Lasting, amount: Lasting) -> None:
        self._series = {"ISL": isl, "OSL": osl, "load": amount}

    def observe(self, traffic: Traffic, amount: float) -> None:
        """Take in one window; lengths that it does not report are skipped."""
        values = {"ISL": traffic.isl_tokens, "OSL": traffic.osl_tokens, "load": amount}
        for name, value in values.items():
            if is_number(value) and (value > 0 or name == "load"):
                self._series[name].observe(min(value, LARGEST))

    def forecast(self) -> Load | None:
        """Return the load to plan for; None until all three series have a value."""
        isl, osl, amount = (series.forecast() for series in self._series.values())
        if any(map(math.isnan, (isl, osl, amount))):
            return None
        return Load(min(max(isl, 1.0), LARGEST), min(max(osl, 1.0), LARGEST), min(amount, LARGEST))

    @property
    def failures(self) -> Mapping[str, str]:
        """By series: the last error that its forecaster raised."""
        return {name: series.error for name, series in self._series.items() if series.failures}

    @property
    def failed(self) -> int:
        """How often a forecaster raised."""
        return sum(series.failures for series in self._series.values())


def told_signals(traffic: Traffic) -> dict[str, float]:
    """Return traffic figures of the host that no decision uses, as signals for people who watch the planner.

    ``isl_cv`` is the coefficient of variation of the prompt lengths of the window.
    """
    reported = {"local_share": traffic.local_share, "prefix_hit_rate": traffic.prefix_hit_rate}
    mean, square = traffic.isl_tokens, traffic.isl_sq_tokens
    if is_number(mean) and is_number(square) and 0 < mean <= LARGEST:
        reported["isl_cv"] = math.sqrt(max(square / mean / mean - 1, 0.0))
    return {name: value for name, value in reported.items() if is_number(value)}


def unusable(traffic: Traffic) -> str | None:
    """Return why `traffic` cannot be used; None when it can."""
    for name in ("window_s", "requests"):
        value = getattr(traffic, name)
        if not is_number(value) or value < 0:
            return f"traffic.{name} is {value}"
    if traffic.window_s == 0:
        return "traffic.window_s is 0"
    return None if math.isfinite(traffic.rate) else f"traffic.rate is {traffic.rate}"


def in_flight(view: PlannerView, traffic: Traffic) -> float:
    """Return the requests in the system: counted where workers report, else by Little's law, else 0."""
    if view.prefill.loads or view.decode.loads:
        return _counted(view.prefill) + _counted(view.decode)
    ttft_s, tpot_s, osl_tokens = (
        value if is_number(value) and value > 0 else 0.0
        for value in (traffic.ttft_s, traffic.tpot_s, traffic.osl_tokens)
    )
    return traffic.rate * (ttft_s + osl_tokens * tpot_s)


def queued(pool: Pool) -> float:
    """Return the waiting requests of all workers that report a number."""
    return sum(load.queued_requests for load in pool.loads if is_number(load.queued_requests))


def _counted(pool: Pool) -> float:
    running = sum(load.running_requests for load in pool.loads if is_number(load.running_requests))
    return max(queued(pool) + running, 0.0)
