"""Registers the power backends ``nvml``, ``amdsmi`` and ``simulated``."""

from __future__ import annotations

from pdplugins import hookimpl
from pdplugins.contracts.register import Register
from pdplugins.power.amd import AmdBackend
from pdplugins.power.nvml import NvmlBackend
from pdplugins.power.simulated import SimulatedBackend, SimulatedSettings


@hookimpl
def pd_register_power_backends(register: Register) -> None:
    """Add ``nvml`` for NVIDIA GPUs, ``amdsmi`` for AMD's, and ``simulated`` for GPUs that are not there."""
    register("nvml", NvmlBackend)
    register("amdsmi", AmdBackend)
    register("simulated", SimulatedBackend, SimulatedSettings)
