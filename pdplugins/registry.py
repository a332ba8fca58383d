"""Loads plugins and finds what they registered. Any error of a plugin is reported at once, with the plugin's name.

`PDPLUGINS_DISABLE=name,name` skips plugins, for example a broken one.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import pluggy
from pydantic import BaseModel

from pdplugins import extras, hookspecs
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.register import NoSettings, Register
from pdplugins.errors import ConfigError, PluginError, meant, shown

if TYPE_CHECKING:
    import typer

GROUP = "pdplugins"
NAME = re.compile(r"[\w./+-]+")
BUNDLE = "bundle"
KINDS: dict[str, str] = {
    Kind.PLANNER: "pd_register_planners",
    Kind.ROUTER: "pd_register_routers",
    Kind.FLOW: "pd_register_flows",
    Kind.BATCH_SCHEDULER: "pd_register_batch_schedulers",
    Kind.POWER: "pd_register_power_controllers",
    BUNDLE: "pd_register_bundles",
    "power_backend": "pd_register_power_backends",
    "profile": "pd_register_profiles",
    "workload": "pd_register_workloads",
}
"""By kind of registration (the key in a config file): the hook that adds it. The five policies have a `Kind`."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One loaded plugin: a module or object, and where it came from."""

    name: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"plugin '{self.name}' of {self.distribution} {self.version}"


@dataclass(frozen=True, slots=True)
class Registration:
    """One thing that a plugin added."""

    kind: str
    name: str
    factory: Callable[..., Any]
    settings: type[BaseModel]
    plugin: Plugin


class Registry:
    """All plugins of one process and everything they registered."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self._plugins: dict[str, Plugin] = {}
        self._registrations: dict[tuple[str, str], Registration] = {}

    def load_entry_points(self) -> None:
        """Load every entry point of the group that `PDPLUGINS_DISABLE` does not name."""
        disabled = set(filter(None, os.environ.get("PDPLUGINS_DISABLE", "").split(",")))
        for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name):
            if entry.name not in disabled:
                self._load(entry)

    def _load(self, entry: EntryPoint) -> None:
        dist = entry.dist
        plugin = Plugin(entry.name, dist.name if dist else "?", dist.version if dist else "?")
        try:
            module = entry.load()
        except Exception as error:
            raise PluginError(
                f"{plugin} does not import ({type(error).__name__}: {error}); {_way_round(plugin)}"
            ) from error
        self.add(plugin, module)

    def add(self, plugin: Plugin, module: object) -> None:
        """Register `module` as `plugin`, and add what its hooks register."""
        if (other := self._plugins.get(plugin.name)) is not None:
            raise PluginError(f"{plugin} has the name of {other}; rename its entry point or {_way_round(plugin)}")
        self._plugins[plugin.name] = plugin
        try:
            self._manager.register(module, name=plugin.name)
            self._reject_mistyped_hooks(plugin, module)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            detail = str(error).replace("\n", " ")
            raise PluginError(
                f"{plugin} has a hook that does not fit ({detail}); the hooks are {', '.join(_hooks())}; "
                f"{_way_round(plugin)}"
            ) from error
        for kind, hook in KINDS.items():
            self._call(plugin, hook, register=self._registrar(kind, plugin))

    def _reject_mistyped_hooks(self, plugin: Plugin, module: object) -> None:
        """Refuse a function that is named like a hook but not marked as one, because it would be silently ignored."""
        found = {caller.name for caller in self._manager.get_hookcallers(module) or ()}
        for name in dir(module):
            if name.startswith("pd_") and name not in found:
                guess = difflib.get_close_matches(name, _hooks(), n=1)
                hint = "mark it with @pdplugins.hookimpl" if name in _hooks() else f"did you mean {guess or _hooks()}?"
                raise ValueError(f"{name}: {hint}")

    def _registrar(self, kind: str, plugin: Plugin) -> Register:
        def register(name: str, factory: Callable[..., Any], settings: type[BaseModel] = NoSettings) -> None:
            if (wrong := _unfit(name, factory, settings)) is not None:
                raise PluginError(f"{plugin} registers a {kind} with {wrong}; {_way_round(plugin)}")
            if (other := self._registrations.get((kind, name))) is not None:
                raise PluginError(
                    f"{plugin} registers the {kind} '{name}', which {other.plugin} already has; "
                    f"rename it or {_way_round(plugin)}"
                )
            self._registrations[kind, name] = Registration(kind, name, factory, settings, plugin)

        return register

    def _call(self, plugin: Plugin, hook: str, **arguments: object) -> None:
        others = [module for name, module in self._manager.list_name_plugin() if name != plugin.name]
        try:
            self._manager.subset_hook_caller(hook, others)(**arguments)
        except PluginError:
            raise
        except Exception as error:
            raise PluginError(
                f"{plugin} failed in {hook} ({type(error).__name__}: {error}); {_way_round(plugin)}"
            ) from error

    def add_commands(self, app: typer.Typer) -> None:
        """Let every plugin add its commands to `app`."""
        for plugin in self._plugins.values():
            self._call(plugin, "pd_register_commands", app=app)

    def get(self, kind: str, name: str) -> Registration:
        """Return the registration of `kind` called `name`. If there is none, raises ConfigError with valid names."""
        try:
            found = self._registrations[kind, name]
        except KeyError:
            bundles = self.names(BUNDLE) if kind in tuple(Kind) else []
            choices = ", ".join(self.names(kind)) or "(none)"
            more = f", or a bundle that has one: {', '.join(bundles)}" if bundles else ""
            hint = meant(name, [*self.names(kind), *bundles])
            raise ConfigError(f"{kind}: there is no {shown(name)}; choose from {choices}{more}{hint}") from None
        if (
            module := extras.PLUGINS.get((kind, name))
        ) is not None and found.plugin.distribution in extras.DISTRIBUTIONS:
            extras.need(f"{kind} {name}", module)
        return found

    def policy(self, kind: Kind, name: str) -> Registration:
        """Return the policy of `kind` called `name`, else the bundle of that name. Raises ConfigError without any."""
        bundle = self._registrations.get((BUNDLE, name))
        if bundle is None or (kind, name) in self._registrations:
            return self.get(kind, name)
        return bundle

    def names(self, kind: str) -> list[str]:
        """Return the names of everything registered as `kind`, sorted."""
        return sorted(name for k, name in self._registrations if k == kind)

    def registrations(self) -> list[Registration]:
        """Return everything that was registered, sorted by kind and name."""
        return sorted(self._registrations.values(), key=lambda r: (r.kind, r.name))

    def hooks(self, plugin: Plugin) -> list[str]:
        """Return the names of the hooks that `plugin` implements."""
        module = self._manager.get_plugin(plugin.name)
        return sorted(caller.name for caller in self._manager.get_hookcallers(module) or ())

    def plugins(self) -> Iterable[Plugin]:
        """Return the loaded plugins in load order."""
        return self._plugins.values()


def _unfit(name: object, factory: object, settings: object) -> str | None:
    """Return what is wrong with a registration; None where nothing is."""
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        return f"the name {shown(name)}, and names have letters, digits and ./_+-"
    if not callable(factory):
        return f"the factory {shown(factory)}, which cannot be called"
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        return f"the settings {shown(settings)}, which are no class of pydantic's BaseModel"
    return None


def _hooks() -> list[str]:
    return [name for name in dir(hookspecs) if name.startswith("pd_")]


def _way_round(plugin: Plugin) -> str:
    return f"fix or uninstall {plugin.distribution}, or set PDPLUGINS_DISABLE={plugin.name}"


@cache
def default_registry() -> Registry:
    """Return the registry of this process, with every installed plugin loaded."""
    registry = Registry()
    registry.load_entry_points()
    return registry
