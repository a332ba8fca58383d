"""Registers the router and the batch scheduler ``arrow``."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.contracts.register import Register
from pdplugins.policies.arrow.batching import ArrowBatchScheduler
from pdplugins.policies.arrow.config import ArrowBatchSettings, ArrowSettings
from pdplugins.policies.arrow.router import ArrowRouter


@hookimpl
def pd_register_routers(register: Register) -> None:
    """Add ``arrow``: SLO-aware placement over four elastic pools."""
    register("arrow", ArrowRouter, ArrowSettings)


@hookimpl
def pd_register_batch_schedulers(register: Register) -> None:
    """Add ``arrow``: decodes first, then chunks of prefill up to the size of a step (Section 5.4)."""
    register("arrow", ArrowBatchScheduler, ArrowBatchSettings)
