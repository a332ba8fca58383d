"""DOPD's planner (Liao et al., Algorithm 2): forecasts the load, and sizes both phases so that Eq. 15 is balanced.

By Eq. 15 both phases serve the same rate: n_p / t_p = n_d * cc_d / (t_d * OSL). Setting each side to the forecast rate
gives the number of busy workers. The additions for queueing (Eq. 10), bursts, backlog and hold are not in the paper.
Each of them is a setting, and `paper_literal` turns all of them off. See docs/policies/dopd.md.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.planner import PlannerView, ScalePlan, Traffic
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError
from pdplugins.policies._common import fit_pools
from pdplugins.policies.dopd.config import DopdSettings
from pdplugins.policies.dopd.forecast import Corrected, Forecaster, Predictor, build_forecaster
from pdplugins.policies.dopd.hold import Hold
from pdplugins.policies.dopd.literal import algorithm_2
from pdplugins.policies.dopd.load import LARGEST, Load, LoadForecast, Spread, in_flight, queued, unusable
from pdplugins.policies.dopd.memory import Memory
from pdplugins.policies.dopd.outlook import Outlook
from pdplugins.policies.dopd.ratio import (
    added_s,
    concurrency_within_tpot,
    decode_concurrency,
    mean_context_tokens,
    pd_ratio,
)
from pdplugins.policies.dopd.staffing import Backlog, Service, prefill_workers
from pdplugins.policies.dopd.trend import SAMPLE, Trend, averaged, counted
from pdplugins.policies.dopd.windows import Windows
from pdplugins.policies.dopd.worth import Worth

LITERAL_CORRECTION = 2.0
"""Bound of the correction factor in `paper_literal`. The paper has none, but a window without requests needs one."""
LEARNING_S = 7200.0
"""Memory of what was learned about bursts, in seconds. It should outlast the hour until the next burst."""
IDLE_S = 300.0
"""Seconds without a request after which one worker of each role is enough, or the hold if that is longer."""
FIRST_S = 1.0
"""Seconds between two questions until the first plan. Workers that are requested earlier serve earlier."""
MOST_WORKERS = 1e6
"""Larger numbers of workers are cut to this. The GPU budget cuts them further anyway."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Workers wanted, before the hold and the budget are applied, and why."""

    prefill: int
    decode: int
    signals: dict[str, float]
    why: str
    worth: Worth | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A full decode batch: the requests in it, and the seconds of its step."""

    cc_d: float
    step_s: float


class DopdPlanner:
    """Plans both pools from forecasts. Raises ConfigError where not even one worker of each role fits."""

    def __init__(self, settings: DopdSettings, deployment: Deployment) -> None:
        if deployment.gpus(1, 1) > deployment.gpu_budget:
            raise ConfigError(
                f"planner dopd: one worker of each role needs {deployment.gpus(1, 1)} GPUs, gpu_budget is "
                f"{deployment.gpu_budget}; raise the budget or lower tp"
            )
        self._settings = settings
        self._deployment = deployment
        # A worker requested now serves one start-up time after the next window.
        self._horizon_s = max(deployment.startup_s, settings.interval_s)
        steps = max(round((deployment.startup_s + settings.interval_s) / settings.interval_s), 1)
        memory = math.ceil(LEARNING_S / settings.interval_s)
        trend = settings.predictor == "trend" and not settings.paper_literal
        inner = Trend(steps, counted(settings.interval_s)) if trend else self._forecaster()
        self._steps, self._spread = steps, Spread(settings.length_cv2, memory)
        self._rate = Outlook(inner, steps, settings.interval_s, memory, settings.miss)
        amount = inner if settings.paper_literal else self._rate
        sample = SAMPLE if trend else 1.0
        self._load = LoadForecast(self._forecaster, amount, self._spread, sample)
        self._windows = Windows(settings.interval_s)
        self._backlog = Backlog(self._horizon_s)
        self._prefill_hold, self._decode_hold = (Hold(settings.hold_s) for _ in Role)
        self._busy_s: float | None = None
        self._idle_s = max(settings.hold_s, IDLE_S)
        self._pools = (1, 1)
        self._signals: Mapping[str, float] = {}
        self._started = self._planned = False

    def _forecaster(self) -> Forecaster:
        settings = self._settings
        literal = settings.paper_literal
        predictor: Predictor = "arima" if literal else settings.predictor
        if predictor == "trend":
            return Trend(1, averaged, slopes=False)  # lengths have levels, but hardly trends
        memory = self._horizon_s / settings.interval_s
        inner = build_forecaster(predictor, history=settings.history, memory=memory)
        limit = LITERAL_CORRECTION if literal else settings.correction_limit
        return Corrected(inner, limit) if limit > 1 else inner

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `plan`."""
        return self._settings.interval_s

    @property
    def next_s(self) -> float:
        """Seconds until it wants to be asked again: sooner than `interval_s` as long as it has planned nothing."""
        soon = not self._planned and not self._settings.paper_literal
        return min(FIRST_S, self.interval_s) if soon else self.interval_s

    @property
    def signals(self) -> Mapping[str, float]:
        """The numbers behind the last plan."""
        return self._signals

    def memory(self) -> dict[str, Any]:
        """Return what was learned about lengths and bursts."""
        return Memory(
            interval_s=self.interval_s,
            steps=self._steps,
            rate=self._rate.memory(),
            means=self._load.memory(),
            spread=self._spread.learned,
        ).model_dump(mode="json")

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Begin with what an earlier run learned. Raises ValueError where it is not of these settings, or malformed."""
        known = Memory.model_validate(memory)
        if (known.interval_s, known.steps) != (self.interval_s, self._steps):
            raise ValueError(
                f"it is of forecasts {known.steps} windows of {known.interval_s:g} s ahead, not {self._steps} of "
                f"{self.interval_s:g} s"
            )
        self._rate.recall(known.rate)
        self._load.recall(known.means)
        self._spread.learned = known.spread

    def plan(self, view: PlannerView) -> ScalePlan:
        """Return the pools wanted from now on, or the last ones when the metrics are unusable."""
        plan = self._plan(view)
        self._signals = plan.signals
        return plan

    def _plan(self, view: PlannerView) -> ScalePlan:
        if not self._started:
            self._start(view)
        traffic = view.traffic
        if traffic is None:
            return self._keep("no traffic metrics")
        if (why := unusable(traffic)) is not None:
            return self._keep(why)
        if self._settings.paper_literal:
            return self._whole(view, traffic)
        so_far = self._windows.add(traffic)
        return self._whole(view, so_far) if self._windows.take(so_far) else self._early(view, so_far)

    def _early(self, view: PlannerView, so_far: Traffic) -> ScalePlan:
        """Answer within an interval: before the first plan, with what it would be if the interval ended now.

        Only more workers count, and only where one standard error fewer requests would need them too.
        """
        if self._planned:
            return self._keep("the interval is not over")
        guess = copy.deepcopy(self, {id(self._deployment): self._deployment})
        fewer = max(so_far.requests - math.sqrt(so_far.requests), 0.0)
        plan = guess._whole(view, replace(so_far, requests=fewer))
        pools = fit_pools(self._deployment, max(plan.prefill, self._pools[0]), max(plan.decode, self._pools[1]))
        if pools == self._pools:
            return self._keep("the first interval is not over")
        self._pools, self._planned = pools, True
        return replace(plan, prefill=pools[0], decode=pools[1])

    def _whole(self, view: PlannerView, traffic: Traffic) -> ScalePlan:
        """Plan at the end of an interval."""
        literal = self._settings.paper_literal
        self._load.observe(traffic, in_flight(view, traffic) if literal else traffic.rate)
        load = self._load.forecast()
        if not literal and self._idle(view, traffic):
            demand = Demand(1, 1, {}, f"no request for {self._idle_s:.0f} s")
            self._prefill_hold.forget()
            self._decode_hold.forget()
        elif load is None:
            return self._keep("no request lengths yet")
        else:
            demand = self._literal(load) if literal else self._balanced(view, traffic, load)
        self._planned = True
        return self._within_limits(view, demand)

    def _start(self, view: PlannerView) -> None:
        """Take the host's pools as the first plan, and as wanted, so that no pool shrinks before the load is known."""
        pools = max(view.prefill.coming, 1), max(view.decode.coming, 1)
        self._prefill_hold(pools[0], view.now_s)
        self._decode_hold(pools[1], view.now_s)
        self._pools = fit_pools(self._deployment, *pools)
        self._started = True

    def _keep(self, why: str) -> ScalePlan:
        prefill, decode = self._pools
        return ScalePlan(prefill, decode, f"holding {prefill}P{decode}D: {why}", self._faults({}))

    def _idle(self, view: PlannerView, traffic: Traffic) -> bool:
        """Return whether no request came for a long time. Earlier forecasts no longer count then."""
        if traffic.requests > 0 or self._busy_s is None:
            self._busy_s = view.now_s
        return view.now_s - self._busy_s > self._idle_s

    def _literal(self, load: Load) -> Demand:
        found = algorithm_2(load, self._deployment)
        signals = {
            "forecast_isl_tokens": load.isl_tokens,
            "forecast_osl_tokens": load.osl_tokens,
            "forecast_concurrency": load.amount,
            "cc_d": found.cc_d,
            "pd_ratio": found.ratio,
        }
        why = (
            f"Algorithm 2 for {load.amount:.1f} requests of {load.isl_tokens:.0f}/{load.osl_tokens:.0f} tokens: "
            f"ratio {found.ratio:.2f}, cc_d {found.cc_d:.0f}"
        )
        return Demand(found.prefill, found.decode, signals, why)

    def _balanced(self, view: PlannerView, traffic: Traffic, load: Load) -> Demand:
        slo, later = self._deployment.slo, self._rate.bound(load.amount)
        soon = later if math.isnan(self._rate.now) else max(self._rate.now, 0.0)
        remote, perf, tp = load.remote(), self._deployment.perf, self._deployment.prefill_tp
        service = Service.of(lambda tokens: perf.prefill_s(tokens, tp), remote.tokens, remote.cv2, slo.ttft_s)
        batch = self._batch(load)
        queue = self._queue(view, traffic, remote.share, service)
        # A worker that is there stays as long as it is needed now, but one is only added for what comes when it serves.
        prefill = _kept(
            max(
                self._prefill_workers(load.amount * remote.share, service),
                self._prefill_workers(later * remote.share, service, learned=False),
            )
            + queue / self._horizon_s,
            self._prefill_workers(soon * remote.share, service), view.prefill.coming,
        )  # fmt: skip
        decode = _kept(self._decode_workers(load, later, batch), self._decode_workers(load, soon, batch),
                       view.decode.coming)  # fmt: skip
        signals = {
            "prefill_work": later * remote.share * service.mean_s,
            "burst_dispersion_s": self._dispersion_s(service),
            "backlog_s": queue,
            "forecast_isl_tokens": load.isl_tokens,
            "forecast_osl_tokens": load.osl_tokens,
            "forecast_rate": load.amount,
            "planned_rate": later,
            "forecast_concurrency": later * load.osl_tokens * batch.step_s,
            "cc_d": batch.cc_d,
            "pd_ratio": pd_ratio(remote.share * service.mean_s, batch.step_s, load.osl_tokens, batch.cc_d),
            "isl_cv": math.sqrt(load.cv2),
            "local_share": load.local_share,
            "prefix_hit_rate": load.hit_rate,
        }
        worth = Worth(
            work=signals["prefill_work"], dispersion_s=signals["burst_dispersion_s"],
            slack_s=max(slo.ttft_s - service.mean_s, 0.0), concurrency=signals["forecast_concurrency"],
            spread=math.sqrt(signals["forecast_concurrency"] * (1 + load.cv2)), cc_d=batch.cc_d,
        )  # fmt: skip
        return Demand(prefill, decode, signals, _why(load, signals), worth)

    def _dispersion_s(self, service: Service, *, learned: bool = True) -> float:
        """Return D of Eq. 10 for arrivals of the learned dispersion, or independent ones."""
        more = self._rate.dispersion - 1 if learned and self._settings.learn_bursts else 0.0
        return service.poisson_dispersion_s + more * service.capped_mean_s**2 / service.mean_s

    def _prefill_workers(self, rate: float, service: Service, *, learned: bool = True) -> float:
        """Return the workers for `rate` prompts a second, each of which takes a `service`.

        :param learned: plan for arrivals as clumped as they were; the bound of the rate contains their clumps already.
        """
        wait_s = self._settings.wait_share * self._deployment.slo.ttft_s
        dispersion_s = self._dispersion_s(service, learned=learned)
        return prefill_workers(rate * service.mean_s, dispersion_s, wait_s) + self._settings.spare

    def _queue(self, view: PlannerView, traffic: Traffic, share: float, service: Service) -> float:
        """Return the waiting prefill work, in seconds of one worker, that the ready workers do not clear in the SLO."""
        arrived_s = min(traffic.requests, LARGEST) * share * service.mean_s
        reported_s = min(queued(view.prefill), LARGEST) * service.mean_s
        backlog_s = self._backlog.update(arrived_s, view.prefill.ready, traffic.window_s, reported_s)
        late_s = max(backlog_s - view.prefill.ready * self._deployment.slo.ttft_s, 0.0)
        return late_s if self._settings.drain_backlog else 0.0

    def _batch(self, load: Load) -> Batch:
        """Return the full batch of a decode worker, and what its step takes, as in Eq. 15."""
        deployment = self._deployment
        perf, slo, tp = deployment.perf, deployment.slo, deployment.decode_tp
        context = mean_context_tokens(load.isl_tokens, load.osl_tokens)
        cc_d = decode_concurrency(
            perf, slo, load.isl_tokens, load.osl_tokens, tp, deployment.max_batch, deployment.kv_tokens
        )
        cc_d = concurrency_within_tpot(perf, slo, context, tp, cc_d)
        return Batch(cc_d, perf.decode_step_s(cc_d, context, tp))

    def _decode_workers(self, load: Load, rate: float, batch: Batch) -> float:
        """Return the workers for `rate`: Little's law at the full batch, and its standard deviations.

        Prompts that prefill on decode workers take their share of the workers' time on top.
        """
        perf, tp = self._deployment.perf, self._deployment.decode_tp
        concurrency = rate * load.osl_tokens * batch.step_s
        spread = self._settings.decode_sigmas * math.sqrt(concurrency * (1 + load.cv2))
        local = rate * load.local_share * added_s(perf, load.local_tokens, tp) if load.local_share else 0.0
        return (concurrency + spread) / batch.cc_d + local

    def _within_limits(self, view: PlannerView, demand: Demand) -> ScalePlan:
        wish = demand.prefill, demand.decode
        if not self._settings.paper_literal:
            wish = self._prefill_hold(demand.prefill, view.now_s), self._decode_hold(demand.decode, view.now_s)
        prefill, decode = self._pools = fit_pools(self._deployment, *wish)
        reason = f"{prefill}P{decode}D: {demand.why}"
        if wish != (demand.prefill, demand.decode):
            reason += f"; {wish[0]}P{wish[1]}D was wanted a short time ago"
        if wish != (prefill, decode):
            reason += f"; {wish[0]}P{wish[1]}D exceeds {self._deployment.gpu_budget} GPUs"
        signals = dict(demand.signals)
        if "prefill_work" in signals:
            signals["prefill_utilisation"] = signals["prefill_work"] / prefill
            signals["decode_utilisation"] = signals["forecast_concurrency"] / signals["cc_d"] / decode
        if demand.worth is not None:
            before = max(view.prefill.coming, 1), max(view.decode.coming, 1)
            signals["expected_attainment"] = demand.worth.of(prefill, decode)
            signals["expected_attainment_unchanged"] = demand.worth.of(*before)
            if before != (prefill, decode):
                reason += (
                    f"; {signals['expected_attainment']:.1%} are expected in time, "
                    f"{signals['expected_attainment_unchanged']:.1%} with {before[0]}P{before[1]}D"
                )
        for name, error in self._load.failures.items():
            reason += f"; the {name} forecaster failed ({error}), its last value is used"
        return ScalePlan(prefill, decode, " ".join(reason.split()), self._faults(signals))

    def _faults(self, signals: dict[str, float]) -> dict[str, float]:
        return signals | {"forecast_failures": float(self._load.failed)}


def _kept(later: float, soon: float, coming: int) -> int:
    """Return the workers for later, or those that are needed soon as far as they are there or coming."""
    return max(_whole(later), min(_whole(soon), coming))


def _why(load: Load, signals: Mapping[str, float]) -> str:
    busy = signals["forecast_concurrency"] / signals["cc_d"]
    why = (
        f"{load.amount:.2f} req/s of {load.isl_tokens:.0f}/{load.osl_tokens:.0f} tokens, at most "
        f"{signals['planned_rate']:.2f}, keep {signals['prefill_work']:.2f} prefill workers and {busy:.2f} decode "
        "workers busy"
    )
    if load.local_share > 0:
        why += f", {100 * load.local_share:.0f} % prefill locally"
    if signals["backlog_s"] > 0:
        why += f", {signals['backlog_s']:.1f} s of prefill wait"
    return why


def _whole(workers: float) -> int:
    return max(math.ceil(min(workers, MOST_WORKERS)), 1)
