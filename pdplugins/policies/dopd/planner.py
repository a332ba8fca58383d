"""DOPD's planner (Liao et al., Algorithm 2): forecast the load, size both phases so that Eq. 15 stays balanced."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdplugins.errors import ConfigError
from pdplugins.policies.dopd.config import DopdSettings
from pdplugins.policies.dopd.fleet import Hold, fit_budget
from pdplugins.policies.dopd.forecast import Corrected, Forecaster, build_forecaster
from pdplugins.policies.dopd.ratio import concurrency_within_tpot, decode_concurrency, mean_context_tokens, pd_ratio
from pdplugins.types import Deployment, PlannerView, ScalePlan, is_number


@dataclass(frozen=True, slots=True)
class Load:
    """Forecast load."""

    isl_tokens: float
    osl_tokens: float
    rate: float
    """Requests per second."""


class DopdPlanner:
    """Plans both pools from forecasts of prompt length, output length and request rate."""

    def __init__(self, settings: DopdSettings, deployment: Deployment) -> None:
        if deployment.gpus(1, 1) > deployment.gpu_budget:
            raise ConfigError(
                f"planner dopd: one worker of each role needs {deployment.gpus(1, 1)} GPUs, gpu_budget is "
                f"{deployment.gpu_budget}; raise the budget or lower tp"
            )
        self._settings = settings
        self._deployment = deployment
        self._isl, self._osl, self._rate = (self._forecaster() for _ in range(3))
        self._hold_prefill, self._hold_decode = Hold(settings.hold_s), Hold(settings.hold_s)
        self._last: ScalePlan | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `plan`."""
        return self._settings.interval_s

    def _forecaster(self) -> Forecaster:
        inner = build_forecaster(self._settings.predictor, self._settings.history)
        return Corrected(inner, self._settings.correction_limit)

    def plan(self, view: PlannerView) -> ScalePlan:
        """Return the pools wanted from now on; the last plan again when the metrics are unusable."""
        load = self._forecast(view)
        self._last = self._hold(view, load) if isinstance(load, str) else self._scale(view, load)
        return self._last

    def _hold(self, view: PlannerView, why: str) -> ScalePlan:
        if self._last is not None:
            prefill, decode = self._last.prefill, self._last.decode
        else:
            wanted = max(view.prefill.coming, 1), max(view.decode.coming, 1)
            prefill, decode = fit_budget(*wanted, self._deployment)
        return ScalePlan(prefill, decode, f"holding {prefill}P{decode}D: {why}")

    def _forecast(self, view: PlannerView) -> Load | str:
        traffic = view.traffic
        if traffic is None or not (is_number(traffic.window_s) and is_number(traffic.requests)):
            return "no traffic metrics"
        if traffic.window_s <= 0 or traffic.requests < 0:
            return "impossible traffic metrics"
        self._rate.observe(traffic.rate)
        for series, value in ((self._isl, traffic.isl_tokens), (self._osl, traffic.osl_tokens)):
            if is_number(value) and value > 0:
                series.observe(value)
        isl, osl, rate = (series.forecast() for series in (self._isl, self._osl, self._rate))
        if traffic.requests == 0:
            rate = 0.0
        if not (is_number(isl) and is_number(osl)):
            return "no request lengths yet" if rate else Load(1, 1, 0)
        return Load(max(isl, 1.0), max(osl, 1.0), max(rate, 0.0))

    def _scale(self, view: PlannerView, load: Load) -> ScalePlan:
        deployment, slo, perf = self._deployment, self._deployment.slo, self._deployment.perf
        context = mean_context_tokens(load.isl_tokens, load.osl_tokens)
        cc_d = decode_concurrency(
            perf, slo, load.isl_tokens, load.osl_tokens, deployment.decode_tp, deployment.max_batch
        )
        cc_d = concurrency_within_tpot(perf, slo, context, deployment.decode_tp, cc_d)
        t_p = perf.prefill_s(load.isl_tokens, deployment.prefill_tp)
        t_d = perf.decode_step_s(cc_d, context, deployment.decode_tp)
        prefill_busy = load.rate * t_p
        concurrency = load.rate * load.osl_tokens * t_d
        wanted_prefill = self._hold_prefill(self._staff(prefill_busy), view.now_s)
        wanted_decode = self._hold_decode(self._staff(concurrency / cc_d), view.now_s)
        prefill, decode = fit_budget(wanted_prefill, wanted_decode, deployment)
        signals = {
            "forecast_isl_tokens": load.isl_tokens,
            "forecast_osl_tokens": load.osl_tokens,
            "forecast_rate": load.rate,
            "forecast_concurrency": concurrency,
            "cc_d": cc_d,
            "pd_ratio": pd_ratio(t_p, t_d, load.osl_tokens, cc_d),
            "prefill_utilisation": prefill_busy / prefill,
            "decode_utilisation": concurrency / cc_d / decode,
        }
        reason = (
            f"{prefill}P{decode}D for {load.rate:.2f} req/s of {load.isl_tokens:.0f}/{load.osl_tokens:.0f} tokens: "
            f"{prefill_busy:.2f} prefill and {concurrency / cc_d:.2f} decode workers busy"
        )
        return ScalePlan(prefill, decode, reason, signals)

    def _staff(self, busy: float) -> int:
        return max(math.ceil(busy + self._settings.headroom * math.sqrt(busy)), 1)
