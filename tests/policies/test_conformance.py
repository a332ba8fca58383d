"""Every registered policy keeps the promises of its kind. A new plugin is held to them by its entry point alone."""

from __future__ import annotations

from typing import Any

import pytest

from pdplugins.config import Config
from pdplugins.policies.stock.flow import FcfsSettings, FirstComeFirstServed
from pdplugins.runtime.assembly import build_deployment
from pdplugins.testing import (
    BatchSchedulerConformance,
    FlowConformance,
    PlannerConformance,
    PowerConformance,
    RouterConformance,
)
from pdplugins.types import Flow
from tests.policies import registered

DEPLOYMENT = build_deployment(Config())


class Registered:
    """Makes the policy that the parameter of the test names, with the settings that it has by default."""

    kind: str
    deployment = DEPLOYMENT

    @pytest.fixture(autouse=True)
    def _policy(self, name: str) -> None:
        self.name = name

    def make(self) -> Any:
        return registered.make(self.kind, self.name, DEPLOYMENT)


@pytest.mark.parametrize("name", registered.names("planner"))
class TestPlanners(Registered, PlannerConformance):
    kind = "planner"
    keeps_budget = True


@pytest.mark.parametrize("name", registered.names("router"))
class TestRouters(Registered, RouterConformance):
    kind = "router"


@pytest.mark.parametrize("name", registered.names("flow"))
class TestFlows(Registered, FlowConformance):
    kind = "flow"


class TestFirstComeFirstServedWithLimits(FlowConformance):
    """With its defaults it holds and refuses nothing."""

    def make(self) -> Flow:
        return FirstComeFirstServed(FcfsSettings(per_worker=1, free_kv=True, max_wait_s=5.0), DEPLOYMENT)


@pytest.mark.parametrize("name", registered.names("batch_scheduler"))
class TestBatchSchedulers(Registered, BatchSchedulerConformance):
    kind = "batch_scheduler"


@pytest.mark.parametrize("name", registered.names("power"))
class TestPowerControllers(Registered, PowerConformance):
    kind = "power"
    budget_w = 4800.0
