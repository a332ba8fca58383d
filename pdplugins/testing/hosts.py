"""What a host fills in for the policies, as a test class: subclass `HostConformance`, and say how to `run` a scenario.

    class TestMyHost(HostConformance):
        not_filled = {Seam.POWER_ROLES: "this host has no power controller"}

        def run(self, scenario: Scenario) -> Served:
            ...  # start workers, send the jobs, ask the scenario's policies, stop

A host may lack a seam. It says so in `not_filled`, with the reason, and the seam's test is skipped as long as that is
true: the test still runs, and fails once the host fills the seam. docs/writing-a-host.md has the list of all seams.
"""

from __future__ import annotations

from pdplugins.testing.host_fleet import FleetTests
from pdplugins.testing.host_requests import RequestTests
from pdplugins.testing.scenario import Job, NotFilledError, Scenario, Seam, Served

__all__ = ["HostConformance", "Job", "NotFilledError", "Scenario", "Seam", "Served"]


class HostConformance(RequestTests, FleetTests):
    """What a host promises to policies."""

    def test_what_is_not_filled_has_a_reason(self) -> None:
        """The reasons are for readers of the host's documentation."""
        assert all(isinstance(seam, Seam) and reason for seam, reason in self.not_filled.items())
