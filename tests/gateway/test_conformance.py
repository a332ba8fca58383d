"""The SGLang gateway as a host of policies."""

from __future__ import annotations

from typing import ClassVar

from pdplugins.testing.hosts import HostConformance, Scenario, Served
from tests.gateway.host import NOT_FILLED, run_scenario


class TestGateway(HostConformance):
    not_filled: ClassVar = NOT_FILLED

    def run(self, scenario: Scenario) -> Served:
        return run_scenario(scenario)
