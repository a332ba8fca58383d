"""The profile table T of Algorithm 2: (plen, ctx, dnum) to seconds, seeded from the profile, refined by every step.

A cell holds the ratio of measured to modelled time of the steps that fell into it; cells are powers of two wide in each
of the three. So the table knows every composition from the start, a measurement also corrects its neighbours within
the cell, and its size does not grow with the number of steps.
"""

from __future__ import annotations

import math

from pdplugins.policies.dynaserve.steps import StepModel

Key = tuple[int, int, int]
BOUND = 2.0
"""One measurement counts as at most this far off: a hiccup must not close the batch to prefill for long."""


class ProfileTable:
    """Step times of one instance."""

    def __init__(self, model: StepModel, learning_rate: float) -> None:
        self.model = model
        self._rate = learning_rate
        self._ratios: dict[Key, float] = {}

    def ratio(self, plen: int, ctx: float, dnum: int) -> float:
        """Return how many times as long as modelled such steps take here."""
        return self._ratios.get((plen.bit_length(), int(ctx).bit_length(), dnum.bit_length()), 1.0)

    def record(self, plen: int, ctx: float, dnum: int, modelled_s: float, took_s: float) -> None:
        """Learn from a step (line 1). What is not a time, as of a host without a clock, is left out."""
        if not (math.isfinite(took_s) and took_s > 0 and modelled_s > 0):
            return
        ratio = min(max(took_s / modelled_s, 1 / BOUND), BOUND)
        key = plen.bit_length(), int(ctx).bit_length(), dnum.bit_length()
        known = self._ratios.get(key, 1.0)
        self._ratios[key] = known + self._rate * (ratio - known)
