"""What a plugin is handed to register something, and the settings of what has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pydantic import BaseModel


class NoSettings(BaseModel, extra="forbid"):
    """The settings of something that has none."""


class Register(Protocol):
    """The callback that every ``pd_register_…`` hook but the commands one receives."""

    def __call__(self, name: str, factory: Callable[..., Any], settings: type[BaseModel] = NoSettings) -> None:
        """Add `factory` under the name that users write in a config file."""
        ...
