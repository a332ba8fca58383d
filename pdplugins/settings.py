"""Settings on one line, ``key.inner=value``: the option ``--set`` of commands, and settings after a workload's name.

A dot leads into a section, and the value is YAML. Each command documents which section its keys start from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pdplugins.errors import ConfigError, one_line, shown
from pdplugins.safe_yaml import parse_yaml

_PAIRS = {"[": "]", "{": "}"}


class Setting(NamedTuple):
    """One value, and the keys that lead to it."""

    path: tuple[str, ...]
    value: Any


def parse_setting(text: str, where: str = "--set") -> Setting:
    """Read ``key.inner=value``. Raises ConfigError.

    :param where: the beginning of the error: the option, or the owner of the setting.
    """
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise ConfigError(f"{where} {text}: write it as key=value, with a dot for a key in a section: slo.ttft_s=2")
    try:
        return Setting(path, parse_yaml(value))
    except ConfigError:
        raise ConfigError(f"{where} {one_line(text)}: the value {shown(value)} is not YAML; quote a text") from None


def split_settings(text: str) -> Iterator[str]:
    """Yield the settings in ``a=1,b.c=[1,2]``. Commas within brackets, braces or quotes do not separate them."""
    ends: list[str] = []
    start = 0
    for place, character in enumerate(text):
        if ends and character == ends[-1]:
            ends.pop()
        elif ends and ends[-1] in {"'", '"'}:
            continue
        elif character in {"'", '"'}:
            ends.append(character)
        elif character in _PAIRS:
            ends.append(_PAIRS[character])
        elif character == "," and not ends:
            yield text[start:place]
            start = place + 1
    if text[start:].strip():
        yield text[start:]


def put(data: dict[str, Any], setting: Setting, where: str = "--set") -> None:
    """Set `setting` in `data`, and create its sections. Raises ConfigError if one of the sections is a value."""
    *sections, last = setting.path
    for key in sections:
        inner = data.get(key)
        if inner is None:
            inner = data[key] = {}
        if not isinstance(inner, Mapping):
            raise ConfigError(
                f"{where} {'.'.join(setting.path)}: {key} is a value, not a section; see pdplugins config"
            )
        data = inner  # type: ignore[assignment]
    data[last] = setting.value
