"""The loop of the daemon in this process, over simulated GPUs of which any can hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry

from pdplugins.config import parse
from pdplugins.hosts.power import assembly
from pdplugins.hosts.power.beside import Watch
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
from pdplugins.types import Device, Reading, RoleMove


class Moves(FixedRoles):
    """Roles that stay, and what was wanted of them."""

    def __init__(self, seats: Sequence[assembly.Seat]) -> None:
        super().__init__(seats)
        self.wanted: list[RoleMove] = []

    def propose(self, moves: Sequence[RoleMove], now_s: float) -> None:
        self.wanted += moves


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

    def __init__(self, gpus: int, saved: SavedCaps, watch: Watch | None = None) -> None:
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
        self.metrics = NodeMetrics(CollectorRegistry())
        self.roles = Moves(seats)
        self.loop = PowerLoop(self.node, seats, self.roles, watch, controller, self.metrics, stale_s=5.0)

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> bool:
        end_s = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end_s:
                return False
            self.loop.step(time.monotonic())
            time.sleep(0.005)
        return True
