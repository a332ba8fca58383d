"""Power caps: how much they slow GPUs, how they change safely, and how much energy the GPUs have drawn."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.power import GpuView
from pdplugins.contracts.workers import Role
from pdplugins.power.transaction import CapTransaction
from pdplugins.sim.core.clock import Events, seconds, ticks
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.worker import Worker


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

    def draw_w(self, phase: Role, busy: bool, cap_w: float) -> float:
        """Return the draw of a GPU under `cap_w`, by what it does now."""
        wanted = (self.prefill_w if phase is Role.PREFILL else self.decode_w) if busy else self.idle_w
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

    __slots__ = ("_charged", "_joules", "cap_w", "curve", "index", "version", "worker", "works_w")

    def __init__(self, index: int, worker: Worker, curve: PowerCurve) -> None:
        self.index = index
        self.worker = worker
        self.curve = curve
        self.cap_w = curve.cap_w[-1]
        """The cap that it was last given."""
        self.works_w = self.cap_w
        """The cap that sets its speed and its draw. Every new cap counts once it has settled."""
        self.version = 0
        """Number of caps given so far, so that a timer can tell whether a newer cap has replaced its own."""
        self._charged = worker.started, 0, 0
        self._joules = 0.0

    def view(self) -> GpuView:
        """Return what a power controller sees of this GPU."""
        engine = self.worker.engine
        phase = Role.PREFILL if engine.step.chunks else Role.DECODE  # a worker may do either, whatever its role
        draw_w = self.curve.draw_w(phase, engine.busy, self.works_w)
        return GpuView(self.index, self.worker.view.role, draw_w, self.cap_w)

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


Key = tuple[str, int]
"""A worker, and one of its GPUs."""


class Power:
    """The caps of all GPUs of a fleet. They change in a `CapTransaction`, as those of real devices do.

    A new GPU has the cap of its profile until a plan names it: until then no plan counts its watts.

    :param curve: the power curve of all GPUs. When None, each GPU has the curve of its worker's profile.
    """

    def __init__(self, events: Events, fleet: Fleet, curve: PowerCurve | None) -> None:
        self._events = events
        self._fleet = fleet
        self._curve = curve
        self._devices: dict[Key, Device] = {}
        self._caps: CapTransaction[Key] = CapTransaction()

    def devices(self) -> list[Device]:
        """Return the GPUs that workers hold now, in index order."""
        held = []
        for key, device in self._all():
            if device.worker.gone:
                self._caps.close(key)
            else:
                held.append(device)
        return sorted(held, key=lambda device: device.index)

    def kept_w(self) -> float:
        """Return the largest sum of watts that the planned GPUs may draw now."""
        self.devices()
        return self._caps.kept_w

    def follow(self, caps_w: Mapping[int, float], *, at_once: bool = False) -> None:
        """Bring the GPUs to `caps_w`. `at_once` is for the caps at start, before anything runs."""
        now, devices, caps = self._events.now, self.devices(), self._caps
        wanted = {
            _key(device): cap_w
            for device in devices
            if (cap_w := caps_w.get(device.index)) is not None and math.isfinite(cap_w) and cap_w > 0
        }
        for key in wanted:
            if key not in caps.accounts:  # no plan has counted its watts so far, so its cap rises from zero
                caps.open(key, 0.0)
                self._devices[key].tell(0.0)
                self._devices[key].work(self._devices[key].curve.cap_w[0], now)
        caps.aim(wanted)
        if at_once:
            for key, cap_w in wanted.items():
                self._tell(key, cap_w)
                caps.obeys(key)
                self._devices[key].work(cap_w, now)
        for worker in {device.worker.view.id: device.worker for device in devices}.values():
            self._slow(worker)
        self._write()

    def energy_j(self, now: int) -> float | None:
        """Return the joules that all GPUs have drawn; None where a profile does not say what they draw."""
        joules = sum(device.charge(now) for _, device in self._all())
        return joules if math.isfinite(joules) else None

    def _all(self) -> Iterator[tuple[Key, Device]]:
        for worker in (*self._fleet.workers.values(), *self._fleet.gone):
            for gpu in worker.gpus:
                key = worker.view.id, gpu
                if (device := self._devices.get(key)) is None:
                    curve = self._curve or power_curve(worker.hardware.perf)
                    device = self._devices[key] = Device(gpu, worker, curve)
                yield key, device

    def _write(self) -> None:
        """Set the caps that may change now. A simulated device takes them at once, and obeys once it has settled."""
        self.devices()
        for key, cap_w in self._caps.due():
            self._tell(key, cap_w)
            device = self._devices[key]
            settled = self._events.now + ticks(device.curve.settle_s)
            self._events.call_at(settled, self._settled, (device, device.version))

    def _tell(self, key: Key, cap_w: float) -> None:
        self._caps.writes(key, cap_w)
        self._caps.has(key, cap_w)
        self._devices[key].tell(cap_w)

    def _settled(self, told: tuple[Device, int]) -> None:
        device, version = told
        if device.version != version:
            return
        device.work(device.cap_w, self._events.now)
        self._slow(device.worker)
        if not device.worker.gone:
            self._caps.obeys(_key(device))
            self._write()

    def _slow(self, worker: Worker) -> None:
        """Run the engine of a worker as fast as the lowest cap of its GPUs allows."""
        devices = [self._devices[worker.view.id, gpu] for gpu in worker.gpus]
        slowest = min(devices, key=lambda device: device.works_w)
        slow = slowest.curve.slow(slowest.works_w)
        if not worker.gone and worker.engine.slow != slow:
            worker.engine.set_slow(*slow)


def _key(device: Device) -> Key:
    return device.worker.view.id, device.index


def _at(xs: tuple[float, ...], ys: tuple[float, ...], x: float) -> float:
    if len(xs) == 1:
        return ys[0]
    x = min(max(x, xs[0]), xs[-1])
    index = min(bisect_right(xs, x), len(xs) - 1)
    left, right = xs[index - 1], xs[index]
    return ys[index - 1] + (ys[index] - ys[index - 1]) * (x - left) / (right - left)
