"""Fixtures that every test may use."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from pydantic import BaseModel

import pdplugins
from pdplugins import config as configs
from pdplugins.config import Config
from pdplugins.registry import Plugin, Registry, default_registry
from pdplugins.types import Deployment, PlainPerf, PlannerView, Pool, Register, ScalePlan, Slo, Traffic

# The same examples in every run, so that a change is judged by what it changed; `make fuzz` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("fuzz", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(autouse=True)
def root_level() -> Iterator[None]:
    """Tests see the logs that they look for, whatever Dynamo has made of the root logger meanwhile."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


@pytest.fixture
def registry() -> Registry:
    """An empty registry, so that a test sees only the plugins it adds."""
    return Registry()


@pytest.fixture
def add_plugin(registry: Registry) -> Callable[..., Plugin]:
    """Add a plugin made of the given functions to `registry`."""

    def add(name: str, **functions: object) -> Plugin:
        module = ModuleType(name)
        for key, function in functions.items():
            setattr(module, key, function)
        plugin = Plugin(name, f"dist-{name}", "1.0")
        registry.add(plugin, module)
        return plugin

    return add


# --- a planner that tests steer from a config, and the deployment that it plans for ----------------------------------


class FlatModel(PlainPerf):
    """A performance model with the same answer for everything."""

    def prefill_s(self, tokens: float, tp: int) -> float:
        return 0.1

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        return 0.01

    def transfer_s(self, tokens: float) -> float:
        return 0.0

    def kv_capacity_tokens(self, tp: int) -> int:
        return 100_000

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        return 1e6

    def tp_sizes(self, role: object) -> tuple[int, ...]:
        return (1, 2)


class ScriptSettings(BaseModel, extra="forbid"):
    per_worker: float = 10.0
    interval_s: float = 5.0
    fail_at: int = -1


@dataclass
class ScriptedPlanner:
    """One prefill worker per `per_worker` requests/s, half as many for decode; raises at call `fail_at`."""

    settings: ScriptSettings
    deployment: Deployment
    calls: list[PlannerView] = field(default_factory=list)

    @property
    def interval_s(self) -> float:
        return self.settings.interval_s

    def plan(self, view: PlannerView) -> ScalePlan:
        self.calls.append(view)
        if len(self.calls) == self.settings.fail_at:
            raise RuntimeError("the forecaster\nfell over")
        rate = view.traffic.rate if view.traffic else 0.0
        prefill = 1 + int(rate / self.settings.per_worker)
        return ScalePlan(prefill, 1 + prefill // 2, f"{rate:.1f} requests/s", {"forecast_rate": rate})


@pdplugins.hookimpl
def pd_register_planners(register: Register) -> None:
    register("scripted", ScriptedPlanner, ScriptSettings)


@pdplugins.hookimpl
def pd_register_profiles(register: Register) -> None:
    register("flat", lambda settings: FlatModel())


def _module() -> ModuleType:
    module = ModuleType("scripted")
    module.pd_register_planners = pd_register_planners  # type: ignore[attr-defined]
    module.pd_register_profiles = pd_register_profiles  # type: ignore[attr-defined]
    return module


@pytest.fixture
def scripted() -> Iterator[Registry]:
    """The process's own registry, with the scripted planner and the flat profile added."""
    default_registry.cache_clear()
    registry = default_registry()
    registry.add(Plugin("scripted", "tests", "0"), _module())
    yield registry
    default_registry.cache_clear()


CONFIG: dict[str, Any] = {
    "planner": {"name": "scripted", "interval_s": 5},
    "deployment": {"profile": "flat", "gpu_budget": 16},
}


@pytest.fixture
def config_data(scripted: Registry) -> dict[str, Any]:
    """A config, as plain data, that picks the scripted planner."""
    return deepcopy(CONFIG)


@pytest.fixture
def config(config_data: dict[str, Any]) -> Config:
    """The same config, checked."""
    return configs.parse(config_data)


@pytest.fixture
def deployment() -> Deployment:
    """Eight GPUs, prefill on one and decode on two."""
    return Deployment(Slo(2.0, 0.08), FlatModel(), 8, prefill_tp=1, decode_tp=2, startup_s=30.0, max_batch=256)


@pytest.fixture
def see() -> Callable[..., PlannerView]:
    """Make a view of `rate` requests/s at `now_s`."""

    def view(now_s: float, rate: float | None = 1.0) -> PlannerView:
        traffic = None if rate is None else Traffic(5.0, rate * 5.0, 1000.0, 100.0)
        return PlannerView(now_s, traffic, Pool(1), Pool(1))

    return view
