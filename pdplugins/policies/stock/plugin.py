"""Registers the planners ``static`` and ``threshold``, the stock routers, and the flow policy ``fcfs``."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.contracts.register import Register
from pdplugins.policies.stock import routers
from pdplugins.policies.stock.flow import FcfsSettings, FirstComeFirstServed
from pdplugins.policies.stock.static import StaticPlanner, StaticSettings
from pdplugins.policies.stock.threshold import ThresholdPlanner, ThresholdSettings


@hookimpl
def pd_register_planners(register: Register) -> None:
    """Add ``static``, which keeps the pools of its settings, and ``threshold``, which scales by utilisation."""
    register("static", StaticPlanner, StaticSettings)
    register("threshold", ThresholdPlanner, ThresholdSettings)


@hookimpl
def pd_register_routers(register: Register) -> None:
    """Add the routers that serving frameworks ship."""
    register("round-robin", routers.RoundRobin, routers.RouterSettings)
    register("random", routers.Random, routers.RouterSettings)
    register("power-of-two", routers.PowerOfTwo, routers.RouterSettings)
    register("least-loaded", routers.LeastLoaded, routers.RouterSettings)
    register("cache-aware", routers.CacheAware, routers.CacheAwareSettings)


@hookimpl
def pd_register_flows(register: Register) -> None:
    """Add ``fcfs``: first come first served."""
    register("fcfs", FirstComeFirstServed, FcfsSettings)
