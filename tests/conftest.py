"""Fixtures that every test may use."""

from __future__ import annotations

import importlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

import pdplugins
from pdplugins import config as configs
from pdplugins import testing
from pdplugins.config import Config
from pdplugins.registry import Plugin, Registry, default_registry
from pdplugins.testing import ScriptedPlanner, ScriptSettings, flat_model, planner_view
from pdplugins.types import Deployment, PlannerView, Register

# The same examples in every run, so that a change is judged by what it changed; `make fuzz` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("fuzz", derandomize=False, deadline=None)
# Half of those examples, for `make check`.
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=25)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


COSTS = {"dynamo": 5, "slow": 20, "moderate": 2}
"""How long a test with such a mark takes, in seconds and roughly."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pure", action="store_true", help="run the simulator's kernel as plain Python, compiled or not")


def pytest_configure(config: pytest.Config) -> None:
    """With ``--pure``, make this process and those that tests start import the sources of the kernel."""
    if config.getoption("pure"):
        folders = [str(Path(__file__).parent / "plain"), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
        importlib.import_module("tests.plain.sitecustomize")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where pytest-xdist runs tests at once, keep those of a file together, and those that run Dynamo in two groups.

    The longest groups begin first, so that no process is left alone with one of them at the end.
    """
    if config.pluginmanager.hasplugin("xdist"):
        length: Counter[str] = Counter()
        for item in items:
            group = dynamo_group(item) if item.get_closest_marker("dynamo") else str(item.path)
            item.add_marker(pytest.mark.xdist_group(group))
            length[group] += sum(cost for mark, cost in COSTS.items() if item.get_closest_marker(mark))
        items.sort(key=lambda item: -length[item.get_closest_marker("xdist_group").args[0]])  # type: ignore[union-attr]


def dynamo_group(item: pytest.Item) -> str:
    """Live stacks mostly wait for each other, so that their tests may run beside those that compute."""
    return "dynamo live" if item.path.parent.name in {"local", "router"} else "dynamo"


@pytest.fixture(autouse=True)
def plain_logging() -> Iterator[None]:
    """Tests see the logs that they look for, whatever Dynamo made of logging when it was imported."""
    logging.root.setLevel(logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "pdplugins" and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
    yield
    logging.root.setLevel(logging.WARNING)


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


@pdplugins.hookimpl
def pd_register_planners(register: Register) -> None:
    register("scripted", ScriptedPlanner, ScriptSettings)


@pdplugins.hookimpl
def pd_register_profiles(register: Register) -> None:
    register("flat", lambda settings: flat_model())


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
    return testing.deployment(decode_tp=2)


@pytest.fixture
def see() -> Callable[..., PlannerView]:
    """Make a view of `rate` requests/s at `now_s`."""

    return planner_view
