"""AMD GPUs, through AMD SMI and its Python binding ``amdsmi``, 6.2 to 7.x.

Where the versions differ: 6.4 asks for power with a sensor, 7.x without; energy is called ``power`` before 6.4 and
``energy_accumulator`` since. Caps are microwatts on bare metal and watts on a virtualisation host. An import without
the library raises KeyError and prints.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pdplugins import extras
from pdplugins.contracts.power import Device, DeviceError, DeviceFault, Reading
from pdplugins.contracts.register import NoSettings
from pdplugins.errors import HostError, one_line
from pdplugins.power.calls import DeviceThreads, described

FAULTS = {
    1: DeviceFault.REFUSED,  # invalid parameters
    2: DeviceFault.NOT_SUPPORTED,
    3: DeviceFault.NOT_SUPPORTED,  # not yet implemented
    8: DeviceFault.TIMEOUT,
    10: DeviceFault.PERMISSION,
    17: DeviceFault.REFUSED,  # out of bounds
    31: DeviceFault.LOST,  # not found
    54: DeviceFault.RESET,
    55: DeviceFault.NOT_SUPPORTED,  # setting unavailable
}
"""By status of AMD SMI."""
MICRO = 1_000_000
HIGHEST_W = 100_000
"""No GPU has a cap of more watts, so a larger number is in microwatts."""
SENSOR = 0
"""The cap of the whole package."""


class AmdBackend:
    """`pdplugins.types.PowerBackend` of AMD GPUs. Raises HostError without binding, library or driver."""

    def __init__(self, settings: NoSettings | None = None) -> None:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                import amdsmi  # noqa: PLC0415 - an extra, and only this backend needs it
        except ImportError:
            raise HostError(
                "power backend amdsmi: the module amdsmi is missing; install the one of your ROCm "
                f"(/opt/rocm/share/amd_smi), or {extras.how('power')}"
            ) from None
        except Exception as error:  # KeyError where the library cannot be loaded
            raise self._unusable(error) from None
        self._smi: Any = amdsmi
        try:
            amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
        except Exception as error:
            raise self._unusable(error) from None
        self._handles: dict[str, Any] = {}
        self._threads = DeviceThreads()
        self.unreadable: dict[str, DeviceError] = {}
        """What was wrong with the GPUs that `devices` passed over, by UUID; by ``GPU INDEX`` where that is not told."""

    @staticmethod
    def _unusable(error: Exception) -> HostError:
        return HostError(
            f"power backend amdsmi: AMD SMI cannot be used ({type(error).__name__}: {one_line(error, 100)}); this "
            "machine needs the amdgpu driver and libamd_smi.so of ROCm 6.2 or later, see ROCM_PATH"
        )

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs that can be read, in the driver's order. The others are in `unreadable`."""
        present, nameless = self._present()
        devices, failed = described(self._threads, present, self._device)
        self.unreadable = nameless | failed
        return devices

    def _present(self) -> tuple[dict[str, Any], dict[str, DeviceError]]:
        """Return the handles by UUID, and what is wrong with the GPUs that do not tell theirs."""
        smi = self._smi
        present: dict[str, Any] = {}
        nameless: dict[str, DeviceError] = {}
        with self._faults(""):
            handles = smi.amdsmi_get_processor_handles()
        for index, handle in enumerate(handles):
            try:
                with self._faults(f"GPU {index}"):
                    present[str(smi.amdsmi_get_gpu_device_uuid(handle))] = handle
            except DeviceError as error:
                nameless[error.uuid] = error
        return present, nameless

    def _device(self, uuid: str, handle: Any) -> Device:
        with self._faults(uuid):
            self._handles[uuid] = handle
            cap = self._smi.amdsmi_get_power_cap_info(handle)
            unit = _unit(cap)
            low_w, high_w = cap["min_power_cap"] / unit, cap["max_power_cap"] / unit
            return Device(uuid, self._name(handle), low_w, high_w, cap["default_power_cap"] / unit)

    def read(self, uuid: str) -> Reading:
        """Return the draw, the cap and the energy of one GPU."""
        with self._faults(uuid):
            handle = self._handle(uuid)
            cap = self._smi.amdsmi_get_power_cap_info(handle)
            return Reading(self._draw_w(uuid, handle), cap["power_cap"] / _unit(cap), self._energy_j(handle))

    def set_cap_w(self, uuid: str, cap_w: float) -> None:
        """Set one cap, in the unit in which the device tells its own."""
        with self._faults(uuid):
            handle = self._handle(uuid)
            unit = _unit(self._smi.amdsmi_get_power_cap_info(handle))
            self._smi.amdsmi_set_power_cap(handle, SENSOR, int(cap_w * unit))

    def close(self) -> None:
        """Let go of the library. Caps stay as they are."""
        self._smi.amdsmi_shut_down()

    def _handle(self, uuid: str) -> Any:
        """Return the handle of one GPU. What is wrong with another GPU is no matter here."""
        if (handle := self._handles.get(uuid)) is None:
            handle = self._present()[0].get(uuid)
            if handle is None:
                raise DeviceError(uuid, DeviceFault.LOST, "AMD SMI knows no GPU of this UUID")
            self._handles[uuid] = handle
        return handle

    def _name(self, handle: Any) -> str:
        try:
            return str(self._smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
        except Exception:  # only shown
            return "AMD GPU"

    def _draw_w(self, uuid: str, handle: Any) -> float:
        """Return the draw now; where a GPU does not tell that, its mean."""
        power = self._smi.amdsmi_get_power_info(handle)
        for name in ("current_socket_power", "average_socket_power", "socket_power"):
            if isinstance(power.get(name), int | float):  # "N/A" where it is not told
                return float(power[name])
        raise DeviceError(uuid, DeviceFault.NOT_SUPPORTED, "AMD SMI tells no draw")

    def _energy_j(self, handle: Any) -> float | None:
        try:
            energy = self._smi.amdsmi_get_energy_count(handle)
        except self._smi.AmdSmiException:
            return None
        count = energy.get("energy_accumulator", energy.get("power"))
        return float(count * energy["counter_resolution"] / MICRO) if isinstance(count, int | float) else None

    @contextmanager
    def _faults(self, uuid: str) -> Iterator[None]:
        try:
            yield
        except self._smi.AmdSmiException as error:
            self._handles.pop(uuid, None)
            code = error.get_error_code() if hasattr(error, "get_error_code") else None
            fault = FAULTS.get(code, DeviceFault.DRIVER) if isinstance(code, int) else DeviceFault.DRIVER
            raise DeviceError(uuid, fault, f"AMD SMI says {one_line(error)}") from None


def _unit(cap: dict[str, Any]) -> int:
    """Return how many of the units of a device's caps make a watt."""
    return MICRO if max(cap["max_power_cap"], cap["power_cap"]) > HIGHEST_W else 1
