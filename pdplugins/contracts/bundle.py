"""A policy bundle: the parts of one policy. Parts that run in the same process share a core object.

``pd_register_bundles`` registers ``factory(settings, deployment) -> Bundle``. The host builds the bundle once in each
process, and takes the parts that it can use there. Parts in different processes communicate through
`pdplugins.contracts.signals`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pdplugins.contracts.batching import BatchScheduler
from pdplugins.contracts.flow import Flow
from pdplugins.contracts.planner import Planner
from pdplugins.contracts.power import PowerController
from pdplugins.contracts.router import Router


@dataclass(frozen=True, slots=True)
class Bundle:
    """The builder of each part; None where the policy lacks the part. All but `batch_scheduler` run at most once."""

    planner: Callable[[], Planner] | None = None
    router: Callable[[], Router] | None = None
    flow: Callable[[], Flow] | None = None
    batch_scheduler: Callable[[], BatchScheduler] | None = None
    """Called once for each engine in the process."""
    power: Callable[[], PowerController] | None = None
