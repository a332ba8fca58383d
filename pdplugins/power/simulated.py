"""GPUs that are not there: for trying things out, and for tests that need no driver."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pdplugins.contracts.power import Device, DeviceError, DeviceFault, Reading


class SimulatedSettings(BaseModel):
    """The GPUs of a simulated node."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    gpus: int = Field(8, ge=1, le=1024, description="how many")
    min_w: float = Field(200.0, gt=0, description="the smallest cap that they accept")
    max_w: float = Field(700.0, gt=0, description="the largest cap that they accept, and the one at start")
    demand_w: float = Field(600.0, ge=0, description="what each would draw without a cap")
    settle_s: float = Field(0.1, ge=0, description="time constant with which the draw follows a cap")

    @model_validator(mode="after")
    def _possible(self) -> SimulatedSettings:
        if self.min_w > self.max_w:
            raise ValueError("min_w must not exceed max_w")
        return self


class _Gpu:
    def __init__(self, settings: SimulatedSettings, now_s: float) -> None:
        self.cap_w = self.kept_w = settings.max_w
        self.energy_j = 0.0
        self.since_s = now_s


class SimulatedBackend:
    """`pdplugins.types.PowerBackend` of GPUs whose draw follows a cap exponentially.

    :param clock: seconds.
    """

    def __init__(self, settings: SimulatedSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._gpus = {f"SIM-{index}": _Gpu(settings, clock()) for index in range(settings.gpus)}

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs."""
        low_w, high_w = self._settings.min_w, self._settings.max_w
        return tuple(Device(uuid, "simulated GPU", low_w, high_w, high_w) for uuid in self._gpus)

    def read(self, uuid: str) -> Reading:
        """Return the draw, the cap and the energy of one GPU."""
        with self._lock:
            gpu = self._at_now(uuid)
            return Reading(min(self._settings.demand_w, gpu.kept_w), gpu.cap_w, gpu.energy_j)

    def set_cap_w(self, uuid: str, cap_w: float) -> None:
        """Set one cap."""
        with self._lock:
            gpu = self._at_now(uuid)
            if not self._settings.min_w <= cap_w <= self._settings.max_w:
                raise DeviceError(uuid, DeviceFault.REFUSED, f"{cap_w:g} W is outside its limits")
            gpu.cap_w = cap_w

    def close(self) -> None:
        """Nothing is held."""

    def _at_now(self, uuid: str) -> _Gpu:
        if (gpu := self._gpus.get(uuid)) is None:
            raise DeviceError(uuid, DeviceFault.LOST, "there is no such simulated GPU")
        now_s = self._clock()
        passed_s, gpu.since_s = now_s - gpu.since_s, now_s
        gpu.energy_j += passed_s * min(self._settings.demand_w, gpu.kept_w)
        share = math.exp(-passed_s / self._settings.settle_s) if self._settings.settle_s else 0.0
        gpu.kept_w = gpu.cap_w + (gpu.kept_w - gpu.cap_w) * share
        return gpu
