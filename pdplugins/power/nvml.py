"""NVIDIA GPUs, through NVML and its Python binding ``nvidia-ml-py``.

The binding's ``nvmlDeviceSetPowerManagementLimit_v2`` drops the return code of the driver (13.615.71), so a refusal
looks like success. The first version of the call is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pdplugins import extras
from pdplugins.contracts.power import Device, DeviceError, DeviceFault, Reading
from pdplugins.contracts.register import NoSettings
from pdplugins.errors import HostError, one_line
from pdplugins.power.calls import DeviceThreads, described

FAULTS = {
    2: DeviceFault.REFUSED,  # invalid argument
    3: DeviceFault.NOT_SUPPORTED,
    4: DeviceFault.PERMISSION,
    6: DeviceFault.LOST,  # not found
    8: DeviceFault.REFUSED,  # a power cable is missing
    10: DeviceFault.TIMEOUT,
    13: DeviceFault.NOT_SUPPORTED,  # the library has no such function
    15: DeviceFault.LOST,
    16: DeviceFault.RESET,
    28: DeviceFault.LOST,
}
"""By return code of NVML."""
NOT_PERSISTENT = (
    "persistence mode is off: the driver forgets caps when nothing uses the GPU; switch it on with nvidia-smi -pm 1"
)


class NvmlBackend:
    """`pdplugins.types.PowerBackend` of NVIDIA GPUs. Raises HostError without binding, library or driver."""

    def __init__(self, settings: NoSettings | None = None) -> None:
        try:
            import pynvml  # noqa: PLC0415 - an extra, and only this backend needs it
        except ImportError:
            raise HostError(f"power backend nvml: nvidia-ml-py is missing; {extras.how('power')}") from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise HostError(
                f"power backend nvml: {one_line(error)}; this machine needs NVIDIA's driver and libnvidia-ml.so.1, and "
                "a container needs --gpus with the driver capability utility"
            ) from None
        self._handles: dict[str, Any] = {}
        self._threads = DeviceThreads()
        self.unreadable: dict[str, DeviceError] = {}
        """What was wrong with the GPUs that `devices` passed over, by UUID; by ``GPU INDEX`` where that is not told."""

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs that can be read, in the driver's order. The others are in `unreadable`."""
        present, nameless = self._present()
        devices, failed = described(self._threads, present, self._device)
        self.unreadable = nameless | failed
        return devices

    def _present(self) -> tuple[dict[str, Any], dict[str, DeviceError]]:
        """Return the handles by UUID, and what is wrong with the GPUs that do not tell theirs."""
        nvml = self._nvml
        present: dict[str, Any] = {}
        nameless: dict[str, DeviceError] = {}
        with self._faults(""):
            count = nvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                with self._faults(f"GPU {index}"):
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    present[str(nvml.nvmlDeviceGetUUID(handle))] = handle
            except DeviceError as error:
                nameless[error.uuid] = error
        return present, nameless

    def _device(self, uuid: str, handle: Any) -> Device:
        nvml = self._nvml
        with self._faults(uuid):
            self._handles[uuid] = handle
            low_mw, high_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            default_w = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3
            name = str(nvml.nvmlDeviceGetName(handle))
            warnings = () if self._persists(handle) else (NOT_PERSISTENT,)
            return Device(uuid, name, low_mw / 1e3, high_mw / 1e3, default_w, warnings)

    def read(self, uuid: str) -> Reading:
        """Return the draw now, the cap and the energy of one GPU."""
        with self._faults(uuid):
            handle = self._handle(uuid)
            cap_w = self._nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3
            return Reading(self._draw_w(handle), cap_w, self._energy_j(handle))

    def set_cap_w(self, uuid: str, cap_w: float) -> None:
        """Set one cap, in whole milliwatts."""
        with self._faults(uuid):
            self._nvml.nvmlDeviceSetPowerManagementLimit(self._handle(uuid), int(cap_w * 1e3))

    def close(self) -> None:
        """Let go of the library. Caps stay as they are."""
        self._nvml.nvmlShutdown()

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:  # a handle is of no use any more once its GPU was lost or reset
            self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _draw_w(self, handle: Any) -> float:
        """Return the draw at this instant; where a GPU does not tell that, its mean over the last second."""
        nvml = self._nvml
        (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
        if field.nvmlReturn == nvml.NVML_SUCCESS:
            return float(field.value.uiVal / 1e3)
        return float(nvml.nvmlDeviceGetPowerUsage(handle) / 1e3)

    def _energy_j(self, handle: Any) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise

    def _persists(self, handle: Any) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetPersistenceMode(handle))
        except self._nvml.NVMLError:
            return True  # it does not say, so there is nothing to warn of

    @contextmanager
    def _faults(self, uuid: str) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            self._handles.pop(uuid, None)
            fault = FAULTS.get(error.value, DeviceFault.DRIVER)
            raise DeviceError(uuid, fault, f"NVML says {one_line(error)}") from None
