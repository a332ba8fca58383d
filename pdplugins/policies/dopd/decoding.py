"""The number of decode workers: Little's law at the full batch, as in Eq. 15, with headroom and what waits."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.planner import PlannerView, Traffic
from pdplugins.policies.dopd.config import DopdSettings
from pdplugins.policies.dopd.load import LARGEST, Load, queued
from pdplugins.policies.dopd.ratio import added_s, concurrency_within_tpot, decode_concurrency, mean_context_tokens
from pdplugins.policies.dopd.staffing import Backlog, most_work, whole_workers


@dataclass(frozen=True, slots=True)
class DecodeNeed:
    """Decode workers wanted, and the numbers behind."""

    workers: int
    concurrency: float
    """Requests that decode at once, on average."""
    cc_d: float
    """Requests in a full batch of one worker."""
    step_s: float
    """Seconds of a step with a full batch."""
    local: float
    """Workers that local prompts keep busy."""
    deviation: float
    """Standard deviation of the busy workers, where requests arrive independently."""
    backlog_s: float
    """Work that waits, in seconds of one worker."""

    @property
    def busy(self) -> float:
        """Workers that decode keeps busy."""
        return self.concurrency / self.cc_d


class Deviation:
    """Learns how far the busy decode workers are from what was forecast for them.

    :param steps: steps from a forecast to the window that it is for.
    :param keep: what is left of the weight of an error after one step.
    :param most: the most busy workers of a window that count: see :func:`pdplugins.policies.dopd.staffing.most_work`.
    """

    PRIOR_STEPS = 12
    """Weight of independent arrivals at the start, in steps: one minute at the default interval."""

    def __init__(self, steps: int, keep: float, most: float) -> None:
        self._pending: deque[float] = deque()
        self._steps, self._keep, self._most = steps, keep, most
        self._squares = self._count = 0.0
        self.peak = 0.0
        """The most busy workers of a window, fading with its age."""

    @property
    def learned(self) -> dict[str, float]:
        """What it knows."""
        return {"squares": self._squares, "count": self._count, "peak": self.peak}

    def resume(self, squares: float, count: float, peak: float) -> None:
        """Go on with what an earlier run has learned."""
        self._squares, self._count, self.peak = squares, count, peak

    def learn(self, busy: float, forecast: float) -> None:
        """Compare the busy workers of the last window with the forecast made for it; remember the new forecast."""
        busy, forecast = min(busy, self._most), min(forecast, self._most)
        self.peak = max(busy, self._keep * self.peak)
        self._pending.append(forecast)
        if len(self._pending) > self._steps:
            error = busy - self._pending.popleft()
            self._squares = self._keep * self._squares + error * error
            self._count = self._keep * self._count + 1

    def variance(self, independent: float) -> float:
        """Return the variance of busy workers; never below that of independent arrivals."""
        prior = self.PRIOR_STEPS
        return max(independent, (self._squares + prior * independent) / (self._count + prior))


class Decoding:
    """Sizes the decode pool.

    :param steps: steps from a plan to the window that it is for.
    :param memory: windows after which the weight of what was learned has faded to 1 / e.
    :param horizon_s: seconds from a plan to its workers.
    """

    def __init__(
        self, settings: DopdSettings, deployment: Deployment, steps: int, memory: float, horizon_s: float
    ) -> None:
        self._settings = settings
        self._deployment = deployment
        self._horizon_s = horizon_s
        most = most_work(deployment, deployment.decode_tp)
        self._deviation = Deviation(steps, math.exp(-1 / memory), most)
        self._backlog = Backlog(horizon_s)

    @property
    def learned(self) -> dict[str, float]:
        """What it knows of bursts."""
        return self._deviation.learned

    def resume(self, squares: float, count: float, peak: float) -> None:
        """Go on with what an earlier run has learned."""
        self._deviation.resume(squares, count, peak)

    def need(self, view: PlannerView, traffic: Traffic | None, load: Load, rate: float) -> DecodeNeed:
        """Return the workers for `rate` requests a second. Prompts that prefill here take their time on top.

        :param traffic: of the last window; None where there was none.
        """
        deployment, perf, tp = self._deployment, self._deployment.perf, self._deployment.decode_tp
        context = mean_context_tokens(load.isl_tokens, load.osl_tokens)
        full = decode_concurrency(
            perf, deployment.slo, load.isl_tokens, load.osl_tokens, tp, deployment.max_batch, deployment.kv_tokens
        )
        cc_d = concurrency_within_tpot(perf, deployment.slo, context, tp, full)
        step_s = perf.decode_step_s(cc_d, context, tp)
        request_s = load.osl_tokens * step_s / cc_d
        busy, independent = rate * request_s, (1 + load.cv2) / cc_d
        if traffic is not None:
            self._deviation.learn(min(traffic.rate, LARGEST) * request_s, busy)
        backlog_s = self._waiting_s(view, traffic, request_s)
        wanted = self._with_headroom(busy, independent)
        if self._settings.drain_backlog:
            # As for prefill: what the ready workers clear within the TTFT SLO needs no further workers.
            wanted += max(backlog_s - view.decode.ready * deployment.slo.ttft_s, 0.0) / self._horizon_s
        local = rate * load.local_share * added_s(perf, load.local_tokens, tp) if load.local_share else 0.0
        deviation = math.sqrt(busy * independent)
        return DecodeNeed(whole_workers(wanted + local), busy * cc_d, cc_d, step_s, local, deviation, backlog_s)

    def _with_headroom(self, busy: float, independent: float) -> float:
        """Return the workers for `busy` ones: with headroom for independent arrivals, and for the bursts so far.

        A forecast that expects a burst to end soon is right about prefill, which has its own headroom for bursts. These
        count with one standard deviation, and never more than the busiest window would need.

        :param independent: variance of the busy workers over their mean, where requests arrive independently.
        """
        settings = self._settings

        def usual(workers: float) -> float:
            return workers + settings.decode_sigmas * math.sqrt(workers * independent)

        if not settings.learn_bursts:
            return usual(busy)
        learned = busy + math.sqrt(self._deviation.variance(busy * independent))
        return max(usual(busy), min(learned, usual(max(self._deviation.peak, busy))))

    def _waiting_s(self, view: PlannerView, traffic: Traffic | None, request_s: float) -> float:
        arrived_s, window_s = 0.0, 0.0
        if traffic is not None:
            arrived_s, window_s = min(traffic.requests, LARGEST) * request_s, traffic.window_s
        reported_s = min(queued(view.decode), LARGEST) * request_s
        return self._backlog.update(arrived_s, view.decode.ready, window_s, reported_s)
