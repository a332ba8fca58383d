"""The profile of each instance that Arrow takes at cluster start (Section 5.3); here the performance model gives it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.workers import Role
from pdplugins.policies._common import largest_within

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


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """The largest batch and the most tokens with which a decode step of one instance meets the TPOT SLO."""

    requests: int
    tokens: int
    """Max Running Tokens of Algorithm 2."""

    @classmethod
    def find(cls, deployment: Deployment, tp: int, kv_tokens: int) -> DecodeLimits:
        """Find how many tokens a full batch may have, up to the `kv_tokens` that the KV cache holds."""
        perf, tpot_s, batch = deployment.perf, deployment.slo.tpot_s, deployment.max_batch
        while batch > 1 and perf.decode_step_s(batch, 0, tp) > tpot_s:
            batch //= 2
        return cls(batch, largest_within(tpot_s, kv_tokens, lambda held: perf.decode_step_s(batch, held / batch, tp)))


class StartupProfiler:
    """Profiles instances once for each tensor-parallel size and KV cache size."""

    def __init__(self, deployment: Deployment, max_running_tokens: int | None) -> None:
        self._deployment = deployment
        self._max_running_tokens = max_running_tokens
        self._predictors: dict[int, TtftPredictor] = {}
        self._limits: dict[tuple[int, int], DecodeLimits] = {}

    def predictor(self, role: Role) -> TtftPredictor:
        """Return the TTFT predictor of an instance that was started for `role`."""
        tp = self._tp(role, Role.PREFILL)
        if tp not in self._predictors:
            self._predictors[tp] = TtftPredictor.fit(self._deployment.perf, tp)
        return self._predictors[tp]

    def limits(self, role: Role, kv_tokens: int) -> DecodeLimits:
        """Return the decode limits of an instance that was started for `role` with `kv_tokens` of KV cache."""
        tp = self._tp(role, Role.DECODE)
        if (tp, kv_tokens) not in self._limits:
            found = DecodeLimits.find(self._deployment, tp, kv_tokens)
            own = self._max_running_tokens
            self._limits[tp, kv_tokens] = found if own is None else DecodeLimits(found.requests, own)
        return self._limits[tp, kv_tokens]

    def _tp(self, role: Role, phase: Role) -> int:
        """Return the TP size of an instance of `role`, or the nearest one that the profile has for `phase`."""
        deployment = self._deployment
        tp = deployment.prefill_tp if role is Role.PREFILL else deployment.decode_tp
        return min(deployment.perf.tp_sizes(phase), key=lambda size: abs(size - tp))
