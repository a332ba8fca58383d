"""Builds the policies that a config picks: by their own names, as parts of a bundle, or all parts of a bundle.

A host calls `build_policies` once in each process, so that the parts of a bundle share their core object there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pdplugins.config import Config, bundle_settings, settings_of
from pdplugins.contracts.batching import BatchScheduler
from pdplugins.contracts.bundle import Bundle
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.flow import Flow
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import Planner
from pdplugins.contracts.power import PowerController
from pdplugins.contracts.router import Router
from pdplugins.errors import ConfigError, PluginError
from pdplugins.registry import BUNDLE, Registry, default_registry


class Policies:
    """The policies of one process. Each is built when it is first asked for, and once; None: the config picks none.

    Every method raises ConfigError when the config names a part that its bundle does not have.
    """

    def __init__(self, config: Config, deployment: Deployment, registry: Registry) -> None:
        self._config = config
        self._deployment = deployment
        self._registry = registry
        self._bundles: dict[str, Bundle] = {}
        self._built: dict[Kind, Any] = {}

    def planner(self) -> Planner | None:
        """Return the planner."""
        planner: Planner | None = self._once(Kind.PLANNER)
        return planner

    def router(self) -> Router | None:
        """Return the router."""
        router: Router | None = self._once(Kind.ROUTER)
        return router

    def flow(self) -> Flow | None:
        """Return the flow policy."""
        flow: Flow | None = self._once(Kind.FLOW)
        return flow

    def batch_scheduler(self) -> Callable[[], BatchScheduler] | None:
        """Return what builds the batch scheduler of one engine."""
        return self._factory(Kind.BATCH_SCHEDULER)

    def power(self) -> PowerController | None:
        """Return the power controller."""
        power: PowerController | None = self._once(Kind.POWER)
        return power

    def _once(self, kind: Kind) -> Any:
        if kind not in self._built:
            factory = self._factory(kind)
            self._built[kind] = None if factory is None else factory()
        return self._built[kind]

    def _factory(self, kind: Kind) -> Callable[[], Any] | None:
        """Return what builds the policy of `kind`; None when the config picks none."""
        choice = self._config.choice(kind)
        if choice is None:
            whole = self._config.bundle
            return None if whole is None else _part(self._bundle(whole.name), kind)
        registration = self._registry.policy(kind, choice.name)
        if registration.kind != BUNDLE:
            settings = settings_of(kind, choice, registry=self._registry)
            return lambda: registration.factory(settings, self._deployment)
        bundle = self._bundle(choice.name)
        if (part := _part(bundle, kind)) is None:
            parts = ", ".join(other for other in Kind if _part(bundle, other) is not None)
            raise ConfigError(f"{kind}: the bundle '{choice.name}' has none; it has {parts or 'no part at all'}")
        return part

    def _bundle(self, name: str) -> Bundle:
        """Return the bundle called `name`: the same object for all its parts."""
        if name not in self._bundles:
            registration = self._registry.get(BUNDLE, name)
            settings = bundle_settings(self._config, name, registry=self._registry)
            bundle = registration.factory(settings, self._deployment)
            if not isinstance(bundle, Bundle):
                raise PluginError(
                    f"{registration.plugin}: the factory of bundle '{name}' made a {type(bundle).__name__}; "
                    "let it return a pdplugins.types.Bundle"
                )
            self._bundles[name] = bundle
        return self._bundles[name]


def build_policies(config: Config, deployment: Deployment, registry: Registry | None = None) -> Policies:
    """Return the policies that `config` picks; they are built when they are asked for."""
    return Policies(config, deployment, registry or default_registry())


def _part(bundle: Bundle, kind: Kind) -> Callable[[], Any] | None:
    part: Callable[[], Any] | None = getattr(bundle, kind)
    return part
