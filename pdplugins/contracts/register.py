"""The callback with which a plugin registers something, and the empty settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pydantic import BaseModel


class NoSettings(BaseModel, extra="forbid"):
    """The settings of a plugin without settings."""


class Register(Protocol):
    """The callback that every ``pd_register_…`` hook receives, except ``pd_register_commands``."""

    def __call__(self, name: str, factory: Callable[..., Any], settings: type[BaseModel] = NoSettings) -> None:
        """Add `factory` under the name that users write in a config file."""
        ...
