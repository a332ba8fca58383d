"""The power controller: RAPID's, started anew where the programme asks for other caps."""

from __future__ import annotations

from pdplugins.contracts.planner import PlannerView
from pdplugins.contracts.power import GpuView, PowerPlan
from pdplugins.errors import ConfigError
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.rapid.config import RapidSettings
from pdplugins.policies.rapid.controller import Caps, RapidController


class FusionPower:
    """Gives the GPUs the caps of the programme, and lets RAPID move watts by what is missed until there are others."""

    def __init__(self, core: Core, budget_w: float) -> None:
        if (table := core.deployment.perf.power()) is None:
            raise ConfigError("bundle fusion: the profile does not say what power caps do; leave power_budget_w out")
        least_w, most_w = table.cap_w[0], table.cap_w[-1]
        if least_w * core.deployment.gpu_budget > budget_w:
            raise ConfigError(
                f"bundle fusion: {core.deployment.gpu_budget} GPUs of at least {least_w:g} W exceed power_budget_w "
                f"{budget_w:g}; lower gpu_budget, or raise power_budget_w"
            )
        settings = RapidSettings(move="power", budget_w=budget_w, min_w=least_w, max_w=most_w, max_decode_w=most_w)
        self._rapid = RapidController(settings, core.deployment)
        self._core = core
        self._budget_w = budget_w
        self._followed: Caps | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `control`."""
        return self._rapid.interval_s

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        """Return the caps wanted from now on."""
        caps = self._core.caps
        if caps is not None and caps != self._followed and self._fits(caps, gpus):
            self._followed = caps
            self._rapid.start_from(caps)
        return self._rapid.control(gpus, view)

    def _fits(self, caps: Caps, gpus: tuple[GpuView, ...]) -> bool:
        """Tell whether the GPUs may have these caps now. They are meant for the roles after the flips to come."""
        return sum(caps.of(gpu.role) for gpu in gpus) <= self._budget_w
