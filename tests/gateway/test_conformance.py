"""The SGLang gateway as a host of policies."""

from __future__ import annotations

from typing import ClassVar

from pdplugins.testing.hosts import HostConformance, Scenario, Seam, Served
from tests.gateway.host import run_scenario

ENGINES = "the engines compose their batches; the plugin inside SGLang asks batch schedulers"
PLANNER = "the gateway has no planner: it routes to the servers that it is given"
POWER = "the gateway has no power controller: it does not see GPUs"


class TestGateway(HostConformance):
    not_filled: ClassVar = {
        Seam.LOAD_BY_PHASE: "no server says how many prompt tokens its current step has",
        Seam.BATCHES: ENGINES,
        Seam.PLANNER_VIEW: PLANNER,
        Seam.PLANNER_POOLS: PLANNER,
        Seam.PLANNER_FAULTS: PLANNER,
        Seam.GPU_BUDGET: PLANNER,
        Seam.PLANNER_ROLES: PLANNER,
        Seam.POWER_ROLES: POWER,
        Seam.POWER_CAPS: POWER,
    }

    def run(self, scenario: Scenario) -> Served:
        return run_scenario(scenario)
