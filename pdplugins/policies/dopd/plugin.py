"""Registers the planner ``dopd``."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.policies.dopd.config import DopdSettings
from pdplugins.policies.dopd.planner import DopdPlanner
from pdplugins.registry import Register


@hookimpl
def pd_register_planners(register: Register) -> None:
    """Add ``dopd``: forecast the load, keep the optimal P/D ratio."""
    register("dopd", DopdPlanner, DopdSettings)
