"""Plugins: every hook does what its documentation says, and whatever is wrong with a plugin is loud."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from pdplugins import hookimpl, hookspecs
from pdplugins.errors import ConfigError, PluginError
from pdplugins.registry import KINDS, NoSettings, Plugin, Registry, default_registry

HOOKS = sorted(name for name in dir(hookspecs) if name.startswith("pd_"))
Add = Callable[..., Plugin]


class Settings(BaseModel, extra="forbid"):
    knob: int = 1


def thing(settings: Settings) -> object:
    return settings


@hookimpl
def register_thing(register):
    register("thing", thing, Settings)


def registering(hook: str) -> dict[str, object]:
    """One hook implementation that registers `thing`, under the hook's own name."""
    namespace: dict[str, object] = {"hookimpl": hookimpl, "thing": thing, "Settings": Settings}
    exec(f"@hookimpl\ndef {hook}(register):\n    register('thing', thing, Settings)", namespace)  # noqa: S102
    return {hook: namespace[hook]}


def check_kind(kind: str, registry: Registry, add_plugin: Add) -> None:
    plugin = add_plugin("p", **registering(KINDS[kind]))
    registration = registry.get(kind, "thing")
    assert (registration.factory, registration.settings, registration.plugin) == (thing, Settings, plugin)
    assert registry.names(kind) == ["thing"]
    assert registry.hooks(plugin) == [KINDS[kind]]


def test_hook_pd_register_planners(registry: Registry, add_plugin: Add) -> None:
    check_kind("planner", registry, add_plugin)


def test_hook_pd_register_routers(registry: Registry, add_plugin: Add) -> None:
    check_kind("router", registry, add_plugin)


def test_hook_pd_register_flows(registry: Registry, add_plugin: Add) -> None:
    check_kind("flow", registry, add_plugin)


def test_hook_pd_register_bundles(registry: Registry, add_plugin: Add) -> None:
    check_kind("bundle", registry, add_plugin)


def test_hook_pd_register_batch_schedulers(registry: Registry, add_plugin: Add) -> None:
    check_kind("batch_scheduler", registry, add_plugin)


def test_hook_pd_register_power_controllers(registry: Registry, add_plugin: Add) -> None:
    check_kind("power", registry, add_plugin)


def test_hook_pd_register_power_backends(registry: Registry, add_plugin: Add) -> None:
    check_kind("power_backend", registry, add_plugin)


def test_hook_pd_register_profiles(registry: Registry, add_plugin: Add) -> None:
    check_kind("profile", registry, add_plugin)


def test_hook_pd_register_workloads(registry: Registry, add_plugin: Add) -> None:
    check_kind("workload", registry, add_plugin)


def test_hook_pd_register_commands(registry: Registry, add_plugin: Add) -> None:
    @hookimpl
    def pd_register_commands(app: typer.Typer) -> None:
        app.command("hello")(lambda: None)

    add_plugin("p", pd_register_commands=pd_register_commands)
    app = typer.Typer()
    registry.add_commands(app)
    assert [command.name for command in app.registered_commands] == ["hello"]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_tested(hook: str) -> None:
    assert f"test_hook_{hook}" in globals()


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented(hook: str) -> None:
    spec = getattr(hookspecs, hook)
    arguments = ", ".join(inspect.signature(spec).parameters)
    assert f"## `{hook}({arguments})`" in (Path(__file__).parents[1] / "docs/hooks.md").read_text()
    assert ":param" in spec.__doc__


def test_a_mistyped_hook_is_refused_with_the_plugin_and_the_nearest_hook(add_plugin: Add) -> None:
    @hookimpl
    def pd_register_planer(register):
        raise AssertionError

    with pytest.raises(PluginError, match=r"plugin 'p' of dist-p 1\.0 .*pd_register_planer.*PDPLUGINS_DISABLE=p"):
        add_plugin("p", pd_register_planer=pd_register_planer)


def test_a_hook_without_its_mark_is_refused(add_plugin: Add) -> None:
    def pd_register_planners(register):
        raise AssertionError

    with pytest.raises(PluginError, match="mark it with @pdplugins"):
        add_plugin("p", pd_register_planners=pd_register_planners)


def test_a_hook_with_a_wrong_argument_is_refused(add_plugin: Add) -> None:
    @hookimpl
    def pd_register_planners(registrar):
        raise AssertionError

    with pytest.raises(PluginError, match="registrar"):
        add_plugin("p", pd_register_planners=pd_register_planners)


def test_two_plugins_of_one_name_are_refused(add_plugin: Add) -> None:
    add_plugin("p")
    with pytest.raises(PluginError, match=r"plugin 'p' of dist-p 1\.0 has the name of plugin 'p' of dist-p"):
        add_plugin("p")


@pytest.mark.parametrize(
    ("name", "factory", "settings", "said"),
    [
        (None, thing, Settings, "the name None"),
        (7, thing, Settings, "the name 7"),
        ("[/red]x", thing, Settings, "the name '\\[/red]x'"),
        ("", thing, Settings, "the name ''"),
        ("x", "thing", Settings, "the factory 'thing', which cannot be called"),
        ("x", thing, dict, "the settings <class 'dict'>, which are no class of pydantic's BaseModel"),
        ("x", thing, Settings(), "the settings Settings"),
    ],
)
def test_what_is_no_registration_is_refused_with_its_plugin(
    add_plugin: Add, name: Any, factory: Any, settings: Any, said: str
) -> None:
    @hookimpl
    def pd_register_planners(register):
        register(name, factory, settings)

    with pytest.raises(PluginError, match=f"plugin 'p' of dist-p .* registers a planner with {said}"):
        add_plugin("p", pd_register_planners=pd_register_planners)


def test_two_things_of_one_name_are_refused_with_both_owners(add_plugin: Add) -> None:
    add_plugin("first", **registering("pd_register_planners"))
    with pytest.raises(PluginError, match=r"plugin 'second' .* the planner 'thing', which plugin 'first'"):
        add_plugin("second", **registering("pd_register_planners"))


def test_one_name_may_stand_for_things_of_different_kinds(registry: Registry, add_plugin: Add) -> None:
    add_plugin("first", **registering("pd_register_planners"))
    add_plugin("second", **registering("pd_register_routers"))
    assert registry.get("planner", "thing").plugin != registry.get("router", "thing").plugin


def test_a_hook_that_raises_is_named(add_plugin: Add) -> None:
    @hookimpl
    def pd_register_planners(register):
        raise RuntimeError("boom")

    with pytest.raises(PluginError, match=r"plugin 'p' of dist-p 1\.0 failed in pd_register_planners .*boom"):
        add_plugin("p", pd_register_planners=pd_register_planners)


def test_a_plugin_that_does_not_import_is_named_and_can_be_disabled(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("broken", "no_such_module", "pdplugins")
    monkeypatch.setattr("pdplugins.registry.entry_points", lambda group: [broken])
    with pytest.raises(PluginError, match=r"plugin 'broken' .* does not import .*PDPLUGINS_DISABLE=broken"):
        registry.load_entry_points()
    monkeypatch.setenv("PDPLUGINS_DISABLE", "broken")
    registry.load_entry_points()
    assert list(registry.plugins()) == []


def test_an_unknown_name_is_answered_with_the_choices(registry: Registry, add_plugin: Add) -> None:
    add_plugin("p", **registering("pd_register_planners"))
    with pytest.raises(ConfigError, match="planner: there is no 'thingy'; choose from thing"):
        registry.get("planner", "thingy")


def test_settings_default_to_none_at_all(registry: Registry, add_plugin: Add) -> None:
    @hookimpl
    def pd_register_planners(register):
        register("bare", thing)

    add_plugin("p", pd_register_planners=pd_register_planners)
    assert registry.get("planner", "bare").settings is NoSettings


def test_built_ins_come_through_the_entry_points_like_any_other_plugin() -> None:
    registry = default_registry()
    assert registry.get("planner", "dopd").plugin.distribution == "pdplugins"
    assert {"planner", "profile", "workload"} <= {r.kind for r in registry.registrations()}
