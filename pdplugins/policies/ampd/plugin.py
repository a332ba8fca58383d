"""Registers the router and the batch scheduler ``ampd``."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.contracts.register import Register
from pdplugins.policies.ampd.config import AmpdRouterSettings, AmpdSchedulerSettings
from pdplugins.policies.ampd.router import AmpdRouter
from pdplugins.policies.ampd.scheduler import AmpdScheduler


@hookimpl
def pd_register_routers(register: Register) -> None:
    """Add ``ampd``: session binding and adaptive routing."""
    register("ampd", AmpdRouter, AmpdRouterSettings)


@hookimpl
def pd_register_batch_schedulers(register: Register) -> None:
    """Add ``ampd``: TTFT-aware prefill reordering."""
    register("ampd", AmpdScheduler, AmpdSchedulerSettings)
