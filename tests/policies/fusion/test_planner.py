"""The planner: as many workers as the programme needs for the forecast."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from pdplugins.contracts.bundle import Bundle
from pdplugins.errors import ConfigError
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.plugin import build
from pdplugins.testing import PlannerConformance, deployment, planner_view
from pdplugins.types import Planner, Pool
from tests.policies.fusion.model import MODEL

Bundles = Callable[..., Bundle]


def planner(bundle: Bundles, **settings: Any) -> Planner:
    made = bundle(scale=True, **settings).planner
    assert made is not None
    return made()


class TestOfTwoPools(PlannerConformance):
    deployment = deployment(MODEL)
    keeps_budget = True

    def make(self) -> Planner:
        made = build(FusionSettings(scale=True), self.deployment).planner
        assert made is not None
        return made()


class TestOfOnePool(TestOfTwoPools):
    deployment = deployment(MODEL, any_role=True)


def planned(planner: Planner, rate: float, seconds: int = 120, **more: Any) -> tuple[int, int]:
    for tick in range(seconds // 5):
        plan = planner.plan(planner_view(5.0 * tick, rate, **more))
    return plan.prefill, plan.decode


@pytest.mark.parametrize("any_role", [True, False])
def test_more_requests_need_more_workers(bundle: Bundles, any_role: bool) -> None:
    sizes = [sum(planned(planner(bundle, any_role=any_role), rate)) for rate in (1.0, 30.0, 60.0, 1000.0)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 2
    assert sizes[1] < sizes[2]
    assert sizes[-1] == 8


def test_long_answers_need_no_prefill_worker(bundle: Bundles) -> None:
    prefill, decode = planned(planner(bundle), 20.0, isl_tokens=200.0, osl_tokens=1500.0)
    assert prefill == 0
    assert decode >= 2


def test_cached_tokens_are_context_all_the_same(bundle: Bundles) -> None:
    """A cache hit saves prefill. Decodes read it as any context, so they need more workers than a short prompt's."""

    def workers(isl_tokens: float, hit_rate: float) -> int:
        scales = planner(bundle)
        for tick in range(24):
            view = planner_view(5.0 * tick, 5.0, isl_tokens=isl_tokens, osl_tokens=300.0)
            assert view.traffic is not None
            plan = scales.plan(replace(view, traffic=replace(view.traffic, prefix_hit_rate=hit_rate)))
        return plan.prefill + plan.decode

    assert workers(20_000.0, 0.98) > workers(400.0, 0.0)


def test_a_load_that_stays_keeps_its_composition(bundle: Bundles) -> None:
    """The number that is wanted changes with the noise of arrivals, and the larger one is held meanwhile."""
    scales, noise, plans = planner(bundle), random.Random(0), list[tuple[int, int]]()
    for tick in range(200):
        view = planner_view(5.0 * tick, noise.gauss(44.0, 3.0), isl_tokens=1000.0, osl_tokens=1.0)
        plan = scales.plan(view)
        plans.append((plan.prefill, plan.decode))
    assert sum(plan != before for before, plan in pairwise(plans[24:])) <= 2


def test_a_pool_shrinks_after_its_hold(bundle: Bundles) -> None:
    scales, pool = planner(bundle, hold_s=60.0), Pool(4)
    sizes = [
        plan.prefill + plan.decode
        for tick in range(30)
        for plan in [scales.plan(planner_view(5.0 * tick, 1.0, prefill=pool, decode=pool))]
    ]
    assert sizes[0] == 8
    assert sizes[-1] == 2


@pytest.mark.parametrize("any_role", [True, False])
def test_a_pool_without_traffic_shrinks_after_its_hold_however_heavy_requests_are(
    bundle: Bundles, any_role: bool
) -> None:
    """The reserve for requests that may come is a whole request in the time that a worker needs to start."""
    scales = planner(bundle, any_role=any_role, hold_s=60.0, interval_s=5.0)
    heavy = {"isl_tokens": 30_000.0, "osl_tokens": 3000.0}
    sizes = []
    for tick in range(60):
        plan = scales.plan(planner_view(5.0 * tick, 2.0 if tick < 30 else 0.0, **heavy))
        sizes.append(plan.prefill + plan.decode)
    assert sizes[29] == 8
    assert sizes[29 + 60 // 5] == 8
    assert sizes[-1] == 2
    again = scales.plan(planner_view(300.0, 2.0, **heavy))
    assert again.prefill + again.decode > 2


def test_without_the_setting_there_is_no_planner(bundle: Bundles) -> None:
    assert bundle().planner is None


def test_a_budget_too_small_is_told() -> None:
    made = build(FusionSettings(scale=True), deployment(MODEL, prefill_tp=4, decode_tp=8)).planner
    assert made is not None
    with pytest.raises(ConfigError, match="raise the budget"):
        made()
