"""Dynamo's own planner loop: our policy decides in it, as an in-process plugin, and our connector carries it out."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from pdplugins.contracts.planner import PlannerView, Traffic
from pdplugins.contracts.workers import Pool
from pdplugins.errors import HostError
from pdplugins.hosts.dynamo.doors.frontend import FrontendMetrics
from pdplugins.hosts.dynamo.fetching import in_thread
from pdplugins.hosts.dynamo.local.connector import LocalProcessConnector
from pdplugins.hosts.dynamo.local.options import Options
from pdplugins.hosts.dynamo.router.places import NAMESPACE
from pdplugins.runtime.planner import SHORTEST_WAIT_S, SafePlanner
from pdplugins.runtime.signals import build_board

log = logging.getLogger("pdplugins.local.planning")

Connect = Callable[[Any], LocalProcessConnector]

_NEVER = 100_000
"""The stock planner insists on a proposer of its own; its interval is this many times ours."""


def planner_settings(options: Options, policy: SafePlanner) -> dict[str, Any]:
    """Return the config of Dynamo's planner in which only `policy` decides, at its own interval."""
    config = options.config
    scale_s, whole_s = whole_interval(policy.interval_s)
    return {
        # The launcher brings its own environment; the factory that this names is not used.
        "environment": "virtual",
        "namespace": NAMESPACE,
        "backend": options.engine,
        "mode": "disagg",
        "model_name": options.model,
        "optimization_target": "sla",
        "ttft_ms": config.slo.ttft_s * 1e3,
        "itl_ms": config.slo.tpot_s * 1e3,
        "enable_throughput_scaling": True,
        "enable_load_scaling": False,
        "throughput_adjustment_interval_seconds": whole_s * _NEVER,
        "load_adjustment_interval_seconds": whole_s,
        "load_predictor": "constant",
        "pre_deployment_sweeping_mode": "none",
        "max_gpu_budget": config.deployment.gpu_budget,
        "min_endpoint": 1,
        "report_interval_hours": None,
        "live_dashboard_port": 0,
        "metric_reporting_prometheus_port": 0,  # on every address; the stack serves them on this machine only
        "scheduling": {"scale_interval_seconds": scale_s},
        "plugin_registration": {"in_process_plugins": [_plugin(options, policy)]},
    }


def _plugin(options: Options, policy: SafePlanner) -> dict[str, Any]:
    return {
        "module": "pdplugins.hosts.dynamo.doors.inprocess",
        "class": "PdPlanner",
        "plugin_id": "pdplugins",
        "plugin_type": "propose",
        "priority": 1,
        "hold_policy": "HOLD_LAST",
        "execution_interval_seconds": 0.0,  # at every tick, also at one that the policy asked for early
        "needs": ["observations.fpm", "observations.workers"],
        "kwargs": {
            "planner": policy,
            "board": build_board(options.config),
            "frontend_url": options.url,
            "model": options.model,
        },
    }


def whole_interval(interval_s: float) -> tuple[float, int]:
    """Return the interval rounded to tenths of a second, and its smallest multiple in whole seconds.

    Dynamo wants its pipeline's interval to divide that of its own proposers, which is a whole number.
    """
    tenths = max(1, round(interval_s * 10))
    return tenths / 10, math.lcm(tenths, 10) // 10


async def start_planner(runtime: Any, options: Options, policy: SafePlanner, connect: Connect) -> Any:
    """Return Dynamo's planner, ready to `run`. Raises HostError when it does not start.

    :param runtime: Dynamo's ``DistributedRuntime``.
    :param policy: what decides; Dynamo's planner carries it out.
    :param connect: makes the connector from Dynamo's provider of worker metrics.
    """
    from dynamo.planner.config.planner_config import PlannerConfig  # noqa: PLC0415

    try:
        config = PlannerConfig.model_validate(planner_settings(options, policy))
        planner = _planner(runtime, config, connect, partial(until_due, policy, options))
        await planner._async_init()
    except Exception as error:  # whatever Dynamo raises, it did not start
        log.exception("Dynamo's planner did not start")
        raise HostError(f"Dynamo's planner did not start ({' '.join(str(error).split())})") from None
    return planner


async def until_due(policy: SafePlanner, options: Options) -> bool:
    """Return True when `policy` is to be asked: it wants to, or its interval is over. False where it is not eager."""
    looks, began_s, traffic = FrontendMetrics(options.url, options.model), time.monotonic(), None
    await asyncio.sleep(SHORTEST_WAIT_S)  # else one that always wants to be asked would take a core
    while True:
        wait_s = policy.wait_s(_seen(policy, traffic))
        left_s = policy.interval_s - (time.monotonic() - began_s)
        if math.isinf(wait_s):
            return False
        if wait_s <= 0 or left_s <= 0:
            return True
        with suppress(OSError):  # the frontend is busy; the next look sees more
            traffic = await in_thread(looks.so_far)
        await asyncio.sleep(min(wait_s, left_s))


def _seen(policy: SafePlanner, traffic: Traffic | None) -> PlannerView:
    return PlannerView(time.time(), traffic, Pool(policy.last.prefill), Pool(policy.last.decode))


def _planner(runtime: Any, config: Any, connect: Connect, due: Callable[[], Awaitable[bool]]) -> Any:
    from dynamo.planner.core.adapters import DisaggPlanner  # noqa: PLC0415
    from dynamo.planner.environment.base import PlannerEnvironmentImpl  # noqa: PLC0415
    from dynamo.planner.environment.metrics_provider.runtime_provider import RuntimeFpmProvider  # noqa: PLC0415
    from dynamo.planner.environment.runtime import RuntimeNamespaceBinding  # noqa: PLC0415

    class LocalPlanner(DisaggPlanner):  # type: ignore[misc]  # Dynamo's classes are untyped
        """Dynamo's planner without the 20 s in which it looks for benchmark results that nobody has made."""

        async def _bootstrap_regression(self) -> None:
            await self._install_benchmark_fpms()

        async def run(self) -> None:
            """Tick when our policy is eager, and go on at its interval when it is not."""
            engine = self._ensure_engine()
            while await due():
                await self._run_one_tick(engine, engine.initial_tick(time.time()))
            await super().run()

    provider = RuntimeFpmProvider(
        require_prefill=True, require_decode=True, backend=config.backend, model_name=config.model_name, runtime=runtime
    )
    connector = connect(provider)
    environment = PlannerEnvironmentImpl(
        config=config, controller=connector, require_prefill=True, require_decode=True, fpm_provider=provider
    )
    namespace = RuntimeNamespaceBinding(namespace=config.namespace, resolver=connector)
    environment.runtime_namespace_source = namespace
    provider.bind_sources(state_source=environment, namespace_source=namespace)
    return LocalPlanner(runtime, config, environment)


def import_planner() -> None:
    """Import what takes seconds, so that it can be done in a thread while workers start."""
    import dynamo.planner.core.adapters  # noqa: PLC0415
    import dynamo.planner.environment.metrics_provider.runtime_provider  # noqa: PLC0415
    import dynamo.planner.plugins.orchestrator.engine_adapter  # noqa: F401, PLC0415

    import pdplugins.hosts.dynamo.doors.inprocess  # noqa: F401, PLC0415
