"""Scaling: the programme of the composition says how many workers the forecast load needs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace

from pdplugins.contracts.planner import PlannerView, ScalePlan
from pdplugins.errors import ConfigError
from pdplugins.policies._common import fit_pools
from pdplugins.policies.dopd.forecast import Forecaster, Kalman
from pdplugins.policies.dopd.hold import Hold, Silence
from pdplugins.policies.dopd.load import Load, LoadForecast, Spread, unusable
from pdplugins.policies.dopd.staffing import upper_rate, whole_workers
from pdplugins.policies.fusion.composition import Frontier
from pdplugins.policies.fusion.core import Core

SIGMAS = 1.0
"""Standard errors of the request rate that are planned for."""
Pools = tuple[int, int]


class FusionPlanner:
    """Sizes the pool for DOPD's forecast. Raises ConfigError where not even one worker of each role fits.

    Where every worker may do both phases it scales one pool, and the composition says who prefills only. Else it sizes
    two pools.
    """

    def __init__(self, core: Core) -> None:
        deployment = core.deployment
        if deployment.gpus(1, 1) > deployment.gpu_budget:
            raise ConfigError(
                f"planner fusion: one worker of each role needs {deployment.gpus(1, 1)} GPUs, gpu_budget is "
                f"{deployment.gpu_budget}; raise the budget or lower tp"
            )
        self._core = core
        self._deployment = deployment
        self._mixes = deployment.any_role and deployment.prefill_tp == deployment.decode_tp
        self._horizon_s = max(deployment.startup_s, core.settings.interval_s)
        self._load = LoadForecast(self._forecaster, self._forecaster(), Spread(0.0, 1.0))
        self._holds = Hold(core.settings.hold_s, core.settings.hold_s), Hold(core.settings.hold_s, core.settings.hold_s)
        self._silent = Silence(core.settings.hold_s)
        self._pools: Pools | None = None
        self._planned: tuple[Frontier, float] | None = None
        """What workers do for the load of the last plan, and its rate; None without a load."""
        self._signals: Mapping[str, float] = {}

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `plan`."""
        return self._core.settings.interval_s

    @property
    def signals(self) -> Mapping[str, float]:
        """The numbers behind the last plan."""
        return self._signals

    def plan(self, view: PlannerView) -> ScalePlan:
        """Return the pools wanted from now on, or the last ones when the metrics are unusable."""
        if self._pools is None:
            self._pools = self._start(view)
        if view.traffic is None:
            return self._keep("no traffic metrics")
        if (why := unusable(view.traffic)) is not None:
            return self._keep(why)
        self._load.observe(view.traffic, view.traffic.rate)
        load = self._load.forecast()
        if self._silent(view.traffic.requests, view.now_s):
            load = None
            for hold in self._holds:
                hold.forget()
        elif load is None and view.traffic.requests > 0:
            return self._keep("no request lengths yet")
        wanted, why, self._signals = self._demand(load)
        self._pools = self._held(wanted, view.now_s)
        prefill, decode = self._pools
        return ScalePlan(prefill, decode, f"{prefill}P{decode}D: {why}", self._signals)

    def _forecaster(self) -> Forecaster:
        return Kalman(1 - math.exp(-self._core.settings.interval_s / self._horizon_s))

    def _start(self, view: PlannerView) -> Pools:
        """Take the host's pools as wanted, so that no pool shrinks before the load is known."""
        return self._held((max(view.prefill.coming, 1), max(view.decode.coming, 1)), view.now_s)

    def _keep(self, why: str) -> ScalePlan:
        prefill, decode = self._pools or (1, 1)
        return ScalePlan(prefill, decode, f"holding {prefill}P{decode}D: {why}", self._signals)

    def _demand(self, load: Load | None) -> tuple[Pools, str, dict[str, float]]:
        """Return the pools for a load, why, and the numbers behind."""
        if load is None:
            self._planned = None
            return (1, 1), "no request came lately", {}
        rate = upper_rate(load.amount, self._horizon_s, SIGMAS) * (1 + self._core.settings.spare_share)
        does = self._frontier(load)
        self._planned = does, rate
        wanted = self._mixed(does, rate) if self._mixes else self._split(does, rate)
        signals = {"forecast_rate": load.amount, "planned_rate": rate, "capacity_rate": does.rate(*wanted)}
        why = f"{load.amount:.2f} req/s of {load.isl_tokens:.0f}/{load.osl_tokens:.0f} tokens, {rate:.2f} with reserve"
        return wanted, why, signals

    def _frontier(self, load: Load) -> Frontier:
        deployment = self._deployment
        isl = max(load.isl_tokens * (1 - load.hit_rate), 1.0)
        cached = max(load.isl_tokens - isl, 0.0)
        capacity = self._core.kv_capacity_tokens
        does = self._core.frontier(isl, load.osl_tokens, capacity, mixes=self._mixes, history=cached)
        if self._mixes:
            return does
        return replace(does, prefill=isl / max(deployment.perf.prefill_s(isl, deployment.prefill_tp), 1e-9))

    def _mixed(self, does: Frontier, rate: float) -> Pools:
        """Return the fewest workers that serve `rate`, as far as the budget goes, and their composition."""
        most, gain = self._deployment.gpu_budget // self._deployment.decode_tp, self._core.settings.gain

        def serves(count: int) -> bool:
            prefill = does.best(count)
            return does.rate(prefill, count - prefill) >= rate

        count = min(bisect_left(range(most + 1), True, lo=2, key=serves), most)
        prefill = does.best(count, gain)
        if does.rate(prefill, count - prefill) < rate:
            prefill = does.best(count)
        return prefill, count - prefill

    @staticmethod
    def _split(does: Frontier, rate: float) -> Pools:
        decoded = max(does.mixed[-1][0], 1e-9)
        return whole_workers(rate * does.lengths.isl / does.prefill), whole_workers(rate * does.lengths.osl / decoded)

    def _held(self, wanted: Pools, now_s: float) -> Pools:
        """Let the pools shrink only to what was wanted in the last seconds, within the budget."""
        prefill, decode = wanted
        if not self._mixes:
            return fit_pools(self._deployment, self._holds[0](prefill, now_s), self._holds[1](decode, now_s))
        count = min(self._holds[0](prefill + decode, now_s), self._deployment.gpu_budget // self._deployment.decode_tp)
        prefill = self._composed(wanted, count)
        return prefill, count - prefill

    def _composed(self, wanted: Pools, count: int) -> int:
        """Return how many of `count` workers prefill only: as many as now, where that serves the load or is as good."""
        if self._planned is None:
            return round(wanted[0] * count / sum(wanted))
        (does, rate), gain = self._planned, self._core.settings.gain
        best = wanted[0] if count == sum(wanted) else does.best(count, gain)
        if self._pools is None or sum(self._pools) != count:
            return best
        present = self._pools[0]
        serves = does.rate(present, count - present)
        return present if serves >= min(rate, does.rate(best, count - best) / (1 + gain)) else best
