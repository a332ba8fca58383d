"""The profile of each instance that Arrow takes at cluster start (Section 5.3); here the performance model gives it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.workers import Role
from pdplugins.policies.arrow.limits import DecodeLimits, LoadContext, find_limits

SHORTEST_TOKENS, LONGEST_TOKENS = 256, 65_536
"""Range of prompt lengths for the fit of prefill times. Below it, launching kernels takes longer than computing."""


@dataclass(frozen=True, slots=True)
class TtftPredictor:
    """The quadratic curve ``a L^2 + b L + c`` of prefill time over prompt length."""

    square: float
    linear: float
    constant: float

    def prefill_s(self, tokens: float) -> float:
        """Seconds to prefill one prompt, alone on its instance."""
        return (self.square * tokens + self.linear) * tokens + self.constant

    @classmethod
    def fit(cls, perf: PerfModel, tp: int) -> TtftPredictor:
        """Fit the curve to the prefill times of `perf`, with equal weight on the relative error of every length.

        No coefficient is negative, so that more tokens never take less time.
        """
        from scipy.optimize import nnls  # noqa: PLC0415 - takes longer to import than all of pdplugins

        lengths = np.geomspace(SHORTEST_TOKENS, LONGEST_TOKENS, 31)
        times_s = np.array([perf.prefill_s(length, tp) for length in lengths])
        unit = lengths / LONGEST_TOKENS
        rows = np.stack([unit**2, unit, np.ones_like(unit)], axis=1) / times_s[:, None]
        (square, linear, constant), _ = nnls(rows, np.ones_like(unit))
        return cls(float(square) / LONGEST_TOKENS**2, float(linear) / LONGEST_TOKENS, float(constant))


class StartupProfiler:
    """Profiles instances once for each TP size. Decode limits follow the context of the load."""

    def __init__(self, deployment: Deployment, max_running_tokens: int | None) -> None:
        self._deployment = deployment
        self._max_running_tokens = max_running_tokens
        self._predictors: dict[int, TtftPredictor] = {}
        self._limits: dict[int, DecodeLimits] = {}
        kv_tokens = deployment.kv_tokens or deployment.perf.kv_capacity_tokens(self._tp(Role.DECODE, Role.DECODE))
        self._context = LoadContext(max(kv_tokens / deployment.max_batch, 1.0))  # the largest batch fills the KV cache
        for role in Role:  # now, as scipy takes half a second to import: a request would wait for it
            self.predictor(role)
            self.limits(role)

    def predictor(self, role: Role) -> TtftPredictor:
        """Return the TTFT predictor of an instance that was started for `role`."""
        tp = self._tp(role, Role.PREFILL)
        if tp not in self._predictors:
            self._predictors[tp] = TtftPredictor.fit(self._deployment.perf, tp)
        return self._predictors[tp]

    def limits(self, role: Role) -> DecodeLimits:
        """Return the decode limits of instances that were started for `role`. The object stays up to date."""
        tp = self._tp(role, Role.DECODE)
        if tp not in self._limits:
            self._limits[tp] = self._find(tp)
        return self._limits[tp]

    def learn(self, prompt_tokens: int, output_tokens: int) -> None:
        """Note a request that has decoded, and bring all limits up to date if the load's context has changed."""
        if self._context.learn(prompt_tokens, output_tokens):
            for tp, limits in self._limits.items():
                limits.take(self._find(tp))

    def _find(self, tp: int) -> DecodeLimits:
        return find_limits(self._deployment, tp, self._context.tokens, self._max_running_tokens)

    def _tp(self, role: Role, phase: Role) -> int:
        """Return the TP size of an instance of `role`, or the nearest one that the profile has for `phase`."""
        deployment = self._deployment
        tp = deployment.prefill_tp if role is Role.PREFILL else deployment.decode_tp
        return min(deployment.perf.tp_sizes(phase), key=lambda size: abs(size - tp))
