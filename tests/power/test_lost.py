"""A GPU that is lost while the others go on: the node's loop in virtual time, over simulated GPUs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from prometheus_client import CollectorRegistry

from pdplugins.config import Config, NodeConfig
from pdplugins.errors import ConfigError, HostError
from pdplugins.hosts.power import assembly, daemon
from pdplugins.hosts.power.metrics import NodeMetrics
from pdplugins.power.calls import Call, DeviceThreads
from pdplugins.power.node import GRAIN_W, Patience, PowerNode
from pdplugins.power.saved import SavedCaps
from pdplugins.power.simulated import SimulatedBackend, SimulatedSettings
from pdplugins.types import DeviceError, DeviceFault, Reading

T = TypeVar("T")

TICK_S = 0.05
LOST = "SIM-3"
EVEN = dict.fromkeys(("SIM-0", "SIM-1", "SIM-2", LOST), 600.0)


def at_once(uuid: str, work: Callable[[], T]) -> Call[T]:
    call: Call[T] = Call()
    try:
        call.value = work()
    except DeviceError as error:
        call.error = error
    call.done = True
    return call


class Bus(SimulatedBackend):
    """GPUs in virtual time, of which one can fall off."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.off = self.deaf_to_reads = False
        self.more_w = 0.0
        """By which one draws more than its cap."""
        self.refuses: str | None = None
        super().__init__(SimulatedSettings(gpus=4, min_w=200, max_w=700), lambda: self.now_s)

    def read(self, uuid: str) -> Reading:
        if uuid == LOST and (self.off or self.deaf_to_reads):
            raise DeviceError(uuid, DeviceFault.LOST, "fell off the bus")
        reading = super().read(uuid)
        return replace(reading, draw_w=reading.cap_w + self.more_w) if uuid == LOST and self.more_w else reading

    def set_cap_w(self, uuid: str, cap_w: float) -> None:
        if uuid == LOST and self.off:
            raise DeviceError(uuid, DeviceFault.LOST, "fell off the bus")
        if uuid == self.refuses:
            raise DeviceError(uuid, DeviceFault.REFUSED, "not now")
        super().set_cap_w(uuid, cap_w)


class Node:
    """Four GPUs at 600 W each, and what is seen of them."""

    def __init__(self, saved: SavedCaps, budget_w: float) -> None:
        self.bus = Bus()
        self.hangs: str | None = None
        self.it = PowerNode(self.bus, self.bus.devices(), budget_w, self.begin, saved=saved)
        self.run(0.2)
        self.it.keep_before()
        assert self.aim(EVEN)
        self.run(5.0)
        assert self.it.caps.complete

    def begin(self, uuid: str, work: Callable[[], T]) -> Call[T]:
        return Call() if uuid == self.hangs else at_once(uuid, work)

    def aim(self, caps_w: dict[str, float]) -> bool:
        return self.it.aim(caps_w, self.bus.now_s)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.bus.now_s += TICK_S
            self.it.tick(self.bus.now_s)

    def caps_w(self) -> list[float]:
        return [account.told_w for account in self.it.caps.accounts.values()]


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[SavedCaps]:
    one = SavedCaps(tmp_path)
    yield one
    one.close()


def healthy(node: Node, uuid: str) -> float | None:
    registry = CollectorRegistry()
    NodeMetrics(registry).node = node.it
    return registry.get_sample_value("pdplugins_power_healthy", {"gpu": uuid})


@pytest.mark.parametrize("lost_w", [550.0, 650.0])
def test_the_others_go_on_after_one_roll_back(saved: SavedCaps, lost_w: float) -> None:
    """Whether its cap was about to fall or to rise."""
    node = Node(saved, 2500.0)
    node.bus.off = True
    assert node.aim({**EVEN, LOST: lost_w})
    node.run(60.0)
    assert node.it.counts["rollback"] == 1
    assert node.aim({"SIM-0": 500.0, "SIM-1": 700.0, "SIM-2": 600.0})
    node.run(5.0)
    assert node.caps_w()[:3] == [500.0, 700.0, 600.0]
    assert node.it.counts["rollback"] == 1


def test_the_lost_gpu_counts_at_its_highest_cap(saved: SavedCaps) -> None:
    """Its cap may be any once it is back: watts that it might draw go to nobody."""
    node = Node(saved, 2400.0)
    node.bus.off = True
    assert node.aim({**EVEN, LOST: 500.0})
    node.run(60.0)
    assert node.aim({"SIM-0": 650.0, "SIM-1": 550.0, LOST: 500.0})
    node.run(5.0)
    assert node.caps_w()[:3] == [600.0, 550.0, 600.0]
    assert node.it.caps.accounts[LOST].kept_w == 700.0
    assert node.aim({"SIM-0": 650.0, "SIM-1": 450.0, LOST: 500.0})
    node.run(5.0)
    assert node.caps_w()[:3] == [650.0, 450.0, 600.0]


def test_the_others_fall_for_what_the_lost_gpu_may_draw(saved: SavedCaps) -> None:
    node = Node(saved, 2400.0)
    node.bus.off = True
    assert node.aim({**EVEN, LOST: 500.0})
    node.run(60.0)
    node.it.fit()
    node.run(5.0)
    assert node.it.caps.accounts[LOST].kept_w == 700.0
    assert 2395.0 < node.it.caps.kept_w <= 2400.0


def test_a_gpu_that_draws_more_than_its_cap_holds_up_nothing(saved: SavedCaps) -> None:
    """A sensor may be wrong by a few percent for ever. It counts at its draw."""
    node = Node(saved, 2400.0)
    node.bus.more_w = 20.0
    node.run(60.0)
    assert node.aim({"SIM-0": 500.0, "SIM-1": 640.0, "SIM-2": 600.0})
    node.run(5.0)
    assert node.caps_w() == [500.0, 640.0, 600.0, 600.0]
    node.it.caps.budget_w = 2000.0
    node.it.fit()
    node.run(30.0)
    assert sum(node.caps_w()) <= 2000.0


def test_a_smaller_budget_does_not_wait_for_a_roll_back(saved: SavedCaps) -> None:
    node = Node(saved, 2400.0)
    node.bus.refuses = "SIM-1"
    assert node.aim({"SIM-1": 500.0})
    node.run(1.0)
    assert node.it.counts["rollback"] == 1
    assert {uuid: healthy(node, uuid) for uuid in EVEN} == {uuid: float(uuid != "SIM-1") for uuid in EVEN}
    node.bus.refuses = None
    node.it.caps.budget_w = 2000.0
    node.it.fit()
    node.run(2.0)
    assert node.caps_w() == [466.0, 600.0, 466.0, 466.0], "the others make room for the one that rests"


@pytest.mark.parametrize("trouble", ["refuses", "hangs", "draws"])
def test_the_others_make_room_for_a_gpu_that_does_not_come_down(saved: SavedCaps, trouble: str) -> None:
    """A smaller budget, and one GPU refuses its lower cap, hangs in it, or draws more than it."""
    node = Node(saved, 2400.0)
    if trouble == "hangs":
        node.hangs = LOST
    elif trouble == "refuses":
        node.bus.refuses = LOST
    else:
        node.bus.more_w = 150.0
    node.it.caps.budget_w = 1800.0

    def decide() -> None:
        node.aim(dict.fromkeys(EVEN, 450.0))
        node.it.fit()
        node.run(0.5)

    for _ in range(12):
        decide()
    for _ in range(40):
        decide()
        assert node.it.caps.kept_w <= 1800.0 + GRAIN_W
    assert node.caps_w()[:3] == [400.0] * 3


def test_a_gpu_that_comes_down_at_last_gives_the_others_their_watts_back(saved: SavedCaps) -> None:
    node = Node(saved, 2400.0)
    node.bus.refuses = LOST
    node.it.caps.budget_w = 1800.0
    for refuses in (LOST, None):
        node.bus.refuses = refuses
        for _ in range(40):
            node.aim(dict.fromkeys(EVEN, 450.0))
            node.it.fit()
            node.run(0.5)
    assert node.caps_w() == [450.0] * 4


def test_lost_before_it_was_seen_to_obey(saved: SavedCaps) -> None:
    """The write came through, and nothing after it."""
    node = Node(saved, 2500.0)
    assert node.aim({**EVEN, LOST: 550.0})
    node.run(TICK_S)
    node.bus.deaf_to_reads = True
    node.run(60.0)
    assert node.it.counts["rollback"] == 1
    assert node.aim({"SIM-0": 500.0, "SIM-1": 700.0})
    node.run(5.0)
    assert node.caps_w()[:3] == [500.0, 700.0, 600.0]


def test_back_again_it_takes_part(saved: SavedCaps) -> None:
    node = Node(saved, 2400.0)
    node.bus.off = True
    assert node.aim({**EVEN, LOST: 550.0})
    node.run(60.0)
    node.bus.off = False
    assert node.aim({**EVEN, "SIM-0": 700.0, LOST: 500.0})
    node.run(5.0)
    assert node.caps_w() == [700.0, 600.0, 600.0, 500.0]
    assert node.it.caps.complete
    assert node.it.counts["rollback"] == 1


def test_no_cap_is_below_the_floor_whatever_a_device_takes(tmp_path: Path) -> None:
    """AMD's driver may take 0 W."""
    bus, saved = Bus(), SavedCaps(tmp_path / "floor")
    node = PowerNode(bus, bus.devices(), 2400.0, at_once, saved=saved, floor_w=300.0)
    bus.now_s = 0.1
    node.tick(bus.now_s)
    bus.now_s = 0.2
    node.tick(bus.now_s)
    node.keep_before()
    with pytest.raises(ConfigError, match="a cap of 250 W is outside its limits, 300 to 700 W"):
        node.aim({"SIM-0": 250.0}, bus.now_s)
    node.caps.budget_w = 1000.0
    node.fit()
    assert {account.target_w for account in node.caps.accounts.values()} == {300.0}
    saved.close()


def test_no_cap_from_before_comes_back_below_the_floor_or_above_the_limit(saved: SavedCaps) -> None:
    """What is noted may be damaged, or of a driver that took other caps."""
    node = Node(saved, 2400.0)
    saved.save({**EVEN, "SIM-0": 5.0, "SIM-1": 5000.0})
    node.it = PowerNode(node.bus, node.bus.devices(), 2400.0, at_once, saved=saved, floor_w=250.0)
    node.run(1.0)
    node.it.keep_before()
    node.it.give_back()
    assert node.it.caps.budget_w == pytest.approx(2400.0, abs=1.0)
    node.run(10.0)
    assert node.it.not_back == []
    assert node.caps_w() == [250.0, 700.0, 600.0, 600.0]


def test_a_gpu_that_takes_no_part_gets_no_cap_below_the_floor(saved: SavedCaps) -> None:
    bus = Bus()
    saved.save({LOST: 5.0})
    equipment = assembly.Equipment(bus, bus.devices()[:3], DeviceThreads())
    daemon.restore_others(Config(node=NodeConfig(floor_w=250.0)), equipment, saved)
    assert bus.read(LOST).cap_w == 250.0
    assert saved.load() == {}


def test_a_smaller_budget_is_kept_though_the_policy_wants_nothing(saved: SavedCaps) -> None:
    """Each cap falls by the same share of what lies above its lowest."""
    node = Node(saved, 2400.0)
    assert node.aim({"SIM-0": 300.0})
    node.run(5.0)
    node.it.caps.budget_w = 1650.0
    node.it.fit()
    node.run(5.0)
    assert node.caps_w() == [265.0, 461.0, 461.0, 461.0]
    node.it.fit()
    node.run(1.0)
    assert sum(node.caps_w()) <= 1650.0


def test_a_lost_gpu_that_has_its_cap_is_named_when_it_cannot_say_so(saved: SavedCaps) -> None:
    """All caps were the same before: so nothing has to be written, and still nobody knows."""
    node = Node(saved, 2800.0)
    node.it._before_w.update(EVEN)
    node.bus.off = True
    node.run(1.0)
    with pytest.raises(HostError, match=f"not all caps from before are back \\({LOST}\\)"):
        daemon.give_back(node.it, saved, 0.1)


def test_caps_from_before_come_back_though_one_gpu_does_not_answer(saved: SavedCaps) -> None:
    """A process was killed, perhaps because of that GPU."""
    node = Node(saved, 2800.0)
    saved.save(dict.fromkeys(EVEN, 650.0))
    anew = PowerNode(node.bus, node.bus.devices(), math.inf, at_once, saved=saved, patience=Patience(settle_s=0.0))
    node.bus.deaf_to_reads = True
    with pytest.raises(HostError, match=f"not all caps from before are back \\({LOST}\\)"):
        daemon.give_back(anew, saved, 0.5)
    assert [node.bus.read(uuid).cap_w for uuid in EVEN if uuid != LOST] == [650.0] * 3
    assert LOST in saved.load()


def test_the_end_counts_a_gpu_that_never_told_its_cap_at_its_highest(saved: SavedCaps) -> None:
    node = Node(saved, 2400.0)
    before_w = {**EVEN, "SIM-0": 700.0, LOST: 500.0}
    saved.save(before_w)
    node.it = PowerNode(node.bus, node.bus.devices(), 2400.0, at_once, saved=saved)
    node.bus.deaf_to_reads = True
    node.run(1.0)
    assert node.it.kept_w == 2500.0
    node.it.keep_before()
    node.it.give_back()
    node.run(20.0)
    assert node.it.not_back == [LOST, "SIM-0"]
    assert [node.bus.read(uuid).cap_w for uuid in EVEN if uuid != LOST] == [600.0] * 3
    node.bus.deaf_to_reads = False
    node.run(5.0)
    assert node.it.not_back == []
    assert {uuid: node.bus.read(uuid).cap_w for uuid in EVEN} == before_w


def test_a_gpu_whose_cap_from_before_nobody_knows_keeps_the_one_it_has(saved: SavedCaps) -> None:
    node = Node(saved, 2400.0)
    saved.save({uuid: 650.0 for uuid in EVEN if uuid != LOST})
    node.it = PowerNode(node.bus, node.bus.devices(), 2800.0, at_once, saved=saved)
    node.bus.deaf_to_reads = True
    node.run(1.0)
    node.it.keep_before()
    node.it.give_back()
    node.run(1.0)
    node.bus.deaf_to_reads = False
    node.run(20.0)
    assert [node.bus.read(uuid).cap_w for uuid in EVEN] == [650.0] * 3 + [600.0]


def test_the_end_waits_no_longer_than_it_may_though_a_gpu_is_silent(saved: SavedCaps) -> None:
    node = Node(saved, 2400.0)
    anew = PowerNode(node.bus, node.bus.devices(), 2400.0, at_once, saved=saved)
    node.bus.deaf_to_reads = True
    begun_s = time.monotonic()
    with pytest.raises(HostError, match="not all caps from before are back"):
        daemon.give_back(anew, saved, 1.0)
    assert time.monotonic() - begun_s < 1.8


def test_a_roll_back_returns_the_others_to_caps_of_after_the_loss(saved: SavedCaps) -> None:
    node = Node(saved, 2500.0)
    node.bus.off = True
    assert node.aim({**EVEN, LOST: 550.0})
    node.run(60.0)
    assert node.aim({"SIM-0": 400.0})
    node.run(10.0)
    assert node.caps_w()[0] == 400.0
    assert node.aim({"SIM-1": 500.0})
    node.bus.refuses = "SIM-1"
    node.run(1.0)
    assert node.it.counts["rollback"] == 2
    node.bus.refuses = None
    node.run(20.0)
    assert node.caps_w()[:3] == [400.0, 600.0, 600.0]


def test_a_fitted_cap_is_not_below_the_floor(saved: SavedCaps) -> None:
    node = Node(saved, 2400.0)
    node.it._floor_w = 300.5
    node.it.caps.budget_w = 4 * 300.5
    node.it.fit()
    assert {account.target_w for account in node.it.caps.accounts.values()} == {300.5}
