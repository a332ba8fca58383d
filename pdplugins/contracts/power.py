"""Power controllers decide the power caps and roles of the GPUs of one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pdplugins.contracts.planner import PlannerView
from pdplugins.contracts.workers import Role
from pdplugins.errors import PdpluginsError


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU of the node."""

    index: int
    """Its number in this node, which plans name it by."""
    role: Role
    """The role of the worker that it belongs to."""
    draw_w: float
    """Watts that it draws now; NaN where the host does not know."""
    cap_w: float
    """Watts that it may draw."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A wish that one GPU changes its role after it has drained."""

    gpu: int
    """Its `GpuView.index`."""
    role: Role
    """The role that it should have."""


@dataclass(frozen=True, slots=True)
class PowerPlan:
    """The caps that the GPUs should have, and the roles that should change."""

    caps_w: Mapping[int, float]
    """Watts by `GpuView.index`. A GPU that is left out keeps its cap."""
    flips: tuple[Flip, ...] = ()
    reason: str = ""


class PowerController(Protocol):
    """Moves watts and roles between the GPUs of one node, within the node's budget.

    Where it raises, or its caps sum to more than the budget, all caps and roles stay as they are.
    """

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `control`."""
        ...

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        """Return the caps and flips wanted from now on."""
        ...


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as its driver describes it."""

    uuid: str
    """Its name everywhere: indices change when a GPU is lost or the machine restarts."""
    name: str
    min_w: float
    """The smallest cap that the device accepts."""
    max_w: float
    """The largest cap that the device accepts."""
    default_w: float | None = None
    """Its cap from the factory; None where the driver does not say."""
    warnings: tuple[str, ...] = ()
    """What an operator should know before caps are set here, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one device says of its power now."""

    draw_w: float
    """Watts that it draws."""
    cap_w: float
    """Watts that it may draw."""
    energy_j: float | None = None
    """Joules since the driver was loaded; None where the device does not count them."""


class DeviceFault(StrEnum):
    """What can be wrong with one device."""

    PERMISSION = "permission"
    NOT_SUPPORTED = "not_supported"
    LOST = "lost"
    """It does not answer: unplugged, or fallen off the bus."""
    RESET = "reset"
    """It needs a reset, or is being reset."""
    REFUSED = "refused"
    """It accepts the call and not the cap."""
    TIMEOUT = "timeout"
    """A call did not come back in time; what became of it is not known."""
    DRIVER = "driver"
    """Any other error of the driver."""


FIXES = {
    DeviceFault.PERMISSION: "only root may set caps: start as root, or with CAP_SYS_ADMIN",
    DeviceFault.NOT_SUPPORTED: "this GPU or virtual machine has no such power setting; leave it out of node.gpus",
    DeviceFault.LOST: "see dmesg; reseat or replace the GPU and restart the node, or leave it out of node.gpus",
    DeviceFault.RESET: "drain it and reset it with nvidia-smi --gpu-reset or amd-smi reset --gpureset",
    DeviceFault.REFUSED: "ask for a cap within its limits: pdplugins power status shows them",
    DeviceFault.TIMEOUT: "see dmesg for a hung driver; the device keeps its share of the budget until it answers",
    DeviceFault.DRIVER: "see dmesg and the driver's own tool, nvidia-smi or amd-smi",
}


class DeviceError(PdpluginsError):
    """One device did not do what it was asked. The message names it and what to do next.

    :param uuid: of the device; empty for the driver as a whole.
    """

    def __init__(self, uuid: str, fault: DeviceFault, detail: str) -> None:
        super().__init__(f"{uuid or 'driver'}: {detail} ({fault}); {FIXES[fault]}")
        self.uuid = uuid
        self.fault = fault


class PowerBackend(Protocol):
    """The GPUs of one node. Only a backend reads watts and writes caps.

    Every method may block for as long as the driver does, so hosts call it in threads of their own. Calls for different
    devices may come from different threads at once. All raise `DeviceError`.
    """

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs that can be read, in the driver's order.

        A backend may tell of the others in an attribute ``unreadable``: what is wrong, by UUID or by ``GPU INDEX``.
        """
        ...

    def read(self, uuid: str) -> Reading:
        """Return the draw, the cap and the energy of one GPU."""
        ...

    def set_cap_w(self, uuid: str, cap_w: float) -> None:
        """Set one cap. It returns when the driver has accepted it; the draw follows later."""
        ...

    def close(self) -> None:
        """Let go of the driver. Caps stay as they are."""
        ...
