"""Registers the bundle ``fusion``."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.contracts.bundle import Bundle
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.register import Register
from pdplugins.policies.fusion.batching import FusionBatchScheduler
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.flow import FusionFlow
from pdplugins.policies.fusion.planner import FusionPlanner
from pdplugins.policies.fusion.power import FusionPower
from pdplugins.policies.fusion.router import FusionRouter


def build(settings: FusionSettings, deployment: Deployment) -> Bundle:
    """Return the parts of fusion around one core."""
    core, budget_w = Core(settings, deployment), settings.power_budget_w
    return Bundle(
        planner=(lambda: FusionPlanner(core)) if settings.scale else None,
        router=lambda: FusionRouter(core),
        flow=lambda: FusionFlow(core),
        batch_scheduler=lambda: FusionBatchScheduler(core),
        power=None if budget_w is None else lambda: FusionPower(core, budget_w),
    )


@hookimpl
def pd_register_bundles(register: Register) -> None:
    """Add ``fusion``: deadlines, composition and placement in one policy."""
    register("fusion", build, FusionSettings)
