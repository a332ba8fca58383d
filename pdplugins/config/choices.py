"""The plugins that a config picks, and their settings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pdplugins.config.base import Choice
from pdplugins.config.messages import checked
from pdplugins.config.model import Config
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import ConfigError
from pdplugins.registry import BUNDLE, Registration, Registry, default_registry


def settings_of(kind: str, choice: Choice, where: str = "config", registry: Registry | None = None) -> BaseModel:
    """Check the settings of one plugin against the model that it registered."""
    try:
        registration = _registration(kind, choice, registry)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return checked(registration.settings, choice.settings, f"{where}: {kind} {choice.name}")


def in_bundle(key: str, choice: Choice, registry: Registry | None = None) -> bool:
    """Return whether the choice at `key` is a bundle, or a part of one."""
    return _registration(key, choice, registry).kind == BUNDLE


def bundle_settings(config: Config, name: str, where: str = "config", registry: Registry | None = None) -> BaseModel:
    """Return the settings of the bundle `name`. Any key that picks the bundle or a part of it may give them.

    Raises ConfigError when two keys give different settings, because there is only one bundle.
    """
    picks = [
        (key, choice)
        for key, choice in config.chosen.items()
        if choice.name == name and in_bundle(key, choice, registry)
    ]
    given = [(key, settings_of(key, choice, where, registry)) for key, choice in picks if choice.settings]
    for key, settings in given[1:]:
        if settings != given[0][1]:
            raise ConfigError(
                f"{where}: {given[0][0]} and {key} give the bundle '{name}' different settings; give them once"
            )
    return given[0][1] if given else settings_of(*picks[0], where, registry)


def with_defaults(config: Config, key: str, choice: Choice, registry: Registry | None = None) -> Choice:
    """Return `choice`, the value of `key` in `config`, with all its settings."""
    if in_bundle(key, choice, registry):
        settings = bundle_settings(config, choice.name, registry=registry)
    else:
        settings = settings_of(key, choice, registry=registry)
    return Choice(name=choice.name, **settings.model_dump(mode="json"))


def resolved(config: Config) -> dict[str, Any]:
    """Return `config` as plain data with the defaults of the chosen plugins filled in."""
    data = config.model_dump(mode="json")
    for key, choice in config.chosen.items():
        data[key] = with_defaults(config, key, choice).model_dump(mode="json")
    return data


def _registration(kind: str, choice: Choice, registry: Registry | None) -> Registration:
    known = registry or default_registry()
    return known.policy(Kind(kind), choice.name) if kind in tuple(Kind) else known.get(kind, choice.name)
