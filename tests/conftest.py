"""Fixtures that every test may use."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from hypothesis import settings

from pdplugins.registry import Plugin, Registry

# Tests look inside the simulator's engine, which compiled code does not allow; one test compares the compiled engine.
os.environ["PDPLUGINS_SIM_PURE"] = "1"

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
