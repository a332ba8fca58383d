"""Finds config files, reads and checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pdplugins.config.choices import bundle_settings, in_bundle, settings_of
from pdplugins.config.messages import checked
from pdplugins.config.model import CHOICES, Config
from pdplugins.errors import ConfigError, meant, one_line
from pdplugins.files import is_file, is_folder
from pdplugins.registry import Registry, default_registry
from pdplugins.resources import data_dir
from pdplugins.safe_yaml import read_yaml


def load(path: Path, registry: Registry | None = None) -> Config:
    """Read and check a config file. Raises ConfigError with one line for the first error."""
    try:
        data = read_yaml(path)
    except IsADirectoryError:
        known = ", ".join(shipped())
        raise ConfigError(
            f"{one_line(path)}: is a folder; name a config file in it, or a shipped config: {known}"
        ) from None
    except OSError as error:
        hint = meant(path.stem, shipped())
        raise ConfigError(
            f"{one_line(path)}: {error.strerror}; shipped configs are {', '.join(shipped())}{hint}"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return parse(data, str(path), registry)


def parse(data: Any, where: str = "config", registry: Registry | None = None) -> Config:
    """Check a config that is given as plain data. `where` names it in errors."""
    config = checked(Config, {} if data is None else data, where)
    for key, choice in config.chosen.items():
        settings_of(key, choice, where, registry)
    for name in {choice.name for key, choice in config.chosen.items() if in_bundle(key, choice, registry)}:
        bundle_settings(config, name, where, registry)
    return config


def find(name: str) -> Path:
    """Return the config file called `name`: a path, or the name of a shipped one, also beside a folder of that name.

    Any other folder is returned as it is: who reads it says what it is.
    """
    path = Path(name)
    if path.suffix in {".yaml", ".yml"} or _is_there(path) or (is_folder(path) and name not in shipped()):
        return path
    return data_dir("configs") / f"{name}.yaml"


def named(name: str) -> Config:
    """Return the config called `name`: a path, a shipped one, or a policy that an installed package has registered.

    Raises ConfigError.
    """
    if not is_file(find(name)):
        registry = default_registry()
        kinds = (kind for kind in CHOICES if name in registry.names(kind))
        if (kind := next(kinds, None)) is not None:
            return parse({str(kind): name}, name)
    return load(find(name))


def shipped() -> list[str]:
    """Return the names of the shipped configs."""
    return sorted(path.stem for path in data_dir("configs").glob("*.yaml"))


def _is_there(path: Path) -> bool:
    try:
        return path.exists() and not path.is_dir()
    except OSError:  # a name that is too long, or a folder that may not be read
        return False
