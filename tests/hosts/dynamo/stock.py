"""Dynamo's own planner engine, on a virtual clock and without etcd, and its config as an operator writes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

PLANNER_YAML = """
environment: virtual
backend: mocker
mode: disagg
model_name: tiny
optimization_target: load
prefill_scale_up_queue_tokens: 100
prefill_scale_down_queue_tokens: 1
decode_scale_up_kv_rate: 0.9
decode_scale_down_kv_rate: 0.1
enable_load_scaling: true
enable_throughput_scaling: false
load_adjustment_interval_seconds: 5
throughput_adjustment_interval_seconds: 15
pre_deployment_sweeping_mode: none
prefill_engine_num_gpu: 1
decode_engine_num_gpu: 2
max_gpu_budget: 64
report_interval_hours: null
live_dashboard_port: 0
metric_reporting_prometheus_port: 0
scheduling: {scale_interval_seconds: 5}
"""
ENTRY_YAML = """
module: pdplugins.hosts.dynamo.doors.inprocess
class: PdPlanner
plugin_id: pdplugins
plugin_type: propose
priority: 1
execution_interval_seconds: 5
hold_policy: HOLD_LAST
needs: [observations.traffic, observations.fpm, observations.workers]
"""


class Stock:
    """Dynamo's planner engine; the test plays the connector and the workers, which do what they are told at once."""

    def __init__(self, data: dict[str, Any]) -> None:
        from dynamo.planner.config.planner_config import PlannerConfig  # noqa: PLC0415 - slow, and may be missing
        from dynamo.planner.core import types  # noqa: PLC0415
        from dynamo.planner.plugins.clock import VirtualClock  # noqa: PLC0415
        from dynamo.planner.plugins.orchestrator.engine_adapter import OrchestratorEngineAdapter  # noqa: PLC0415

        self._types = types
        gpus = types.WorkerCapabilities(
            prefill=types.EngineCapabilities(num_gpu=1), decode=types.EngineCapabilities(num_gpu=2)
        )
        self.engine = OrchestratorEngineAdapter(PlannerConfig.model_validate(data), gpus, clock=VirtualClock())
        self.pools = (1, 1)

    async def start(self) -> None:
        """Load in-process plugins and open the gateway, where the YAML asks for them."""
        await self.engine.bootstrap_plugins()
        self._next = self.engine.initial_tick(0.0)

    async def tick(self, rate: float | None, **traffic: float) -> tuple[int, int]:
        """Run one tick with `rate` requests/s; return the pools that Dynamo then applies."""
        seen = None
        if rate is not None:
            told = {"duration_s": 5.0, "num_req": 5 * rate, "isl": 1000.0, "osl": 100.0} | traffic
            seen = self._types.TrafficObservation(**told)
        prefill, decode = self.pools
        counts = self._types.WorkerCounts(
            ready_num_prefill=prefill,
            ready_num_decode=decode,
            expected_num_prefill=prefill,
            expected_num_decode=decode,
        )
        tick = self._types.TickInput(now_s=self._next.at_s, traffic=seen, worker_counts=counts)
        effects = await self.engine.tick(self._next, tick)
        self._next = effects.next_tick
        if effects.scale_to is not None:
            self.pools = (effects.scale_to.num_prefill, effects.scale_to.num_decode)
        return self.pools

    def plugin(self, name: str = "pdplugins") -> Any:
        """What Dynamo's registry holds under `name`; None when nothing."""
        return self.engine._orchestrator._registry.get_plugin(name)

    async def until(self, happened: Callable[[], Any], limit_s: float = 60.0) -> None:
        """Let the loop run until `happened`."""
        end_s = time.monotonic() + limit_s
        while not happened():
            assert time.monotonic() < end_s, "nothing happened in time"
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Close the gateway and every plugin's channel."""
        await self.engine.shutdown()
