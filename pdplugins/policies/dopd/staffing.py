"""The number of prefill workers by DOPD's queueing model (Eq. 6-8 and 10), solved for the size of the pool.

The paper derives the mean wait W_q = rho / (1 - rho) * (c_a^2 + c_s^2) / 2 * E[S] (Eq. 10, Kingman) and says that it
drives the scaling, but Algorithm 2 does not use it. With n = x / rho, where x is the offered work, the solution is

    n = x + x * D / (2 * W_q),    D = (c_a^2 + c_s^2) * E[S] = E[S^2] / E[S] for Poisson arrivals.

Work is measured in busy workers: seconds of prefill that arrive per second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pdplugins.contracts.deployment import Deployment

MOST_WORKERS = 1e6
"""Larger numbers of workers are cut to this. The GPU budget cuts them further anyway."""
MOST_BUDGETS = 3.0
"""How often the whole GPU budget the work of a window may be. More is a damaged sample, or cannot be served anyway."""
LEAST_SLACK = 0.1
"""Share of the TTFT SLO that may at least be waited: prompts that hardly meet it are not worth the whole budget."""
SHORT_LEAD_S = 30.0
"""Up to this start-up, in seconds, the setting `spare` counts as it is."""
_LOG_NORMAL = (
    (-2.8569700, 0.0112574),
    (-1.3556262, 0.2220759),
    (0.0, 0.5333333),
    (1.3556262, 0.2220759),
    (2.8569700, 0.0112574),
)
"""Five-point Gauss-Hermite rule: standard deviations and weights of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Service:
    """Moments of the prefill time S of one request, over the spread of prompt lengths."""

    mean_s: float
    """E[S]. It exceeds the time of the mean prompt: Eq. 8."""
    capped_mean_s: float
    """E[min(S, cap)]."""
    poisson_dispersion_s: float
    """E[min(S, cap)^2] / E[S]: the value of D when requests arrive independently."""
    slack_s: float
    """E[cap - S | S < cap]: how long prompts that can meet the TTFT SLO may wait. The cap where none can."""
    times: tuple[tuple[float, float], ...] = ()
    """(weight, S) of short to long prompts; the weights add up to 1."""

    @classmethod
    def of(cls, prefill_s: Callable[[float], float], isl_tokens: float, cv2: float, cap_s: float) -> Service:
        """Integrate over log-normal prompt lengths of mean `isl_tokens` and squared coefficient of variation `cv2`.

        :param cap_s: the TTFT SLO. A prompt that takes longer misses it in any pool, so a longer tail needs no more
            headroom.
        """
        sigma = math.sqrt(math.log1p(cv2))
        mean = capped = squared = slack = able = 0.0
        times = tuple(
            (weight, prefill_s(isl_tokens * math.exp(sigma * deviations - sigma * sigma / 2)))
            for deviations, weight in _LOG_NORMAL
        )
        for weight, time_s in times:
            short_s = min(time_s, cap_s)
            mean, capped, squared = mean + weight * time_s, capped + weight * short_s, squared + weight * short_s**2
            if time_s < cap_s:
                slack, able = slack + weight * (cap_s - time_s), able + weight
        left_s = max(slack / able, LEAST_SLACK * cap_s) if able > 0 else cap_s
        return cls(mean, capped, squared / mean, left_s, times)


class Dispersion:
    """Learns D from the errors of work forecasts. Bursts have a larger D than Poisson arrivals.

    :param steps: steps from a forecast to the window that it is for.
    :param interval_s: seconds of a step.
    :param memory_s: age in seconds at which the weight of an error has faded to 1 / e.
    :param most: the most work of a window that counts: see :func:`most_work`.
    """

    PRIOR_STEPS = 12
    """Weight of the Poisson assumption at the start, in steps of mean load: one minute at the default interval."""

    def __init__(self, steps: int, interval_s: float, memory_s: float, most: float) -> None:
        self._pending: deque[float] = deque()
        self._steps, self._interval_s, self._most = steps, interval_s, most
        self._keep = math.exp(-interval_s / memory_s)
        self._variance = self._work = 0.0
        self.peak = 0.0
        """The most work of a window, fading with its age."""

    @property
    def learned(self) -> dict[str, float]:
        """What it knows."""
        return {"variance": self._variance, "work": self._work, "peak": self.peak}

    def resume(self, variance: float, work: float, peak: float) -> None:
        """Go on with what an earlier run has learned."""
        self._variance, self._work, self.peak = variance, work, peak

    def learn(self, work: float, forecast: float, service: Service) -> None:
        """Compare `work` of the last window with the forecast made for it, and remember the new forecast."""
        work, forecast = min(work, self._most), min(forecast, self._most)
        self.peak = max(work, self._keep * self.peak)
        self._pending.append(forecast)
        if len(self._pending) <= self._steps:
            return
        expected = self._pending.popleft()
        error = (work - expected) * service.capped_mean_s / service.mean_s
        self._variance = self._keep * self._variance + error * error * self._interval_s
        self._work = self._keep * self._work + expected

    def seconds(self, service: Service, mean_work: float) -> float:
        """Return D; never below the Poisson value."""
        prior = self.PRIOR_STEPS * max(mean_work, 1e-3)
        poisson = service.poisson_dispersion_s
        return max(poisson, (self._variance + prior * poisson) / (self._work + prior))


class Backlog:
    """Waiting prefill work, estimated from arrivals and ready workers, because few hosts report their whole queues.

    :param memory_s: the estimate is at most what the ready workers clear in this time. It does not see the queue
        itself, so it must not grow for ever where a pool cannot grow.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._work_s = 0.0

    def update(self, arrived_s: float, ready: int, window_s: float, reported_s: float) -> float:
        """Return the waiting work in seconds of one worker, after `arrived_s` of work arrived at `ready` workers.

        :param reported_s: the work in the queues that the host reports. The larger of the two counts.
        """
        estimate_s = self._work_s + arrived_s - ready * window_s
        self._work_s = max(min(estimate_s, ready * self._memory_s), reported_s, 0.0)
        return self._work_s


def most_work(deployment: Deployment, tp: int) -> float:
    """Return the most work of a window that is learned from, in busy workers of `tp` GPUs.

    Squares of more would be remembered for many times as long as the planner learns.
    """
    return MOST_BUDGETS * deployment.gpu_budget / tp


def capped_workers(work: float, peak: float, service: Service, dispersion_s: float, wait_s: float) -> float:
    """Return the number of workers for `work` with a learned dispersion, at most those that serve `peak` as it is.

    Kingman's formula holds for many small bursts. For a few large ones it asks for more workers than the largest burst
    keeps busy.
    """
    enough = prefill_workers(max(peak, work), service.poisson_dispersion_s, wait_s)
    return min(prefill_workers(work, dispersion_s, wait_s), enough)


def prefill_workers(work: float, dispersion_s: float, wait_s: float) -> float:
    """Return the number of workers with which `work` waits `wait_s` on average: Eq. 10 solved for n."""
    return work + work * dispersion_s / (2 * wait_s)


def spare_workers(spare: float, lead_s: float) -> float:
    """Return the workers that are kept beyond what the forecast needs.

    Workers do not share a queue, so even a sure forecast needs some. Until more workers serve, a load drifts about as a
    random walk does. So they grow with the square root of that time, as a safety stock does with its lead time (Silver,
    Pyke and Thomas, 2017, Section 6.6).

    :param spare: workers for a lead time of up to `SHORT_LEAD_S`.
    :param lead_s: seconds from a plan to the workers that it asks for.
    """
    return spare * math.sqrt(max(lead_s / SHORT_LEAD_S, 1.0))


def upper_rate(rate: float, observed_s: float, sigmas: float) -> float:
    """Return the rate `sigmas` standard errors above `rate`, observed for `observed_s` seconds (Wilson's bound)."""
    extra = sigmas * sigmas / 2 + sigmas * math.sqrt(rate * observed_s + sigmas * sigmas / 4)
    return rate + extra / observed_s


def whole_workers(workers: float) -> int:
    """Return the whole workers that are enough, at least one."""
    return max(math.ceil(min(workers, MOST_WORKERS)), 1)
