"""Registers ``dopd``: planner, router and batch scheduler."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.contracts.register import Register
from pdplugins.policies.dopd.batching import DopdBatching
from pdplugins.policies.dopd.config import DopdBatchSettings, DopdRouterSettings, DopdSettings
from pdplugins.policies.dopd.planner import DopdPlanner
from pdplugins.policies.dopd.router import DopdRouter


@hookimpl
def pd_register_planners(register: Register) -> None:
    """Add ``dopd``: forecast the load, keep the optimal P/D ratio."""
    register("dopd", DopdPlanner, DopdSettings)


@hookimpl
def pd_register_routers(register: Register) -> None:
    """Add ``dopd``: the least cost of cache and load; ultra-short prompts stay on the decode worker."""
    register("dopd", DopdRouter, DopdRouterSettings)


@hookimpl
def pd_register_batch_schedulers(register: Register) -> None:
    """Add ``dopd``: Algorithm 1, length-aware batching of prompts."""
    register("dopd", DopdBatching, DopdBatchSettings)
