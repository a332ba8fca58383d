"""Registers the planner ``static``."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.policies.stock.static import StaticPlanner, StaticSettings
from pdplugins.registry import Register


@hookimpl
def pd_register_planners(register: Register) -> None:
    """Add ``static``: the pools of its settings, always."""
    register("static", StaticPlanner, StaticSettings)
