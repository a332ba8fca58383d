"""Registers the router ``arrow``."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.policies.arrow.config import ArrowSettings
from pdplugins.policies.arrow.router import ArrowRouter
from pdplugins.registry import Register


@hookimpl
def pd_register_routers(register: Register) -> None:
    """Add ``arrow``: SLO-aware placement over four elastic pools."""
    register("arrow", ArrowRouter, ArrowSettings)
