"""Dynamo as a host of policies: it asks planners of ours. Its path of a request is its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from pdplugins.hosts.dynamo.mocker import quiet
from pdplugins.testing.hosts import HostConformance, Scenario, Seam, Served
from tests.hosts.dynamo import scenarios

quiet()
pytest.importorskip("dynamo._core")


class Dynamo(HostConformance):
    not_filled: ClassVar = scenarios.NOT_FILLED
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


def test_dynamo_fills_the_seams_of_planners_and_no_other() -> None:
    assert set(Seam) - set(scenarios.NOT_FILLED) == {
        Seam.PLANNER_VIEW,
        Seam.PLANNER_POOLS,
        Seam.PLANNER_FAULTS,
        Seam.GPU_BUDGET,
    }
