"""Traffic and latencies that clients saw since a planner was last asked, or recently on one worker."""

from __future__ import annotations

from collections import deque

from pdplugins.contracts.planner import Traffic
from pdplugins.sim.core.clock import TICKS_PER_S, seconds, ticks
from pdplugins.sim.core.flight import Flight

RECENT = ticks(10.0)
"""Ticks for which a first token counts as recent."""


class Recent:
    """Mean of what was added in the last `RECENT` ticks."""

    __slots__ = ("_added", "_total")

    def __init__(self) -> None:
        self._added: deque[tuple[int, int]] = deque()
        self._total = 0

    def add(self, now: int, time: int) -> None:
        """Add `time`, in ticks."""
        self._added.append((now, time))
        self._total += time
        self._forget(now)

    def mean_s(self, now: int) -> float | None:
        """Return the mean in seconds; None when nothing was added recently."""
        self._forget(now)
        return self._total / (len(self._added) * TICKS_PER_S) if self._added else None

    def _forget(self, now: int) -> None:
        added = self._added
        while added and added[0][0] < now - RECENT:
            self._total -= added.popleft()[1]


class Window:
    """The traffic since a policy was last asked. Each policy that is asked at intervals has its own window."""

    __slots__ = (
        "_cached", "_ended", "_ended_isl", "_first_tokens", "_isl", "_isl_sq", "_local", "_local_prefill", "_osl",
        "_requests", "_tpot_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self._first_tokens: list[tuple[int, Flight]] = []
        self._begin()

    def _begin(self) -> None:
        self._requests = self._ended = 0
        self._isl = self._isl_sq = self._osl = 0
        """Sums of prompts and of squared prompts of arrived requests, and of outputs of answered ones."""
        self._ended_isl = self._cached = 0
        """Prompt tokens of answered requests, and how many of them were cached."""
        self._local = self._local_prefill = 0
        """Answered requests that decoded where they prefilled, and their prompt tokens that were not cached."""
        self._tpot_s = 0.0

    def arrived(self, flight: Flight) -> None:
        """Count an arrival."""
        self._requests += 1
        self._isl += flight.isl
        self._isl_sq += flight.isl * flight.isl

    def first_token(self, flight: Flight, time: int) -> None:
        """Count a first token. Its `time` may be the end of the step in progress, later than now."""
        self._first_tokens.append((time, flight))

    def ended(self, flight: Flight, tpot_s: float) -> None:
        """Count an answered request."""
        self._ended += 1
        self._osl += flight.osl
        self._tpot_s += tpot_s
        self._ended_isl += flight.isl
        self._cached += flight.cached
        first, second = flight.names
        if first == second:
            self._local += 1
            self._local_prefill += flight.isl - flight.cached

    def close(self, now: int, window_s: float) -> Traffic:
        """Return the traffic of the last `window_s` seconds and begin a new window, which also gets what ends `now`."""
        traffic = self.so_far(now, window_s)
        self._first_tokens = [entry for entry in self._first_tokens if entry[0] >= now]
        self._begin()
        return traffic

    def so_far(self, now: int, window_s: float) -> Traffic:
        """Return the traffic of the last `window_s` seconds; the window goes on."""
        ttfts = [t - flight.arrived for t, flight in self._first_tokens if t < now and t == flight.first_token]
        return Traffic(
            window_s,
            self._requests,
            isl_tokens=_mean(self._isl, self._requests),
            osl_tokens=_mean(self._osl, self._ended),
            ttft_s=_mean(seconds(sum(ttfts)), len(ttfts)),
            tpot_s=_mean(self._tpot_s, self._ended),
            isl_sq_tokens=_mean(self._isl_sq, self._requests),
            local_share=_mean(self._local, self._ended),
            prefix_hit_rate=_mean(self._cached, self._ended_isl),
            local_prefill_tokens=_mean(self._local_prefill, self._local),
        )


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
