"""DOPD's planner (Liao et al., Algorithm 2): forecasts the load, and sizes both phases so that Eq. 15 is balanced.

By Eq. 15 both phases serve the same rate: n_p / t_p = n_d * cc_d / (t_d * OSL). Setting each side to the forecast rate
gives the number of busy workers. The additions for queueing (Eq. 10), bursts, backlog and hold are not in the paper.
Each of them is a setting, and `paper_literal` turns all of them off. See docs/policies/dopd.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.planner import PlannerView, ScalePlan, Traffic
from pdplugins.errors import ConfigError
from pdplugins.policies._common import fit_headroom, fit_pools
from pdplugins.policies.dopd.config import DopdSettings
from pdplugins.policies.dopd.decoding import Decoding
from pdplugins.policies.dopd.forecast import Corrected, Forecaster, Predictor, Reverting, build_forecaster
from pdplugins.policies.dopd.hold import Holds, Silence
from pdplugins.policies.dopd.literal import algorithm_2
from pdplugins.policies.dopd.load import (
    LARGEST,
    Load,
    LoadForecast,
    Spread,
    in_flight,
    queued,
    unusable,
    waiting_tokens,
)
from pdplugins.policies.dopd.memory import LEVEL_S, Made, Memory
from pdplugins.policies.dopd.ratio import pd_ratio
from pdplugins.policies.dopd.rising import Rising
from pdplugins.policies.dopd.staffing import (
    Backlog,
    Dispersion,
    Service,
    capped_workers,
    most_work,
    spare_workers,
    upper_rate,
    whole_workers,
)
from pdplugins.policies.dopd.worth import Outlook

LITERAL_CORRECTION = 2.0
"""Bound of the correction factor in `paper_literal`. The paper has none, but a window without requests needs one."""
LEARNING_S = 7200.0
"""Memory of what was learned about bursts, in seconds. It should outlast the hour until the next burst."""
ENOUGH_REQUESTS = 25
"""Requests that the first plan after a cold start waits for: then the rate has a standard error of 20 %."""
LOOK_S = 0.5
"""Seconds between two looks at whether they have come."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Workers wanted, before the hold and the budget are applied, and why."""

    prefill: int
    decode: int
    signals: dict[str, float]
    why: str
    outlook: Outlook | None = None
    """What to expect of pools; None where nothing is forecast."""


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
        memory = LEARNING_S / settings.interval_s
        rate, counted_s = self._forecaster(), math.inf
        if settings.follow_rises and not settings.paper_literal:
            rate, counted_s = Rising(rate, steps, settings.interval_s, self._horizon_s), self._horizon_s
        self._rate = Reverting(rate, steps, memory, counted_s)
        bursts = settings.learn_bursts and not settings.paper_literal
        amount = self._rate if bursts else rate
        self._held_tokens = deployment.kv_tokens or deployment.perf.kv_capacity_tokens(deployment.decode_tp) or LARGEST
        longest = LARGEST if settings.paper_literal else self._held_tokens
        self._spread = Spread(settings.length_cv2, memory, longest)
        self._load = LoadForecast(self._forecaster, amount, self._spread, longest)
        most = most_work(deployment, deployment.prefill_tp)
        self._dispersion = Dispersion(steps, settings.interval_s, LEARNING_S, most)
        self._backlog = Backlog(self._horizon_s)
        self._decoding = Decoding(settings, deployment, steps, memory, self._horizon_s)
        self._spare = spare_workers(settings.spare, self._horizon_s)
        self._wanted, self._needed = (Holds(settings.hold_s, self._horizon_s) for _ in range(2))
        self._silent = Silence(settings.hold_s)
        self._pools = (1, 1)
        self._signals: Mapping[str, float] = {}
        self._started_s = math.nan
        self._began_cold: bool | None = None
        """Whether the host had one worker of each role at the first plan that followed from traffic."""
        self._most_rate = math.inf
        """Requests per second that count at most: more of the last lengths would be more than `most_work`."""
        self._sized = False
        """Whether both pools followed from a forecast yet."""

    def _forecaster(self) -> Forecaster:
        settings = self._settings
        literal = settings.paper_literal
        predictor: Predictor = "arima" if literal else settings.predictor
        memory = self._horizon_s / settings.interval_s
        inner = build_forecaster(predictor, history=settings.history, memory=memory)
        limit = LITERAL_CORRECTION if literal else settings.correction_limit
        return Corrected(inner, limit) if limit > 1 else inner

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `plan`."""
        return self._settings.interval_s

    @property
    def signals(self) -> Mapping[str, float]:
        """The numbers behind the last plan."""
        return self._signals

    def plan(self, view: PlannerView) -> ScalePlan:
        """Return the pools wanted from now on, or the last ones when the metrics are unusable."""
        plan = self._plan(view)
        self._signals = plan.signals
        return plan

    def state(self) -> dict[str, Any]:
        """Return what it learned. See :class:`pdplugins.contracts.planner.Remembers`."""
        return Memory.model_validate(
            {
                "made": self._made,
                "levels": self._load.levels,
                "rate": self._rate.learned,
                "lengths": self._spread.learned,
                "bursts": self._dispersion.learned,
                "busy": self._decoding.learned,
            }
        ).model_dump()

    @property
    def _made(self) -> Made:
        return Made.by(self._deployment, self.interval_s, paper_literal=self._settings.paper_literal)

    def resume(self, state: Any, age_s: float) -> None:
        """Begin with what an earlier run learned. Raises ValueError where that is another deployment's, or no state."""
        kept = Memory.model_validate(state)
        if differs := kept.made.differences(self._made):
            raise ValueError(f"it is of another deployment: {differs}")
        held = self._held_tokens
        if not kept.lengths.within(held):
            raise ValueError(f"no prompts that a KV cache of {held:.0f} tokens holds have such lengths: {kept.lengths}")
        self._load.resume({name: value for name, value in kept.levels.items() if name != "load" or age_s <= LEVEL_S})
        self._rate.resume(**kept.rate.model_dump())
        self._spread.resume(**kept.lengths.model_dump())
        self._dispersion.resume(**kept.bursts.model_dump())
        self._decoding.resume(**kept.busy.model_dump())

    def wait_s(self, view: PlannerView) -> float | None:
        """Return 0 where the first plan can be made before the tick, and how long to wait for that.

        Only from one worker of each role: pools that somebody chose are good for an interval. See
        :class:`pdplugins.contracts.planner.Eager`.
        """
        traffic = view.traffic
        if not self._cold(view):
            return None
        if self._resumed(view) is not None:
            return 0.0
        if traffic is None or unusable(traffic) is not None or traffic.requests < ENOUGH_REQUESTS:
            return LOOK_S
        # Prefill is sized first; decode when an answer has ended, as nobody knows earlier how long answers are.
        tokens = traffic.osl_tokens if self._began_cold else _prompts(view, traffic).isl_tokens
        return 0.0 if is_number(tokens) and tokens > 0 else LOOK_S

    def _cold(self, view: PlannerView) -> bool:
        """Return whether it began with one worker of each role, and has not sized both pools yet."""
        if self._sized or self._settings.paper_literal:
            return False
        if self._began_cold is None:
            return max(view.prefill.coming, view.decode.coming) <= 1
        return self._began_cold

    def _plan(self, view: PlannerView) -> ScalePlan:
        if math.isnan(self._started_s):
            self._start(view)
        traffic = view.traffic
        # A server is often there before its first client, whose absence says nothing of the load.
        few = traffic is None or traffic.requests < ENOUGH_REQUESTS
        if few and (resumed := self._resumed(view)) is not None:
            return self._first(view, resumed)
        if traffic is None:
            return self._keep("no traffic metrics")
        if (why := unusable(traffic)) is not None:
            return self._keep(why)
        literal, cold = self._settings.paper_literal, self._cold(view)
        if cold:
            traffic = _prompts(view, traffic)
        self._load.observe(traffic, in_flight(view, traffic) if literal else min(traffic.rate, self._most_rate))
        load = self._load.forecast(without_osl=cold)
        if not literal and self._silent(traffic.requests, view.now_s):
            demand = Demand(1, 1, {}, f"no request for {self._settings.hold_s:.0f} s")
            self._wanted.forget()
            self._needed.forget()
        elif load is None:
            return self._keep("no request lengths yet")
        else:
            demand = self._literal(load) if literal else self._balanced(view, traffic, load)
            self._began_cold, self._sized = cold, self._load.complete
        return self._within_limits(view, demand)

    def _resumed(self, view: PlannerView) -> Load | None:
        """Return the load that an earlier run has left, until a plan followed from it."""
        return self._load.forecast() if self._began_cold is None and self._cold(view) else None

    def _first(self, view: PlannerView, load: Load) -> ScalePlan:
        """Plan for the load of an earlier run."""
        self._began_cold = self._sized = True
        demand = self._balanced(view, None, load)
        return self._within_limits(view, replace(demand, why=f"as in the last run, {demand.why}"))

    def _start(self, view: PlannerView) -> None:
        """Take the host's pools as the first plan, and as wanted, so that no pool shrinks before the load is known."""
        pools = max(view.prefill.coming, 1), max(view.decode.coming, 1)
        self._wanted(pools, view.now_s)
        self._pools = fit_pools(self._deployment, *pools)
        self._started_s = view.now_s

    def _keep(self, why: str) -> ScalePlan:
        prefill, decode = self._pools
        return ScalePlan(prefill, decode, f"holding {prefill}P{decode}D: {why}", self._faults({}))

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

    def _balanced(self, view: PlannerView, traffic: Traffic | None, load: Load) -> Demand:
        rate = upper_rate(load.amount, self._horizon_s, self._settings.rate_sigmas)
        remote, perf, tp = load.remote(), self._deployment.perf, self._deployment.prefill_tp
        service = Service.of(
            lambda tokens: perf.prefill_s(tokens, tp), remote.tokens, remote.cv2, self._deployment.slo.ttft_s
        )
        prefill, signals = self._prefill_demand(view, traffic, rate, remote.share, service)
        decode = self._decoding.need(view, traffic, load, rate)
        most_prefill, most_decode = (most_work(self._deployment, of) for of in (tp, self._deployment.decode_tp))
        share = max(signals["prefill_work"] / most_prefill, decode.busy / most_decode)
        self._most_rate = rate / share if share > 0 else math.inf  # a forecast of no request says nothing of lengths
        signals |= {
            "forecast_isl_tokens": load.isl_tokens,
            "forecast_osl_tokens": load.osl_tokens,
            "forecast_rate": load.amount,
            "forecast_concurrency": decode.concurrency,
            "cc_d": decode.cc_d,
            "decode_backlog_s": decode.backlog_s,
            "pd_ratio": pd_ratio(remote.share * service.mean_s, decode.step_s, load.osl_tokens, decode.cc_d),
            "isl_cv": math.sqrt(load.cv2),
            "local_share": load.local_share,
            "prefix_hit_rate": load.hit_rate,
        }
        why = (
            f"{load.amount:.2f} req/s of {load.isl_tokens:.0f}/{load.osl_tokens:.0f} tokens keep "
            f"{signals['prefill_work']:.2f} prefill workers and {decode.busy:.2f} decode workers busy"
        )
        if not self._load.complete:
            why += ", decode follows when an answer has ended"
        if load.local_share > 0:
            why += f", {100 * load.local_share:.0f} % prefill locally"
        if signals["backlog_s"] > 0:
            why += f", {signals['backlog_s']:.1f} s of prefill wait"
        if decode.backlog_s > 0:
            why += f", {decode.backlog_s:.1f} s of decode wait"
        outlook = Outlook(
            self._deployment.slo.ttft_s, self._horizon_s, signals["prefill_work"], service,
            signals["burst_dispersion_s"], signals["backlog_s"], remote.share,
            busy=decode.busy + decode.local, busy_deviation=decode.deviation,
        )  # fmt: skip
        return Demand(prefill, decode.workers, signals, why, outlook)

    def _prefill_demand(
        self, view: PlannerView, traffic: Traffic | None, rate: float, share: float, service: Service
    ) -> tuple[int, dict[str, float]]:
        """Return the workers for `share` of the requests, each of which takes a `service`, and the numbers behind."""
        settings, ttft_s = self._settings, self._deployment.slo.ttft_s
        request_s = share * service.mean_s
        work = rate * request_s
        if traffic is not None:
            self._dispersion.learn(min(traffic.rate, LARGEST) * request_s, work, service)
        dispersion_s = service.poisson_dispersion_s
        if settings.learn_bursts:
            dispersion_s = self._dispersion.seconds(service, self._rate.mean * request_s)
        wait_s = settings.wait_share * service.slack_s
        needed = capped_workers(work, self._dispersion.peak, service, dispersion_s, wait_s) + self._spare
        arrived_s, window_s = (min(traffic.requests, LARGEST) * request_s, traffic.window_s) if traffic else (0.0, 0.0)
        reported_s = min(queued(view.prefill), LARGEST) * service.mean_s
        backlog_s = self._backlog.update(arrived_s, view.prefill.ready, window_s, reported_s)
        if settings.drain_backlog:
            # Backlog that the ready workers clear within the TTFT SLO needs no further workers.
            needed += max(backlog_s - view.prefill.ready * ttft_s, 0.0) / self._horizon_s
        signals = {"prefill_work": work, "burst_dispersion_s": dispersion_s, "backlog_s": backlog_s}
        return whole_workers(needed), signals

    def _within_limits(self, view: PlannerView, demand: Demand) -> ScalePlan:
        wish = demand.prefill, demand.decode
        before, outlook = self._pools, demand.outlook
        if self._settings.paper_literal:
            prefill, decode = fit_pools(self._deployment, *wish)
        else:
            # Whether levels last is learned for `hold_s` before it counts.
            learned = self._settings.learn_bursts and view.now_s - self._started_s > self._settings.hold_s
            lasting = self._rate.persistence if learned else 0.0
            wish = self._wanted(wish, view.now_s, lasting)
            busy = self._needed(outlook.pools if outlook else (1, 1), view.now_s, lasting)
            prefill, decode = fit_headroom(self._deployment, wish, busy)
        self._pools = prefill, decode
        reason = f"{prefill}P{decode}D: {demand.why}"
        if wish != (demand.prefill, demand.decode):
            reason += f"; {wish[0]}P{wish[1]}D was wanted a short time ago"
        if wish != (prefill, decode):
            reason += f"; {wish[0]}P{wish[1]}D exceeds {self._deployment.gpu_budget} GPUs"
        signals = dict(demand.signals)
        if "prefill_work" in signals:
            signals["prefill_utilisation"] = signals["prefill_work"] / prefill
            signals["decode_utilisation"] = signals["forecast_concurrency"] / signals["cc_d"] / decode
        if outlook is not None:
            signals["expected_attainment"] = outlook.attainment(prefill, decode)
            signals["expected_attainment_unchanged"] = outlook.attainment(*before)
        for name, error in self._load.failures.items():
            reason += f"; the {name} forecaster failed ({error}), its last value is used"
        return ScalePlan(prefill, decode, " ".join(reason.split()), self._faults(signals))

    def _faults(self, signals: dict[str, float]) -> dict[str, float]:
        return signals | {"forecast_failures": float(self._load.failed)}


def _prompts(view: PlannerView, traffic: Traffic) -> Traffic:
    """Return `traffic` with the prompt length of what waits, where that is much.

    Many hosts tell the lengths of requests that ended, and of those there are few while one worker has all the work.
    """
    tokens = waiting_tokens(view.prefill, ENOUGH_REQUESTS)
    return traffic if tokens is None else replace(traffic, isl_tokens=tokens, isl_sq_tokens=None)
