"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from pdplugins.registry import Plugin, Registry


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
