"""Every registered policy with its default settings, whether it is registered alone or is a part of a bundle."""

from __future__ import annotations

from typing import Any

from pdplugins.contracts.bundle import Bundle
from pdplugins.registry import BUNDLE, default_registry
from pdplugins.testing import deployment
from pdplugins.types import Deployment

REGISTRY = default_registry()


def names(kind: str) -> list[str]:
    """Return the names of all policies of `kind`."""
    bundled = [name for name in REGISTRY.names(BUNDLE) if getattr(_bundle(name, deployment()), kind) is not None]
    return sorted({*REGISTRY.names(kind), *bundled})


def make(kind: str, name: str, made_for: Deployment) -> Any:
    """Return a new policy; one of a bundle has a core of its own."""
    if name in REGISTRY.names(kind):
        registration = REGISTRY.get(kind, name)
        return registration.factory(registration.settings(), made_for)
    return getattr(_bundle(name, made_for), kind)()


def _bundle(name: str, made_for: Deployment) -> Bundle:
    registration = REGISTRY.get(BUNDLE, name)
    made = registration.factory(registration.settings(), made_for)
    assert isinstance(made, Bundle)
    return made
