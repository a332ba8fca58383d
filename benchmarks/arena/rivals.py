"""What DOPD's planner is held against: fixed pools, Dynamo's planners, and a scaler that knows the whole trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.ndimage import maximum_filter1d

from pdplugins.hosts.dynamo.offline.scaling import Snapshot, Targets
from pdplugins.types import Deployment, TraceRequest

Array = np.ndarray[Any, Any]
SENSITIVITY = "load_scaling_down_sensitivity"
STOCK: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *(
        ("dyn-load:sla", {SENSITIVITY: share, "ttft_ms": ms})
        for share, ms in ((0, 100), (0, 200), (0, 500), (20, 100), (20, 200), (40, 100), (40, 200), (60, 200))
    ),
    ("dyn-sla+load:kalman", {SENSITIVITY: 20, "ttft_ms": 200}),
    ("dyn-sla:kalman", {"ttft_ms": 200}),
)
"""Dynamo's planners: the grid that is tried on the tuning half."""
SWEPT = 8
"""Sizes of a pool between the mean load and the peak."""
BEYOND, MORE = 1.3, 2.5
"""The largest fixed pool: so many times the work of the busiest half minute, and so many workers more."""
WARM = 0.6
"""Utilisation, in the first minute, of the pools that every scaler starts with."""
SLACK_S = 1.0
"""Work that the clairvoyant scaler lets wait, in seconds of all workers."""
LONGEST_S = 120
"""Longest time over which the clairvoyant scaler lets work wait for workers."""


@dataclass(frozen=True)
class Load:
    """The work of a trace on one deployment, in busy workers of each role, second by second."""

    requests: Sequence[TraceRequest]
    deployment: Deployment

    @cached_property
    def prefill(self) -> Array:
        """Seconds of prefill that arrive in each second."""
        perf, tp = self.deployment.perf, self.deployment.prefill_tp
        return self._binned([perf.prefill_s(request.isl_tokens, tp) for request in self.requests], 1)

    @cached_property
    def decode(self) -> Array:
        """Decode workers with full batches that hold the requests of each second."""
        perf, tp, spec = self.deployment.perf, self.deployment.decode_tp, self.deployment
        isl, osl = (np.array([getattr(r, f"{kind}sl_tokens") for r in self.requests], float) for kind in "io")
        context = float((isl + osl / 2).mean())
        full = max(min(spec.max_batch, (spec.kv_tokens or perf.kv_capacity_tokens(tp)) / context), 1.0)
        # At most the batch whose step is half the TPOT objective counts as full, as steps get longer with the batch.
        while full > 1 and perf.decode_step_s(full, context, tp) > spec.slo.tpot_s / 2:
            full *= 0.9
        stays_s = osl * perf.decode_step_s(full, context, tp)
        begins = self._binned([1 / full] * len(self.requests), 1)
        ends = self._binned([1 / full] * len(self.requests), 1, stays_s)
        return np.maximum(np.cumsum(begins - ends), 0.0)

    def _binned(self, weights: Sequence[float], width_s: int, after_s: Array | float = 0.0) -> Array:
        seconds = int(self.requests[-1].arrival_s) + 1
        at = np.array([request.arrival_s for request in self.requests]) + after_s
        inside = at < seconds
        found = np.bincount((at[inside] // width_s).astype(int), np.array(weights)[inside], minlength=seconds)
        return found.astype(float)

    def mean(self, seconds: int | None = None) -> tuple[float, float]:
        """Return the mean busy workers of each role, over the first `seconds` or all."""
        return float(self.prefill[:seconds].mean()), float(self.decode[:seconds].mean())

    def peak(self) -> tuple[float, float]:
        """Return the busy workers of each role in their busiest half minute."""
        window = np.ones(30) / 30
        return float(np.convolve(self.prefill, window).max()), float(np.convolve(self.decode, window).max())

    def start(self) -> tuple[int, int]:
        """Return the pools that scalers start with: about right for the first minute, and at least 2P1D."""
        prefill, decode = (math.ceil(work / WARM) for work in self.mean(60))
        return max(prefill, 2), max(decode, 1)

    def pools(self) -> Iterator[tuple[int, int]]:
        """Yield the fixed pools that are swept: from the mean load to beyond the peak, about in its proportions."""
        (low_p, low_d), (high_p, high_d) = self.mean(), self.peak()

        def size(low: float, high: float, share: float) -> int:
            return max(math.ceil(low + min(share, 1.0) * (BEYOND * high + MORE - low)), 1)

        shares = [step / (SWEPT - 1) for step in range(SWEPT)]
        pairs = ((share + more, share + other) for share in shares for more, other in ((0, 0), (0, 0.3), (0.3, 0)))
        yield from sorted({(size(low_p, high_p, p), size(low_d, high_d, d)) for p, d in pairs})


class Clairvoyant:
    """Scales to what the trace will bring, and requests every worker one start-up before it is needed: a ceiling.

    It takes the fewest workers that would leave at most `SLACK_S` of their work over in any stretch of time up to
    `LONGEST_S`, if they shared a queue and were never idle before it is empty, and divides them by a utilisation.

    :param use: that utilisation; smaller means more workers.
    """

    TICK_S = 1.0

    def __init__(self, load: Load, use: float) -> None:
        ahead = math.ceil(load.deployment.startup_s + 2 * self.TICK_S)
        prefill = np.ceil(_needed(load.prefill, SLACK_S) / use - 1e-9)
        decode = np.ceil(load.decode / min(use + 0.3, 1.0) - 1e-9)
        self._prefill, self._decode = (_coming(pool, ahead) for pool in (prefill, decode))
        self._deployment = load.deployment

    def initial_tick_ms(self) -> float:
        """Return the time of the first tick: at once."""
        return 1.0

    def on_tick(self, snapshot: Snapshot) -> Targets:
        """Ask for the largest pools of the next start-up."""
        now = min(int(snapshot["now_ms"] / 1e3), len(self._prefill) - 1)
        return {
            "target_prefill": int(self._prefill[now]),
            "target_decode": int(self._decode[now]),
            "next_tick_ms": snapshot["now_ms"] + self.TICK_S * 1e3,
        }


USES = (0.9, 0.8, 0.7, 0.6, 0.5)
"""The clairvoyant scalers that are run: their front is the ceiling."""


def _needed(work: Array, slack_s: float) -> Array:
    """Return the busy workers of each second, so that in no stretch of time more than `slack_s` of their work waits."""
    total = np.concatenate([[0.0], np.cumsum(work)])
    most = np.zeros(len(work))
    for length in range(1, min(LONGEST_S, len(work)) + 1):
        workers = (total[length:] - total[:-length]) / (length + slack_s)
        spread = np.zeros(len(work))
        spread[: len(workers)] = workers
        # A stretch that begins in any of the last `length` seconds covers this one.
        most = np.maximum(most, maximum_filter1d(spread, length, origin=(length - 1) // 2, mode="constant"))
    return most


def _coming(pool: Array, ahead: int) -> Array:
    """Return the largest pool from each second to `ahead` seconds later, at least one worker."""
    padded = np.concatenate([pool, np.repeat(pool[-1:], ahead)])
    stretches = np.lib.stride_tricks.sliding_window_view(padded, ahead + 1)
    return np.maximum(stretches.max(axis=1), 1)
