"""Which prompts one instance prefills together: Algorithm 1 of DOPD, length-aware batching.

A long prompt fills a GPU by itself and runs at once. Short prompts wait until together they are as long as the prompts
that the P/D ratio was computed for. So a mix of lengths loads the instance as that ratio expects (Section V-E).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdplugins.contracts.batching import BatchPlan, BatchView, QueuedPrefill
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.perf import PerfModel
from pdplugins.policies.dopd.config import DopdBatchSettings
from pdplugins.policies.dopd.forecast import build_forecaster

STEPS = tuple(1 << power for power in range(6, 14))
"""Sizes of a step that are tried, in tokens."""
EFFICIENT = 1.05
"""Time for each token, over the least one, up to which a step is an efficient one."""


@dataclass(slots=True)
class Moments:
    """Mean and squared coefficient of variation of a stream, with exponentially fading memory."""

    memory: float
    """Number of values after which the weight of a value has faded to 1 / e."""
    mean: float = math.nan
    square: float = 0.0

    def observe(self, value: float) -> None:
        """Take in one value."""
        if math.isnan(self.mean):
            self.mean, self.square = value, value * value
            return
        keep = math.exp(-1 / self.memory)
        self.mean = keep * self.mean + (1 - keep) * value
        self.square = keep * self.square + (1 - keep) * value * value

    @property
    def cv2(self) -> float:
        """Squared coefficient of variation."""
        return max(self.square / (self.mean * self.mean) - 1, 0.0) if self.mean > 0 else 0.0


def kingman_wait_s(service: Moments, gap: Moments) -> float:
    """Return W_q of Eq. 10: the mean wait in seconds in one queue with these service times and arrival gaps."""
    if math.isnan(gap.mean):
        return 0.0
    utilisation = service.mean / gap.mean if gap.mean > 0 else math.inf
    if utilisation >= 1:
        return math.inf
    return utilisation / (1 - utilisation) * (gap.cv2 + service.cv2) / 2 * service.mean


class DopdBatching:
    """`pdplugins.types.BatchScheduler` of DOPD: one for each instance."""

    MEMORY = 100.0
    """Requests over which service times and gaps are averaged."""

    def __init__(self, settings: DopdBatchSettings, deployment: Deployment) -> None:
        self._settings = settings
        self._deployment = deployment
        self._isl = build_forecaster(settings.predictor)
        self._efficient = efficient_tokens(deployment.perf, deployment.prefill_tp)
        self._window: list[float] = []
        self._window_end_s = -math.inf
        self._service, self._gap = Moments(self.MEMORY), Moments(self.MEMORY)
        self._last_s = -math.inf
        self._timer_s: float | None = None

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Compose the next step. All decodes take part in it."""
        self._learn(view, now_s)
        threshold = self._threshold()
        timed_out = self._timer_s is not None and now_s - self._timer_s >= self._timeout_s()
        gathered: list[QueuedPrefill] = []
        length = 0
        for waiting in view.queue:  # lines 2-26; a pop takes no time
            if length >= threshold:  # line 4
                break
            if waiting.remaining_tokens < threshold:  # lines 18-22
                gathered.append(waiting)
                length += waiting.remaining_tokens
                if self._timer_s is None:
                    self._timer_s = now_s
            elif timed_out and gathered:  # line 4
                break
            else:  # line 24: the prompts gathered so far wait, and their timer runs
                return _plan([waiting], f"{waiting.remaining_tokens} tokens reach the threshold of {threshold:.0f}")
        self._timer_s = None  # lines 6 and 13
        return _plan(gathered, f"{len(gathered)} prompts of {length} tokens, threshold {threshold:.0f}")

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Do nothing: service times come from the profile."""

    def _learn(self, view: BatchView, now_s: float) -> None:
        """Take in the requests that joined the queue since the last call."""
        perf, tp = self._deployment.perf, self._deployment.prefill_tp
        newest_s = self._last_s
        for waiting in view.queue:
            if waiting.queued_s <= self._last_s:
                continue
            tokens = float(waiting.remaining_tokens)
            self._window.append(tokens)
            self._service.observe(perf.prefill_s(tokens, tp))
            if newest_s > -math.inf:
                self._gap.observe(max(waiting.queued_s - newest_s, 0.0))
            newest_s = max(newest_s, waiting.queued_s)
        self._last_s = newest_s
        if now_s >= self._window_end_s and self._window:
            self._isl.observe(sum(self._window) / len(self._window))
            self._window.clear()
            self._window_end_s = now_s + self._settings.interval_s

    def _threshold(self) -> float:
        """Return i_next: the forecast mean prompt length, but an efficient step at least; or that of the settings.

        The paper's prompts are long. Where they are short, or most of a step reads the weights of experts, a step with
        one prompt takes about as long as one with many.
        """
        fixed = self._settings.threshold_tokens
        return float(fixed) if fixed is not None else max(self._efficient, self._isl.forecast())

    def _timeout_s(self) -> float:
        """Return the timeout of Eq. 18, at most its share of the TTFT SLO, because W_q is unbounded under overload."""
        share = self._settings.timeout_share
        return share * min(kingman_wait_s(self._service, self._gap), self._deployment.slo.ttft_s)


def efficient_tokens(perf: PerfModel, tp: int) -> int:
    """Return the smallest step, in tokens, that takes about as little time for each token as any."""
    each_s: dict[int, float] = {tokens: perf.prefill_s(tokens, tp) / tokens for tokens in STEPS}
    return min(tokens for tokens in STEPS if each_s[tokens] <= EFFICIENT * min(each_s.values()))


def _plan(prompts: list[QueuedPrefill], reason: str) -> BatchPlan:
    return BatchPlan({prompt.request.id: prompt.remaining_tokens for prompt in prompts}, reason=reason)
