"""Registers the router and the batch scheduler ``dynaserve``."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.contracts.register import Register
from pdplugins.policies.dynaserve.batching import DynaServeBatchScheduler
from pdplugins.policies.dynaserve.config import DynaServeBatchSettings, DynaServeRouterSettings
from pdplugins.policies.dynaserve.router import DynaServeRouter


@hookimpl
def pd_register_routers(register: Register) -> None:
    """Add ``dynaserve``: split each request so that both of its workers finish together (Algorithm 1)."""
    register("dynaserve", DynaServeRouter, DynaServeRouterSettings)


@hookimpl
def pd_register_batch_schedulers(register: Register) -> None:
    """Add ``dynaserve``: as much prefill in each step as the TBT SLO allows (Algorithm 2)."""
    register("dynaserve", DynaServeBatchScheduler, DynaServeBatchSettings)
