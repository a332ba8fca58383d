"""The planner ``static`` keeps the pools of its settings, whatever it sees."""

from __future__ import annotations

import math

import pytest

from pdplugins import config
from pdplugins.errors import ConfigError
from pdplugins.runtime.assembly import build_deployment, build_planner
from pdplugins.types import Planner, PlannerView, Pool, Traffic


def static(gpu_budget: int = 8, **pools: int) -> Planner:
    chosen = config.parse({"deployment": {"gpu_budget": gpu_budget}, "planner": {"name": "static", **pools}})
    return build_planner(chosen, build_deployment(chosen))


@pytest.mark.parametrize("traffic", [None, Traffic(5, 0), Traffic(5, 1e6, 9e9, 9e9), Traffic(math.nan, math.nan)])
def test_the_pools_are_those_of_the_settings(traffic: Traffic | None) -> None:
    plan = static(prefill=3, decode=2).plan(PlannerView(0.0, traffic, Pool(1), Pool(1)))
    assert (plan.prefill, plan.decode, plan.reason) == (3, 2, "static 3P2D")


def test_pools_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"static: 7P1D needs 9 GPUs, gpu_budget is 8; raise the budget or lower"):
        static(prefill=7)


def test_a_role_without_a_worker_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"planner static: decode: .*at least 1"):
        static(decode=0)
