"""How many times as long as the profile says steps take, on each worker: profiles are wrong, and some workers slow.

A worker's ratio is that of the sums of measured and modelled time over its last steps. While these are few it is drawn
towards the typical ratio of the pool (empirical Bayes), which is the median of the workers and so not that of a slow
one. A ratio is rounded, so that a worker that does what the profile says has exactly 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from statistics import median_low

PRIOR = 8.0
"""Steps that the typical ratio counts for on a worker."""
KEPT = 0.99
"""Share of what is known that each new step leaves: about the last hundred steps count."""
BAND = 1 / 16
"""A worker this close to its profile does what it says: a model of steps is never exact."""
GRAIN = 32
"""Other ratios are multiples of one over this, so that what is computed from them can be remembered."""
MOST_STEPS = 32.0
"""Most steps that one reading counts for."""
BOUND = 4.0
"""Largest ratio of one step that counts."""
LEAST = 1 / GRAIN
MOST_KNOWN = 4096
"""Requests whose place is remembered; a host that tells of no end must not fill the memory."""
WINDOW_S = 10.0
"""Seconds that a host's mean may cover: it is one of decodes only on a worker that had no prompts for that long."""
LEAST_LOOK = 32
"""Steps of all workers between two looks at what is typical; in a large pool as many as there are workers."""


class Timed:
    """The last steps of one worker, as sums that fade."""

    __slots__ = ("modelled_s", "ratio", "steps", "took_s")

    def __init__(self) -> None:
        self.ratio = 1.0
        """Rounded, and drawn towards what is typical."""
        self.steps = self.modelled_s = self.took_s = 0.0

    def add(self, modelled_s: float, took_s: float, steps: float, typical: float) -> None:
        """Learn from `steps` steps that are alike."""
        kept, took_s = KEPT**steps, min(max(took_s, modelled_s / BOUND), modelled_s * BOUND)
        self.steps = kept * self.steps + steps
        self.modelled_s = kept * self.modelled_s + steps * modelled_s
        self.took_s = kept * self.took_s + steps * took_s
        drawn = (self.steps * self.took_s / self.modelled_s + PRIOR * typical) / (self.steps + PRIOR)
        self.ratio = 1.0 if abs(drawn - 1) <= BAND else max(round(drawn * GRAIN) / GRAIN, LEAST)


class Drift:
    """The ratios of measured to modelled time of all workers."""

    def __init__(self) -> None:
        self.typical = 1.0
        """Of the worker in the middle; counts for workers that are not known yet."""
        self._workers: dict[str, Timed] = {}
        self._places: dict[str, str] = {}
        """The worker of each request."""
        self._mixed_s: dict[str, float] = {}
        """When each worker had prompts last, or was seen first."""
        self._here = False
        """Whether engines are in this process: their loads are then those of the step in progress."""
        self._next = LEAST_LOOK

    def of(self, worker: str) -> float:
        """Return how many times as long as modelled the steps of a worker take."""
        timed = self._workers.get(worker)
        return self.typical if timed is None else timed.ratio

    def measured(self, worker: str, modelled_s: float, took_s: float, steps: float = 1.0) -> None:
        """Learn from `steps` equal steps of a worker. A time that is not positive and finite is skipped."""
        if not (math.isfinite(took_s) and took_s > 0 and modelled_s > 0):
            return
        if (timed := self._workers.get(worker)) is None:
            timed = self._workers[worker] = Timed()
        timed.add(modelled_s, took_s, min(steps, MOST_STEPS), self.typical)
        self._next -= 1
        if self._next <= 0:
            self._next = max(LEAST_LOOK, len(self._workers))
            self.typical = median_low(timed.ratio for timed in self._workers.values())

    def placed(self, request: str, worker: str) -> None:
        """Note where a request is now."""
        if len(self._places) >= MOST_KNOWN:
            self.left(next(iter(self._places)))
        self._places[request] = worker

    def left(self, request: str) -> None:
        """Forget a request that has ended."""
        self._places.pop(request, None)

    def whose(self, requests: Iterable[str]) -> str | None:
        """Return the worker whose engine prefills these requests; None where this process has not placed them."""
        worker = next((self._places[name] for name in requests if name in self._places), None)
        self._here |= worker is not None
        return worker

    def mixes(self, worker: str, now_s: float) -> None:
        """Note that a worker has prompts."""
        self._mixed_s[worker] = now_s

    def only_decodes(self, worker: str, now_s: float) -> bool:
        """Return whether what a worker without prompts reports is the time of steps that only decode."""
        return now_s - self._mixed_s.setdefault(worker, now_s) >= (0.0 if self._here else WINDOW_S)

    def keep(self, workers: Set[str]) -> None:
        """Forget all other workers."""
        self._workers = {name: timed for name, timed in self._workers.items() if name in workers}
        self._mixed_s = {name: now_s for name, now_s in self._mixed_s.items() if name in workers}
