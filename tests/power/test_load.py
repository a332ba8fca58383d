"""The loop on large nodes and hung drivers: it never waits for a device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from pdplugins.config import parse
from pdplugins.hosts.power import assembly
from pdplugins.hosts.power.daemon import build_safe
from pdplugins.hosts.power.loop import PowerLoop
from pdplugins.hosts.power.metrics import NodeMetrics
from pdplugins.hosts.power.roles import FixedRoles
from pdplugins.power.calls import DeviceThreads
from pdplugins.power.node import PowerNode
from pdplugins.power.saved import SavedCaps
from pdplugins.power.simulated import SimulatedBackend, SimulatedSettings
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.journal import StandardJournal
from pdplugins.types import Device, Reading


class Hanging:
    """A backend of which any device can hang."""

    def __init__(self, gpus: int) -> None:
        self._inner = SimulatedBackend(SimulatedSettings(gpus=gpus, min_w=200, max_w=750))
        self.free: dict[str, threading.Event] = {}
        self.threads: set[str] = set()
        self.set_cap_w = self._inner.set_cap_w

    def devices(self) -> tuple[Device, ...]:
        return self._inner.devices()

    def read(self, uuid: str) -> Reading:
        self.threads.add(threading.current_thread().name)
        if (free := self.free.get(uuid)) is not None:
            free.wait(60)
        return self._inner.read(uuid)

    def close(self) -> None:
        self._inner.close()


class Stage:
    """A node and its loop."""

    def __init__(self, gpus: int, saved: SavedCaps) -> None:
        self.backend = Hanging(gpus)
        half = gpus // 2
        config = parse(
            {
                "deployment": {
                    "profile": "mi300x/llama-3.1-8b", "gpu_budget": gpus,
                    "prefill": {"replicas": half, "tp": 1}, "decode": {"replicas": gpus - half, "tp": 1},
                },
                "power": {"name": "rapid", "budget_w": 600 * gpus},
                "node": {"backend": "simulated", "call_s": 0.2},
            }
        )  # fmt: skip
        devices = self.backend.devices()
        threads = DeviceThreads()
        self.node = PowerNode(
            self.backend, devices, 600.0 * gpus, threads, saved=saved, patience=assembly.patience(config.node)
        )
        seats = assembly.seats(config, devices)
        controller = build_safe(config, build_deployment(config), StandardJournal())
        metrics = NodeMetrics(CollectorRegistry())
        self.loop = PowerLoop(self.node, seats, FixedRoles(seats), None, controller, metrics, stale_s=5.0)

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> bool:
        end_s = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end_s:
                return False
            self.loop.step(time.monotonic())
            time.sleep(0.005)
        return True


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[SavedCaps]:
    one = SavedCaps(tmp_path / "state")
    yield one
    one.close()


@pytest.mark.moderate
@pytest.mark.parametrize("gpus", [8, 72])
def test_every_gpu_gets_its_cap_and_no_driver_call_is_in_the_decision_path(saved: SavedCaps, gpus: int) -> None:
    stage = Stage(gpus, saved)
    assert stage.until(lambda: bool(stage.node.before_w) and stage.node.caps.complete)
    assert {account.told_w for account in stage.node.caps.accounts.values()} == {600.0}
    assert threading.current_thread().name not in stage.backend.threads
    assert len(stage.backend.threads) == gpus


@pytest.mark.moderate
def test_a_hung_device_holds_up_no_step_and_keeps_its_watts(saved: SavedCaps) -> None:
    stage = Stage(8, saved)
    assert stage.until(lambda: bool(stage.node.before_w) and stage.node.caps.complete)
    uuids = list(stage.node.gpus)
    hung = stage.backend.free[uuids[0]] = threading.Event()
    assert stage.until(lambda: stage.node.gpus[uuids[0]].fault == "timeout")
    decisions = stage.loop.controller.calls
    stage.backend.set_cap_w(uuids[1], 300.0)  # somebody else does
    assert stage.until(lambda: stage.node.counts["changed_by_others"] == 1)
    assert stage.until(lambda: stage.node.caps.accounts[uuids[1]].told_w == 600.0)
    assert stage.until(lambda: stage.loop.controller.calls > decisions + 1)
    assert stage.node.caps.accounts[uuids[0]].kept_w == 600.0
    assert stage.node.caps.kept_w <= 4800.0
    hung.set()
    assert stage.until(lambda: stage.node.gpus[uuids[0]].fault is None)
