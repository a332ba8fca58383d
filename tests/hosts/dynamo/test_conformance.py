"""Dynamo as a host of policies: its planner asks ours, and our router is in its path of requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from pdplugins.hosts.dynamo.mocker import quiet
from pdplugins.testing.hosts import HostConformance, Scenario, Seam, Served
from tests.hosts.dynamo import scenarios
from tests.hosts.dynamo.router import routed
from tests.hosts.dynamo.router.rig import Rig

quiet()
pytest.importorskip("dynamo._core")


class Dynamo(HostConformance):
    not_filled: ClassVar = scenarios.PLANNERS_LACK
    way: ClassVar[Callable[[Scenario, Path], Served]]

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def run(self, scenario: Scenario) -> Served:
        return type(self).way(scenario, self.folder)


class TestReplay(Dynamo):
    """Dynamo's compiled replay serves the requests."""

    way = scenarios.replay


@pytest.mark.dynamo
class TestPlanner(Dynamo):
    """Dynamo's own planner asks our plugin, and orders the fleet of `dynamo serve`."""

    way = scenarios.run_order


@pytest.mark.dynamo
class TestRouter(HostConformance):
    """Our router serves the requests, on live mocker workers behind Dynamo's frontend."""

    not_filled: ClassVar = routed.NOT_FILLED

    @pytest.fixture(autouse=True)
    def _rig(self, rig: Rig) -> None:
        self.rig = rig

    def run(self, scenario: Scenario) -> Served:
        return self.rig.run(routed.serve(self.rig, scenario))


def test_planners_and_the_router_share_no_seam() -> None:
    assert set(scenarios.PLANNERS_LACK) | set(routed.NOT_FILLED) == set(Seam)
    moves = {Seam.PLANNER_ROLES, Seam.POWER_ROLES, Seam.POWER_CAPS}
    assert set(scenarios.NOT_FILLED) == {Seam.BATCHES, Seam.OWN_TPOTS, *moves}
