"""Power caps: how much they slow GPUs, how they change safely, and how much energy the GPUs have drawn."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.power import GpuView
from pdplugins.contracts.workers import Role
from pdplugins.sim.core.clock import Events, seconds, ticks
from pdplugins.sim.core.fleet import Fleet, Worker


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """How much longer each phase takes under a cap, and what it draws. Linear between the points."""

    cap_w: tuple[float, ...]
    """Caps, ascending. GPUs start with the last one."""
    prefill_slow: tuple[float, ...]
    """Time of a prefill step over its time without cap, at each of `cap_w`."""
    decode_slow: tuple[float, ...]
    settle_s: float = 0.3
    """Seconds from setting a cap until the device keeps it."""
    idle_w: float = 100.0
    prefill_w: float = 700.0
    """Draw of prefill without cap."""
    decode_w: float = 450.0

    def slow(self, cap_w: float) -> tuple[float, float]:
        """Return the slowdown of prefill and of decode under `cap_w`."""
        return _at(self.cap_w, self.prefill_slow, cap_w), _at(self.cap_w, self.decode_slow, cap_w)

    def draw_w(self, role: Role, busy: bool, cap_w: float) -> float:
        """Return the draw of a GPU under `cap_w`."""
        wanted = (self.prefill_w if role is Role.PREFILL else self.decode_w) if busy else self.idle_w
        return min(wanted, cap_w)


NO_EFFECT = PowerCurve((math.inf,), (1.0,), (1.0,), 0.0, math.nan, math.nan, math.nan)
"""For GPUs whose profile has no power table: caps slow nothing, and the draw is unknown."""


def power_curve(perf: PerfModel) -> PowerCurve:
    """Return what power caps do to the GPUs of `perf`."""
    if (power := perf.power()) is None:
        return NO_EFFECT
    return PowerCurve(
        cap_w=power.cap_w,
        prefill_slow=power.prefill_slow,
        decode_slow=power.decode_slow,
        settle_s=power.settle_s,
        idle_w=power.idle_w,
        prefill_w=power.prefill_w,
        decode_w=power.decode_w,
    )


class Device:
    """One GPU of a worker: its cap, and the energy it has drawn."""

    __slots__ = (
        "_charged", "_joules", "cap_w", "curve", "index", "kept_w", "planned", "target_w", "version", "worker",
        "works_w",
    )  # fmt: skip

    def __init__(self, index: int, worker: Worker, curve: PowerCurve) -> None:
        self.index = index
        self.worker = worker
        self.curve = curve
        self.cap_w = curve.cap_w[-1]
        """The cap that it was last given."""
        self.kept_w = 0.0
        """The most that it may draw now. A lower cap counts once it has settled, a higher one at once."""
        self.works_w = self.cap_w
        """The cap that sets its speed and its draw. Every new cap counts once it has settled."""
        self.target_w = self.cap_w
        """The cap that the controller wants."""
        self.planned = False
        """Whether a plan has named it. Until then it has the cap of a new device, and no plan counts its watts."""
        self.version = 0
        """Number of caps given so far, so that a timer can tell whether a newer cap has replaced its own."""
        self._charged = worker.started, 0, 0
        self._joules = 0.0

    def view(self) -> GpuView:
        """Return what a power controller sees of this GPU."""
        role = self.worker.view.role
        return GpuView(self.index, role, self.curve.draw_w(role, self.worker.engine.busy, self.works_w), self.cap_w)

    def tell(self, cap_w: float) -> None:
        """Note a new cap that was set on the device."""
        self.cap_w = cap_w
        self.version += 1

    def work(self, cap_w: float, now: int) -> None:
        """Run under `cap_w` from now on."""
        self.charge(now)
        self.works_w = cap_w

    def charge(self, now: int) -> float:
        """Add the energy drawn since the last call, and return the joules drawn so far."""
        worker, (since, prefill, decode) = self.worker, self._charged
        curve, cap_w = self.curve, self.works_w
        end = now if worker.ended is None else worker.ended
        worked = worker.engine.worked()
        prefilled, decoded = worked[0] - prefill, worked[1] - decode
        idle = end - since - prefilled - decoded
        for time, wanted_w in ((prefilled, curve.prefill_w), (decoded, curve.decode_w), (idle, curve.idle_w)):
            self._joules += seconds(time) * min(wanted_w, cap_w)
        self._charged = end, *worked
        return self._joules


class Power:
    """The caps of all GPUs of a fleet.

    A change of caps has two phases. Caps that fall are set at once. Caps that rise are set only after all of those have
    settled. So the GPUs together never draw more than the larger of the two plans, the old one and the new one, allows.

    :param curve: the power curve of all GPUs. When None, each GPU has the curve of its worker's profile.
    """

    def __init__(self, events: Events, fleet: Fleet, curve: PowerCurve | None) -> None:
        self._events = events
        self._fleet = fleet
        self._curve = curve
        self._devices: dict[tuple[str, int], Device] = {}

    def devices(self) -> list[Device]:
        """Return the GPUs that workers hold now, in index order."""
        return sorted((d for d in self._all() if not d.worker.gone), key=lambda device: device.index)

    def kept_w(self) -> float:
        """Return the largest sum of watts that the planned GPUs may draw now."""
        return sum(device.kept_w for device in self.devices() if device.planned)

    def follow(self, caps_w: Mapping[int, float], *, at_once: bool = False) -> None:
        """Bring the GPUs to `caps_w`. `at_once` is for the caps at start, before anything runs."""
        now, devices = self._events.now, self.devices()
        for device in devices:
            wanted_w = caps_w.get(device.index)
            if wanted_w is None or not math.isfinite(wanted_w) or wanted_w <= 0:
                continue
            device.target_w = wanted_w
            if not device.planned:  # no plan has counted its watts so far, so its cap rises from zero
                device.planned = True
                device.tell(0.0)
                device.work(device.curve.cap_w[0], now)
            if at_once:
                device.tell(wanted_w)
                device.kept_w = wanted_w
                device.work(wanted_w, now)
            elif device.target_w < device.cap_w:
                device.tell(device.target_w)
                self._later(device, self._lowered)
        for worker in {device.worker.view.id: device.worker for device in devices}.values():
            self._slow(worker)
        self._raise()

    def energy_j(self, now: int) -> float | None:
        """Return the joules that all GPUs have drawn; None where a profile does not say what they draw."""
        joules = sum(device.charge(now) for device in self._all())
        return joules if math.isfinite(joules) else None

    def _all(self) -> Iterator[Device]:
        for worker in (*self._fleet.workers.values(), *self._fleet.gone):
            for gpu in worker.gpus:
                key = worker.view.id, gpu
                if (device := self._devices.get(key)) is None:
                    curve = self._curve or power_curve(worker.hardware.perf)
                    device = self._devices[key] = Device(gpu, worker, curve)
                yield device

    def _later(self, device: Device, action: Callable[[tuple[Device, int]], None]) -> None:
        self._events.call_at(self._events.now + ticks(device.curve.settle_s), action, (device, device.version))

    def _lowered(self, told: tuple[Device, int]) -> None:
        device, version = told
        if device.version == version:
            device.kept_w = device.cap_w
            self._settled(told)
            self._raise()

    def _raise(self) -> None:
        """Raise the caps that are to rise, if every cap that was lowered has settled."""
        devices = [device for device in self.devices() if device.planned]
        if any(device.kept_w > device.cap_w for device in devices):
            return
        for device in devices:
            if device.target_w > device.cap_w:
                device.tell(device.target_w)
                device.kept_w = device.cap_w
                self._later(device, self._settled)

    def _settled(self, told: tuple[Device, int]) -> None:
        device, version = told
        if device.version == version:
            device.work(device.cap_w, self._events.now)
            self._slow(device.worker)

    def _slow(self, worker: Worker) -> None:
        """Run the engine of a worker as fast as the lowest cap of its GPUs allows."""
        devices = [self._devices[worker.view.id, gpu] for gpu in worker.gpus]
        slowest = min(devices, key=lambda device: device.works_w)
        slow = slowest.curve.slow(slowest.works_w)
        if not worker.gone and worker.engine.slow != slow:
            worker.engine.set_slow(*slow)


def _at(xs: tuple[float, ...], ys: tuple[float, ...], x: float) -> float:
    if len(xs) == 1:
        return ys[0]
    x = min(max(x, xs[0]), xs[-1])
    index = min(bisect_right(xs, x), len(xs) - 1)
    left, right = xs[index - 1], xs[index]
    return ys[index - 1] + (ys[index] - ys[index - 1]) * (x - left) / (right - left)
