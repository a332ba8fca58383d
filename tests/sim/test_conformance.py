"""The simulator as a host of policies."""

from __future__ import annotations

from pdplugins.testing.hosts import HostConformance, Scenario, Served
from tests.sim.host import run_scenario


class TestSimulator(HostConformance):
    def run(self, scenario: Scenario) -> Served:
        return run_scenario(scenario)
