"""Threshold scaling: the rule of Kubernetes' horizontal pod autoscaler, for each of the two pools separately.

The utilisation of a pool is its present work over the work that its workers can do. If it stays outside a band for long
enough, the pool becomes ``ceil(workers * utilisation / target)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.planner import PlannerView, ScalePlan, Traffic
from pdplugins.contracts.workers import Pool
from pdplugins.policies._common import Interval, fit_pools


class ThresholdSettings(BaseModel):
    """Settings of the planner ``threshold``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    interval_s: Interval = Field(5.0, description="seconds between two looks")
    up: float = Field(0.8, gt=0, allow_inf_nan=False, description="utilisation above which a pool grows")
    down: float = Field(0.5, ge=0, allow_inf_nan=False, description="utilisation below which a pool shrinks")
    target: float = Field(0.65, gt=0, allow_inf_nan=False, description="utilisation that the new pool should have")
    up_intervals: int = Field(2, ge=1, description="looks in a row above `up` before a pool grows")
    down_intervals: int = Field(60, ge=1, description="looks in a row below `down` before a pool shrinks")

    @model_validator(mode="after")
    def _band(self) -> ThresholdSettings:
        if not self.down <= self.target <= self.up:
            raise ValueError("it must be down <= target <= up, or pools would grow and shrink in turn")
        return self


@dataclass(slots=True)
class _Streak:
    """Numbers of consecutive intervals above and below the band."""

    above: int = 0
    below: int = 0


class ThresholdPlanner:
    """Scales both pools by their utilisation. A pool keeps its size while the host does not report enough."""

    def __init__(self, settings: ThresholdSettings, deployment: Deployment) -> None:
        self._settings = settings
        self._deployment = deployment
        self._prefill, self._decode = _Streak(), _Streak()
        self.interval_s = settings.interval_s

    def plan(self, view: PlannerView) -> ScalePlan:
        """Return the pools wanted from now on."""
        used = self._prefill_work(view), self._decode_work(view.decode)
        pools = view.prefill.coming, view.decode.coming
        wanted = self._wanted(self._prefill, pools[0], used[0]), self._wanted(self._decode, pools[1], used[1])
        fit = fit_pools(self._deployment, *wanted)
        shares = [None if work is None else work / max(now, 1) for work, now in zip(used, pools, strict=True)]
        shown = ", ".join(
            f"{role} {'unknown: held' if share is None else f'{share:.0%} busy'}"
            for role, share in zip(("prefill", "decode"), shares, strict=True)
        )
        signals = {
            f"{role}_utilisation": share
            for role, share in zip(("prefill", "decode"), shares, strict=True)
            if share is not None
        }
        budget = "" if fit == wanted else f"; {wanted[0]}P{wanted[1]}D wanted, the budget allows less"
        return ScalePlan(*fit, f"{shown}{budget}", signals)

    def _wanted(self, streak: _Streak, workers: int, work: float | None) -> int:
        """Return the wanted size of one pool.

        :param work: its present work, as the number of workers that it would keep busy.
        """
        settings = self._settings
        if work is None:
            streak.above = streak.below = 0
            return max(workers, 1)
        share = work / max(workers, 1)
        streak.above = streak.above + 1 if share > settings.up else 0
        streak.below = streak.below + 1 if share < settings.down else 0
        if streak.above >= settings.up_intervals or streak.below >= settings.down_intervals or workers < 1:
            return max(1, math.ceil(min(work / settings.target, self._deployment.gpu_budget)))
        return workers

    def _prefill_work(self, view: PlannerView) -> float | None:
        """Return the prefill work that arrived in one interval or waits, over what one worker does in an interval."""
        waiting = _scaled(view.prefill, sum(load.queued_tokens for load in view.prefill.loads))
        came = _prompt_tokens(view.traffic)
        if waiting is None or came is None or view.traffic is None:
            return None
        tokens = view.traffic.isl_tokens
        if not is_number(tokens) or tokens <= 0:
            tokens = waiting / max(view.prefill.queued_requests, 1)
        if tokens <= 0:
            return 0.0
        per_token_s = self._deployment.perf.prefill_s(tokens, self._deployment.prefill_tp) / tokens
        work = (came / view.traffic.window_s + waiting / self.interval_s) * per_token_s
        return work if is_number(work) else None

    def _decode_work(self, pool: Pool) -> float | None:
        """Return the number of workers whose KV cache, or whose batch places, the present work would fill."""
        deployment = self._deployment
        capacity = deployment.kv_tokens or deployment.perf.kv_capacity_tokens(deployment.decode_tp)
        tokens = _scaled(pool, sum(load.running_tokens + load.queued_tokens for load in pool.loads))
        requests = _scaled(pool, sum(load.running_requests + load.queued_requests for load in pool.loads))
        if tokens is None or requests is None:
            return None
        return max(tokens / max(capacity, 1), requests / deployment.max_batch)


def _scaled(pool: Pool, reported: float) -> float | None:
    """Scale `reported` from the workers that reported to all ready ones; None where none did, or it is no number."""
    if not is_number(reported) or reported < 0 or (pool.ready > 0 and not pool.loads):
        return None
    return reported * max(pool.ready / len(pool.loads), 1.0) if pool.loads else 0.0


def _prompt_tokens(traffic: Traffic | None) -> float | None:
    """Return the prompt tokens that arrived; None where the host does not say."""
    if traffic is None or not is_number(traffic.requests) or not is_number(traffic.window_s) or traffic.window_s <= 0:
        return None
    if traffic.requests <= 0:
        return 0.0
    return traffic.requests * traffic.isl_tokens if is_number(traffic.isl_tokens) else None
