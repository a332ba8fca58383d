"""A policy bundle: the parts of one policy, which share a core object where they run in one process.

``pd_register_bundles`` registers ``factory(settings, deployment) -> Bundle``. The host builds the bundle once in each
process and takes the parts that it has a seam for; parts in other processes hear of each other by
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
    """What builds each part; None where the policy has none. Each is called at most once, but `batch_scheduler`."""

    planner: Callable[[], Planner] | None = None
    router: Callable[[], Router] | None = None
    flow: Callable[[], Flow] | None = None
    batch_scheduler: Callable[[], BatchScheduler] | None = None
    """Is called once for each engine in the process."""
    power: Callable[[], PowerController] | None = None
