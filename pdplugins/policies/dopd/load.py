"""The load to plan for: forecasts of the lengths, of the request rate, and of what prefill workers are spared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.planner import PlannerView, Traffic
from pdplugins.contracts.workers import Pool
from pdplugins.policies.dopd.forecast import Forecaster, Lasting

LARGEST = 1e9
"""Larger metrics are cut to this, so that sums stay finite. No host has so many requests, or tokens in a request."""


@dataclass(frozen=True, slots=True)
class Load:
    """Forecast load."""

    isl_tokens: float
    osl_tokens: float
    amount: float
    """Requests per second. For Algorithm 2 as printed: requests in flight."""
    cv2: float = 1.0
    """Squared coefficient of variation of the prompt lengths."""
    local_share: float = 0.0
    """Share of the requests that prefill on their decode worker."""
    local_tokens: float = 0.0
    """Mean prompt tokens that those compute."""
    hit_rate: float = 0.0
    """Share of the prompt tokens that are cached."""

    def remote(self) -> Remote:
        """Return what is left for prefill workers: all prompts without cached tokens, less the local ones."""
        share, computed = 1 - self.local_share, self.isl_tokens * (1 - self.hit_rate)
        if share <= 0:
            return Remote(0.0, 1.0, 0.0)
        tokens = max((computed - self.local_share * self.local_tokens) / share, 1.0)
        square = (computed**2 * (1 + self.cv2) - self.local_share * self.local_tokens**2) / share
        return Remote(share, tokens, max(square / tokens**2 - 1, 0.0))


@dataclass(frozen=True, slots=True)
class Remote:
    """The prompts that prefill workers compute."""

    share: float
    """Their share of all requests."""
    tokens: float
    """Mean tokens to compute."""
    cv2: float
    """Squared coefficient of variation of these tokens."""


class Spread:
    """Learns Var(ISL) / E[ISL]^2 (Eq. 7) from the moments of each window.

    Only the variance within windows counts, so a mean that drifts is no spread.

    :param prior: the value where the host does not report second moments, and at the start.
    :param memory: windows after which the weight of one has faded to 1 / e.
    :param longest: tokens of the longest prompt that there can be. A window that says more is left out.
    """

    PRIOR_REQUESTS = 50.0
    """Weight of the prior, in requests."""

    def __init__(self, prior: float, memory: float, longest: float = LARGEST) -> None:
        self._prior, self._keep, self._longest = prior, math.exp(-1 / memory), longest
        self._requests = self._variance = self._square = 0.0

    @property
    def learned(self) -> dict[str, float]:
        """What it knows."""
        return {"requests": self._requests, "variance": self._variance, "square": self._square}

    def resume(self, requests: float, variance: float, square: float) -> None:
        """Go on with what an earlier run has learned."""
        self._requests, self._variance, self._square = requests, variance, square

    def observe(self, traffic: Traffic) -> None:
        """Take in one window. It must have two requests at least, and both moments of their lengths."""
        count, mean, square = min(traffic.requests, LARGEST), traffic.isl_tokens, traffic.isl_sq_tokens
        if count < 2 or not is_number(mean) or not is_number(square) or not (0 < mean <= self._longest):
            return
        # Prompts of at most `longest` tokens have a mean square of at most `longest` times their mean.
        variance = max(min(square, self._longest * mean) - mean * mean, 0.0) * count / (count - 1)
        self._requests = self._keep * self._requests + count
        self._variance = self._keep * self._variance + count * variance
        # The square of the sample mean would exceed that of the true mean by variance / count.
        self._square = self._keep * self._square + max(count * mean * mean - variance, 0.0)

    @property
    def cv2(self) -> float:
        """Squared coefficient of variation."""
        if self._square <= 0:
            return self._prior
        weight = self.PRIOR_REQUESTS * self._square / self._requests
        return (self._variance + weight * self._prior) / (self._square + weight)


class LoadForecast:
    """Forecasts every series of the traffic independently.

    :param build: makes the forecaster of one series.
    :param amount: forecaster of the request rate, or of the requests in flight.
    :param longest: tokens of the longest request that there can be. Larger mean lengths are cut to it.
    """

    def __init__(
        self, build: Callable[[], Forecaster], amount: Forecaster, spread: Spread, longest: float = LARGEST
    ) -> None:
        names = ("ISL", "OSL", "local share", "local prompt", "prefix hit rate")
        self._series = {"load": Lasting(amount), **{name: Lasting(build()) for name in names}}
        self._spread, self._longest = spread, longest

    def observe(self, traffic: Traffic, amount: float) -> None:
        """Take in one window; what it does not report is skipped."""
        lengths = {"ISL": traffic.isl_tokens, "OSL": traffic.osl_tokens}
        others = {
            "load": amount, "local share": traffic.local_share, "local prompt": traffic.local_prefill_tokens,
            "prefix hit rate": traffic.prefix_hit_rate,
        }  # fmt: skip
        for name, value in (lengths | others).items():
            if is_number(value) and (value > 0 or name in others):
                self._series[name].observe(min(value, self._longest if name in lengths else LARGEST))
        self._spread.observe(traffic)

    def forecast(self, *, without_osl: bool = False) -> Load | None:
        """Return the load to plan for; None until load and lengths have a value. What no host tells is 0.

        :param without_osl: take outputs of one token where none has ended yet: prefill can be sized without them.
        """
        of = {name: series.forecast() for name, series in self._series.items()}
        if without_osl and math.isnan(of["OSL"]):
            of["OSL"] = 1.0
        if any(math.isnan(of[name]) for name in ("load", "ISL", "OSL")):
            return None
        share, hit_rate = (min(_known(of[name]), 1.0) for name in ("local share", "prefix hit rate"))
        isl, osl = (min(max(of[name], 1.0), LARGEST) for name in ("ISL", "OSL"))
        local = min(_known(of["local prompt"]), isl)
        return Load(isl, osl, min(of["load"], LARGEST), self._spread.cv2, share, local, hit_rate)

    @property
    def levels(self) -> dict[str, float]:
        """By series: its forecast, where it has one."""
        of = {name: series.forecast() for name, series in self._series.items()}
        return {name: min(value, LARGEST) for name, value in of.items() if math.isfinite(value)}

    def resume(self, levels: Mapping[str, float]) -> None:
        """Begin with the levels of an earlier run; each counts as one window."""
        for name in self._series.keys() & levels.keys():
            self._series[name].observe(levels[name])

    @property
    def complete(self) -> bool:
        """Whether both lengths are known."""
        return not any(math.isnan(self._series[name].forecast()) for name in ("ISL", "OSL"))

    @property
    def failures(self) -> Mapping[str, str]:
        """By series: the last error that its forecaster raised."""
        return {name: series.error for name, series in self._series.items() if series.failures}

    @property
    def failed(self) -> int:
        """How often a forecaster raised."""
        return sum(series.failures for series in self._series.values())


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else value


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


def waiting_tokens(pool: Pool, least: float) -> float | None:
    """Return the mean prompt tokens of what waits; None where that is fewer than `least` requests."""
    waiting = [load for load in pool.loads if is_number(load.queued_requests) and is_number(load.queued_tokens)]
    count = sum(load.queued_requests for load in waiting)
    tokens = sum(load.queued_tokens for load in waiting)
    return tokens / count if count >= least and tokens > 0 else None


def _counted(pool: Pool) -> float:
    running = sum(load.running_requests for load in pool.loads if is_number(load.running_requests))
    return max(queued(pool) + running, 0.0)
