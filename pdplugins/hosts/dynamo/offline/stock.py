"""Dynamo's own planners as the baseline: the real classes of ``dynamo.planner``, in the loop of its replay.

DYN-LOAD scales on engine load, DYN-SLA on predicted traffic, SLA+LOAD on both. Their performance model is bootstrapped
from the same table that times the simulated workers, as a live deployment bootstraps it from benchmarks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from pdplugins.config import first_error
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError, meant, shown
from pdplugins.hosts.dynamo.mocker import BATCHED_TOKENS, BLOCK_TOKENS, Engines
from pdplugins.hosts.dynamo.offline.scaling import ScalingPolicy

TARGETS = ("throughput", "latency", "load", "sla")
PREDICTORS = ("constant", "arima", "kalman", "prophet")
NAMES = ("dyn-load", "dyn-sla", "dyn-sla+load")
CONTEXT_TOKENS = 16_384
"""Context length that the thresholds of DYN-LOAD are relative to."""
LOAD_THRESHOLDS = {
    "prefill_scale_up_queue_tokens": 4096,
    "prefill_scale_down_queue_tokens": 256,
    "decode_scale_up_kv_rate": 60,
    "decode_scale_down_kv_rate": 20,
}
"""DYN-LOAD(load) has no thresholds of its own; these are half a prefill step, and 60 % and 20 % of the KV cache."""


TUNABLE = frozenset(
    {
        "ttft_ms", "itl_ms", "load_scaling_down_sensitivity", "load_adjustment_interval_seconds",
        "load_min_observations", "max_num_fpm_samples", "throughput_adjustment_interval_seconds",
        "load_predictor_log1p", "prophet_window_size", "kalman_q_level", "kalman_q_trend", "kalman_r",
        "kalman_min_points", *LOAD_THRESHOLDS,
    }
)  # fmt: skip
"""Documented settings of Dynamo's planner that decide how it scales, and that a run may change."""


def settings(name: str, variant: str, deployment: Deployment, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the ``PlannerConfig`` of a stock planner.

    Without `given`, the targets are the SLO of the deployment, and everything else is Dynamo's default but the interval
    of DYN-SLA (180 s) and the predictor (arima): ``load_scaling_down_sensitivity`` is 80.

    :param given: settings of `TUNABLE` that replace these.
    Raises ConfigError when `variant` is not one of its own, or one of `given` is not known.
    """
    given = given or {}
    if unknown := sorted(set(given) - TUNABLE):
        raise ConfigError(f"--set {unknown[0]}: {name} has no such setting; it has {', '.join(sorted(TUNABLE))}")
    return {
        "mode": "disagg",
        "backend": "mocker",
        "model_name": "replay",
        "advisory": True,
        "ttft_ms": deployment.slo.ttft_s * 1e3,
        "itl_ms": deployment.slo.tpot_s * 1e3,
        "prefill_engine_num_gpu": deployment.prefill_tp,
        "decode_engine_num_gpu": deployment.decode_tp,
        "max_gpu_budget": deployment.gpu_budget,
        "min_endpoint": 1,
        "pre_deployment_sweeping_mode": "none",
        "report_interval_hours": None,
        "live_dashboard_port": 0,
        "load_scaling_down_sensitivity": 80,
        "load_adjustment_interval_seconds": 5,
        "throughput_adjustment_interval_seconds": 30,
        **_scaling(name, variant),
        **given,
    }


def _scaling(name: str, variant: str) -> dict[str, Any]:
    if name == "dyn-load":
        target = _one_of(name, variant or "throughput", TARGETS)
        extra = LOAD_THRESHOLDS if target == "load" else {}
        return {
            "optimization_target": target,
            "enable_load_scaling": True,
            "enable_throughput_scaling": False,
            **extra,
        }
    predictor = _one_of(name, variant or "constant", PREDICTORS)
    both = {"optimization_target": "sla", "enable_throughput_scaling": True, "load_predictor": predictor}
    return both | {"enable_load_scaling": name == "dyn-sla+load"}


def _one_of(name: str, variant: str, choices: tuple[str, ...]) -> str:
    if variant not in choices:
        hint = meant(variant, choices)
        raise ConfigError(f"planner {name}: there is no {shown(variant)}; choose from {', '.join(choices)}{hint}")
    return variant


@contextmanager
def stock_planner(config: dict[str, Any], deployment: Deployment, engines: Engines) -> Iterator[ScalingPolicy]:
    """Build the planner that `settings` describes, with its performance model filled. Imports Dynamo's planner."""
    from dynamo.planner.config.planner_config import PlannerConfig  # noqa: PLC0415
    from dynamo.planner.core.types import EngineCapabilities, WorkerCapabilities  # noqa: PLC0415
    from dynamo.planner.offline.replay_adapter import create_replay_planner_adapter  # noqa: PLC0415

    def capabilities(role: Role, gpus: int) -> Any:
        return EngineCapabilities(
            num_gpu=gpus,
            max_num_batched_tokens=BATCHED_TOKENS,
            max_num_seqs=deployment.max_batch,
            context_length=CONTEXT_TOKENS,
            max_kv_tokens=engines.kv_tokens_of(role, deployment),
            kv_cache_block_size=BLOCK_TOKENS,
        )

    workers = WorkerCapabilities(
        prefill=capabilities(Role.PREFILL, deployment.prefill_tp),
        decode=capabilities(Role.DECODE, deployment.decode_tp),
    )
    try:
        checked = PlannerConfig.model_validate(config)
    except ValidationError as error:
        detail = first_error(error, PlannerConfig)
        raise ConfigError(f"--set: Dynamo's planner refuses it: {detail}") from None
    with create_replay_planner_adapter(checked, workers) as adapter:
        if config["optimization_target"] == "sla":
            prefill, decode = _benchmarks(deployment, engines)
            adapter.install_benchmark_fpms(prefill_fpms=prefill, decode_fpms=decode)
        yield adapter


def _benchmarks(deployment: Deployment, engines: Engines) -> tuple[list[Any], list[Any]]:
    """Make the benchmark points that ``dynamo.replay`` makes from its own model: one per (tokens), (batch, context)."""
    from dynamo.common.forward_pass_metrics import (  # noqa: PLC0415
        ForwardPassMetrics,
        ScheduledRequestMetrics,
    )

    perf, most = deployment.perf, engines.kv_tokens_of(Role.DECODE, deployment)
    prefill = [
        ForwardPassMetrics(
            wall_time=perf.prefill_s(tokens, deployment.prefill_tp),
            scheduled_requests=ScheduledRequestMetrics(num_prefill_requests=1, sum_prefill_tokens=tokens),
        )
        for tokens in range(100, BATCHED_TOKENS + 1, 1000)
    ]
    decode = [
        ForwardPassMetrics(
            wall_time=perf.decode_step_s(batch, context, deployment.decode_tp),
            scheduled_requests=ScheduledRequestMetrics(num_decode_requests=batch, sum_decode_kv_tokens=batch * context),
        )
        for context in (500, 2000, 4000, 8000)
        for batch in range(1, deployment.max_batch + 1, 32)
        if batch * context <= most
    ]
    return prefill, decode
