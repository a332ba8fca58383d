"""The profile table T of Algorithm 2: seconds of a step, taken from the profile and corrected by every measured step.

A step is (plen, ctx, dnum): prompt tokens, mean context of the decodes, and number of decodes. A cell of the table
covers one power of two in each of the three. It holds the ratio of measured to modelled time of the steps in it. So the
table has a time for every step from the start, and its size does not grow with the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pdplugins.contracts.deployment import Deployment
from pdplugins.policies.dynaserve.steps import grid_steps, shared_tp

Key = tuple[int, int, int]
BOUND = 2.0
"""Largest ratio of measured to modelled time that counts, so that one slow step does not keep prefill out for long."""


class ProfileTable:
    """Step times of one instance."""

    def __init__(self, deployment: Deployment, learning_rate: float) -> None:
        self.steps = grid_steps(deployment.perf, shared_tp(deployment), mixes=deployment.mixed_steps)
        """Modelled times of prefill."""
        self._perf, self._decode_tp = deployment.perf, deployment.decode_tp
        self._rate = learning_rate
        self._ratios: dict[Key, float] = {}

    def decode_s(self, dnum: int, ctx: float) -> float:
        """Return the modelled seconds of a step of `dnum` decodes of mean context `ctx` and no prefill."""
        return self._perf.decode_step_s(dnum, ctx, self._decode_tp) if dnum else 0.0

    def ratio(self, plen: int, ctx: float, dnum: int) -> float:
        """Return the ratio of measured to modelled time of such steps on this instance."""
        return self._ratios.get((plen.bit_length(), int(ctx).bit_length(), dnum.bit_length()), 1.0)

    def ratios(self, ctx: float, dnum: int) -> Callable[[int], float]:
        """Return `ratio` as a function of the prompt tokens alone, for a search that tries many."""
        known, cell, batch = self._ratios.get, int(ctx).bit_length(), dnum.bit_length()
        return lambda plen: known((plen.bit_length(), cell, batch), 1.0)

    def record(self, plen: int, ctx: float, dnum: int, modelled_s: float, took_s: float) -> None:
        """Learn from a step (line 1). A time that is not positive and finite is skipped: some hosts measure none."""
        if not (math.isfinite(took_s) and took_s > 0 and modelled_s > 0):
            return
        ratio = min(max(took_s / modelled_s, 1 / BOUND), BOUND)
        key = plen.bit_length(), int(ctx).bit_length(), dnum.bit_length()
        known = self._ratios.get(key, 1.0)
        self._ratios[key] = known + self._rate * (ratio - known)
