"""GPUs that are not there obey physics: the draw follows a cap, energy is what was drawn."""

from __future__ import annotations

import math

import pytest

from pdplugins.power.simulated import SimulatedBackend, SimulatedSettings
from pdplugins.types import DeviceError


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_draw_follows_a_cap_and_energy_sums_it_up() -> None:
    clock = Clock()
    backend = SimulatedBackend(SimulatedSettings(gpus=2, demand_w=900, settle_s=0.1), clock)
    (first, _) = backend.devices()
    backend.set_cap_w(first.uuid, 400)
    assert (backend.read(first.uuid).draw_w, backend.read(first.uuid).cap_w) == (700, 400)
    clock.now_s = 0.1
    assert backend.read(first.uuid).draw_w == pytest.approx(400 + 300 / math.e)
    clock.now_s = 10.1
    before = backend.read(first.uuid).energy_j
    clock.now_s = 20.1
    after = backend.read(first.uuid).energy_j
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(4000.0)


@pytest.mark.parametrize(("uuid", "cap_w"), [("SIM-0", 100), ("SIM-0", 900), ("SIM-9", 400)])
def test_what_cannot_be_is_refused(uuid: str, cap_w: float) -> None:
    with pytest.raises(DeviceError):
        SimulatedBackend(SimulatedSettings(gpus=1)).set_cap_w(uuid, cap_w)
