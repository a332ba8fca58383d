"""The simulator as a host of policies."""

from __future__ import annotations

from typing import ClassVar

from pdplugins.testing.hosts import HostConformance, Scenario, Seam, Served
from tests.sim.host import run_scenario


class TestSimulator(HostConformance):
    not_filled: ClassVar = {
        Seam.HOLDS: "there is no flow control",
        Seam.REFUSES: "there is no flow control",
        Seam.PLANNER_ROLES: "roles change without the role authority",
        Seam.ROUTER_ROLES: "roles change without the role authority",
        Seam.POWER_ROLES: "roles change without the role authority",
    }

    def run(self, scenario: Scenario) -> Served:
        return run_scenario(scenario)
