"""Registers the power controller ``rapid``."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.contracts.register import Register
from pdplugins.policies.rapid.config import RapidSettings
from pdplugins.policies.rapid.controller import RapidController


@hookimpl
def pd_register_power_controllers(register: Register) -> None:
    """Add ``rapid``: move watts, then GPUs, to the phase that misses its SLO."""
    register("rapid", RapidController, RapidSettings)
