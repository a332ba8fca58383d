"""Watts: caps that are chosen with the composition, never above the budget, and moved by RAPID in between."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from pdplugins.config import parse
from pdplugins.errors import ConfigError
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.plugin import build
from pdplugins.policies.fusion.watts import Powered
from pdplugins.policies.rapid.controller import Caps
from pdplugins.runtime.assembly import build_deployment
from pdplugins.testing import request
from pdplugins.types import Deployment, GpuView, PlannerView, Pool, Role

H100: dict[str, Any] = {
    "deployment": {"profile": "h100/llama-3.1-70b-fp8", "prefill": {"tp": 2}, "decode": {"tp": 2}},
    "simulation": {"flip": "label"},
}
IDLE = PlannerView(0.0, None, Pool(2), Pool(2))


@pytest.fixture(scope="module")
def h100() -> Deployment:
    return build_deployment(parse(H100))


def composed(deployment: Deployment, budget_w: float | None, isl: int, osl: int) -> Core:
    core = Core(FusionSettings(power_budget_w=budget_w, prior_tokens=osl, dwell_s=0.0), deployment)
    core.lengths.began(request("r", isl))
    core.compose(4, 2, 500_000, 0.0)
    return core


def test_without_a_budget_nobody_touches_the_caps(h100: Deployment) -> None:
    core = composed(h100, None, 2000, 200)
    assert core.caps is None
    assert build(core.settings, h100).power is None


def test_caps_fit_the_budget_and_less_power_serves_less(h100: Deployment) -> None:
    rates = []
    for budget_w in (8 * 450.0, 8 * 550.0, 8 * 700.0):
        core = composed(h100, budget_w, 4000, 100)
        assert core.caps is not None
        assert core.wanted is not None
        prefill_w, decode_w = core.caps.prefill_w, core.caps.decode_w
        assert 2 * (core.wanted * prefill_w + (4 - core.wanted) * decode_w) <= budget_w
        rates.append(core.capacity)
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]
    assert rates[-1] == pytest.approx(composed(h100, None, 4000, 100).capacity)


@pytest.mark.parametrize("prefill", range(4))
def test_no_caps_that_fit_serve_more(h100: Deployment, prefill: int) -> None:
    mixed, budget_w = 4 - prefill, 8 * 450.0
    does = composed(h100, budget_w, 4000, 100)._programme(4000.0, 100.0, 500_000)
    assert isinstance(does, Powered)
    rates = [
        replace(does.by_cap[decode_w], prefill=does.by_cap[prefill_w].prefill).rate(prefill, mixed)
        for prefill_w, decode_w in product(does.by_cap, repeat=2)
        if 2 * (prefill * prefill_w + mixed * decode_w) <= budget_w
    ]
    assert does.rate(prefill, mixed) == pytest.approx(max(rates))


def test_no_caps_fit_a_budget_that_is_too_small(h100: Deployment) -> None:
    does = composed(h100, 8 * 450.0, 4000, 100)._programme(4000.0, 100.0, 500_000)
    assert isinstance(does, Powered)
    assert does.at(200, 200) == (0.0, None)


def test_the_controller_follows_the_programme_within_the_budget(h100: Deployment) -> None:
    settings, budget_w = FusionSettings(power_budget_w=8 * 500.0, prior_tokens=100), 8 * 500.0
    bundle = build(settings, h100)
    assert bundle.router is not None
    assert bundle.power is not None
    router, power = bundle.router(), bundle.power()
    gpus = tuple(GpuView(index, Role.PREFILL if index < 4 else Role.DECODE, 300.0, 700.0) for index in range(8))
    assert sum(power.control(gpus, IDLE).caps_w.values()) <= budget_w
    core = power._core  # type: ignore[attr-defined]
    assert core is router._core  # type: ignore[attr-defined]
    core.caps = Caps(600.0, 400.0)
    caps_w = power.control(gpus, IDLE).caps_w
    assert [caps_w[0], caps_w[7]] == [600.0, 400.0]
    core.caps = Caps(700.0, 700.0)
    assert sum(power.control(gpus, IDLE).caps_w.values()) <= budget_w


def test_caps_for_other_roles_wait_for_the_flips(h100: Deployment) -> None:
    """The programme chooses caps for the roles that it asks for. They may exceed the budget before the flips."""
    bundle = build(FusionSettings(power_budget_w=8 * 500.0), h100)
    assert bundle.power is not None
    power = bundle.power()

    def caps_w(prefill: int) -> tuple[float, float]:
        roles = [Role.PREFILL] * prefill + [Role.DECODE] * (8 - prefill)
        gpus = tuple(GpuView(index, role, 300.0, 700.0) for index, role in enumerate(roles))
        plan = power.control(gpus, IDLE).caps_w
        assert sum(plan.values()) <= 8 * 500.0
        return plan[0], plan[7]

    power._core.caps = Caps(700.0, 400.0)  # type: ignore[attr-defined]
    assert caps_w(4) == (500.0, 500.0)
    assert caps_w(2) == (700.0, 400.0)


def test_a_budget_below_the_least_caps_is_a_mistake_of_the_operator(h100: Deployment) -> None:
    bundle = build(FusionSettings(power_budget_w=100.0), h100)
    assert bundle.power is not None
    with pytest.raises(ConfigError, match="raise power_budget_w"):
        bundle.power()
