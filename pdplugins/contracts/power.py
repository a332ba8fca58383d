"""Power controllers decide the power caps and roles of the GPUs of one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pdplugins.contracts.planner import PlannerView
from pdplugins.contracts.workers import Role


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU of the node."""

    index: int
    role: Role
    draw_w: float
    cap_w: float


@dataclass(frozen=True, slots=True)
class Flip:
    """A wish that one GPU changes its role after it has drained."""

    gpu: int
    role: Role


@dataclass(frozen=True, slots=True)
class PowerPlan:
    """The caps that the GPUs should have, and the roles that should change."""

    caps_w: Mapping[int, float]
    flips: tuple[Flip, ...] = ()
    reason: str = ""


class PowerController(Protocol):
    """Moves watts and roles between the GPUs of one node, within the node's budget."""

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `control`."""
        ...

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        """Return the caps and flips wanted from now on."""
        ...


class PowerBackend(Protocol):
    """The GPUs of one node. Only a backend reads watts and writes caps."""

    def read(self) -> tuple[tuple[float, float], ...]:
        """Return (draw, cap) in watts of every GPU, in index order."""
        ...

    def limits_w(self, gpu: int) -> tuple[float, float]:
        """Return the smallest and the largest cap that the device accepts."""
        ...

    def set_cap_w(self, gpu: int, cap_w: float) -> None:
        """Set one cap. Raises OSError when the device refuses."""
        ...
