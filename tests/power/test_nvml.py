"""The NVML backend through the real nvidia-ml-py, over a library that stands in for the driver's."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest

from benchmarks.rig.gpus.nodes import Standin
from pdplugins.config import NodeConfig
from pdplugins.contracts.register import NoSettings
from pdplugins.errors import ConfigError, HostError
from pdplugins.hosts.power import assembly
from pdplugins.power import calls
from pdplugins.power.nvml import NOT_PERSISTENT, NvmlBackend
from pdplugins.types import DeviceError, DeviceFault


def taking_part(*uuids: str) -> list[str]:
    """The GPUs that a node finds whose config names these."""
    import pynvml  # noqa: PLC0415 - an extra

    wanted = NodeConfig.model_validate({"backend": "nvml", "gpus": uuids})
    try:
        return [device.uuid for device in assembly.equip(wanted).devices]
    finally:
        pynvml.nvmlShutdown()


@pytest.fixture
def uuids(nvml: NvmlBackend) -> list[str]:
    return [device.uuid for device in nvml.devices()]


def test_devices_have_uuids_limits_and_a_default(nvml: NvmlBackend) -> None:
    devices = nvml.devices()
    assert len({device.uuid for device in devices}) == 8
    assert all(device.uuid.startswith("GPU-") for device in devices)
    assert {(d.min_w, d.max_w, d.default_w, d.warnings) for d in devices} == {(200.0, 700.0, 700.0, ())}


def test_a_cap_is_set_by_uuid_and_the_draw_follows_it_later(
    nvidia: Standin, nvml: NvmlBackend, uuids: list[str]
) -> None:
    node = nvidia.node
    node.clock_s = node.gpu[3].since_s
    node.gpu[3].demand_w = 900
    nvml.set_cap_w(uuids[3], 400.0)
    at_once = nvml.read(uuids[3])
    assert (at_once.cap_w, at_once.draw_w) == (400.0, 700.0)
    node.clock_s += node.tau_s
    later = nvml.read(uuids[3])
    assert later.draw_w == pytest.approx(400 + 300 / math.e, abs=0.01)
    assert nvml.read(uuids[2]).cap_w == 700.0
    assert [(gpu, watts) for gpu, watts, _ in node.written()] == [(3, 400.0)]


def test_energy_is_what_was_drawn(nvidia: Standin, nvml: NvmlBackend, uuids: list[str]) -> None:
    node = nvidia.node
    node.clock_s = node.gpu[0].since_s
    before = nvml.read(uuids[0]).energy_j
    node.clock_s += 10.0
    after = nvml.read(uuids[0]).energy_j
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(1200.0, rel=1e-3)


def test_without_an_instant_draw_the_mean_is_taken(nvidia: Standin, nvml: NvmlBackend, uuids: list[str]) -> None:
    nvidia.node.gpu[0].no_instant = 1
    assert nvml.read(uuids[0]).draw_w == 120.0


@pytest.mark.parametrize(
    ("code", "fault", "fix"),
    [
        (3, DeviceFault.NOT_SUPPORTED, "leave it out of node.gpus"),
        (4, DeviceFault.PERMISSION, "as root"),
        (15, DeviceFault.LOST, "see dmesg"),
        (16, DeviceFault.RESET, "nvidia-smi --gpu-reset"),
        (999, DeviceFault.DRIVER, "nvidia-smi"),
    ],
)
@pytest.mark.parametrize("field", ["read_fault", "write_fault"])
def test_what_is_wrong_with_a_device_has_a_type_and_a_fix(
    nvidia: Standin, nvml: NvmlBackend, uuids: list[str], code: int, fault: DeviceFault, fix: str, field: str
) -> None:
    setattr(nvidia.node.gpu[5], field, code)
    act: Callable[[], object] = (
        (lambda: nvml.read(uuids[5])) if field == "read_fault" else (lambda: nvml.set_cap_w(uuids[5], 300.0))
    )
    with pytest.raises(DeviceError) as raised:
        act()
    assert raised.value.fault is fault
    assert raised.value.uuid == uuids[5]
    assert fix in str(raised.value)
    assert "\n" not in str(raised.value)
    setattr(nvidia.node.gpu[5], field, 0)
    act()


def test_a_cap_outside_the_limits_is_refused(nvidia: Standin, nvml: NvmlBackend, uuids: list[str]) -> None:
    with pytest.raises(DeviceError, match="refused") as raised:
        nvml.set_cap_w(uuids[0], 100.0)
    assert raised.value.fault is DeviceFault.REFUSED
    assert nvidia.node.limits_w() == [700.0] * 8


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_whoever_is_not_root_may_read_and_not_write(nvidia: Standin, nvml: NvmlBackend, uuids: list[str]) -> None:
    nvidia.node.root_only = 1
    os.seteuid(65534)
    try:
        assert nvml.read(uuids[0]).cap_w == 700.0
        with pytest.raises(DeviceError, match="start as root"):
            nvml.set_cap_w(uuids[0], 300.0)
    finally:
        os.seteuid(0)


def test_a_driver_that_is_not_there_is_one_line(nvidia: Standin) -> None:
    nvidia.node.init_fault = 9
    with pytest.raises(HostError, match="needs NVIDIA's driver"):
        NvmlBackend(NoSettings())
    nvidia.node.init_fault = 0


def test_persistence_that_is_off_is_told(nvidia: Standin, nvml: NvmlBackend) -> None:
    nvidia.node.gpu[7].persistent = 0
    assert [device.warnings for device in nvml.devices()][6:] == [(), (NOT_PERSISTENT,)]


@pytest.mark.parametrize("code", [3, 15])
def test_a_gpu_that_cannot_be_read_matters_only_where_it_takes_part(
    nvidia: Standin, nvml: NvmlBackend, uuids: list[str], code: int
) -> None:
    broken, others = uuids[2], [*uuids[:2], *uuids[3:]]
    nvidia.node.gpu[2].read_fault = code
    assert [device.uuid for device in nvml.devices()] == others
    assert list(nvml.unreadable) == [broken]
    assert taking_part(*others) == others
    for named in (uuids, []):
        with pytest.raises(DeviceError, match=r"leave it out of node\.gpus") as raised:
            taking_part(*named)
        assert raised.value.uuid == broken
    nvidia.node.gpu[2].read_fault = 0
    assert [device.uuid for device in nvml.devices()] == uuids
    assert not nvml.unreadable


def test_a_gpu_that_hangs_matters_only_where_it_takes_part(
    nvidia: Standin, nvml: NvmlBackend, uuids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LIST_S", 0.2)
    broken, others = uuids[2], [*uuids[:2], *uuids[3:]]
    nvidia.node.gpu[2].read_delay_s = 2.0
    assert [device.uuid for device in nvml.devices()] == others
    assert {uuid: error.fault for uuid, error in nvml.unreadable.items()} == {broken: DeviceFault.TIMEOUT}
    assert taking_part(*others) == others
    with pytest.raises(DeviceError, match=f"{broken}: no answer within 0.2 s"):
        taking_part(*uuids)


def test_a_gpu_that_does_not_tell_its_uuid_matters_only_where_it_takes_part(
    nvml: NvmlBackend, uuids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pynvml  # noqa: PLC0415 - an extra

    found = pynvml.nvmlDeviceGetHandleByIndex

    def handle(index: int) -> object:
        if index == 2:
            raise pynvml.NVMLError(15)
        return found(index)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    others = [*uuids[:2], *uuids[3:]]
    assert taking_part(*others) == others
    with pytest.raises(DeviceError, match=r"GPU 2: .* leave it out of node\.gpus"):
        taking_part()
    with pytest.raises(ConfigError, match=rf"there is no {uuids[2]} here; .*; GPU 2: NVML says .*\(lost\)"):
        taking_part(*uuids)


def test_the_second_setter_of_the_binding_hides_refusals(nvidia: Standin, nvml: NvmlBackend) -> None:
    """Why the first one is used. When this fails, the binding has been mended."""
    import pynvml  # noqa: PLC0415 - an extra

    nvidia.node.gpu[0].write_fault = 4
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    said = pynvml.nvmlDeviceSetPowerManagementLimit_v2(handle, pynvml.NVML_POWER_SCOPE_GPU, 300_000)
    assert said == pynvml.NVML_SUCCESS
    assert nvidia.node.limits_w()[0] == 700.0
