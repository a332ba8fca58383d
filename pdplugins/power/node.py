"""The GPUs of one node, kept within a budget: reads them, changes their caps, and gives each back the cap it had.

`tick` never waits for a driver. It takes in the calls that have come back, and begins the next ones. What a device does
not answer stays at its worst in the transaction, so a hung driver stops neither this loop nor the budget.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pdplugins.contracts.power import Device, DeviceError, DeviceFault, PowerBackend, Reading
from pdplugins.errors import ConfigError, one_line
from pdplugins.power.calls import Call, Starts
from pdplugins.power.saved import SavedCaps
from pdplugins.power.transaction import CapTransaction

GRAIN_W = 0.01
"""Caps that differ by no more are the same. Plans are in whole watts, since firmware may know no others."""
LOOKS = 2
"""Readings in a row that must be within a lowered cap before its watts are free."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a node waits for its devices, in seconds, and how exact they must be."""

    settle_s: float = 0.3
    """From a new cap until a draw below it counts: firmware takes its time, and a GPU may be idle just now."""
    obey_s: float = 3.0
    """From a lowered cap until the draw must be below it; then the change is rolled back."""
    rest_s: float = 5.0
    """After a change that failed, until the next one."""
    call_s: float = 1.0
    """From the beginning of a driver call until the device counts as hung."""
    poll_s: float = 0.1
    """Between two readings of a device that has settled."""
    tolerance_w: float = 15.0
    """By which the draw of a device that keeps its cap may exceed it: sensors and firmware are that exact."""


def nearest_w(device: Device, floor_w: float, cap_w: float) -> float:
    """Return the cap nearest to a wanted one, in watts, that a device takes and that is not below the floor."""
    return max(min(cap_w, device.max_w), device.min_w, floor_w)


class Gpu:
    """One device, and what is known of it."""

    __slots__ = (
        "_call",
        "began_s",
        "device",
        "fault",
        "looks",
        "lost",
        "reading",
        "refusal",
        "rests_s",
        "stuck",
        "told_s",
        "wanted_w",
        "why",
    )

    def __init__(self, device: Device) -> None:
        self.device = device
        self.reading: Reading | None = None
        self.fault: DeviceFault | None = None
        """What was wrong the last time; None when it answered."""
        self.why = ""
        self.refusal = ""
        """Why the last write failed; empty when it did not."""
        self.looks = 0
        """Readings in a row that say the same: within a cap that is new, or beyond one that was obeyed."""
        self.lost = False
        """Whether it fell silent during a change, which was rolled back, and has not answered since."""
        self.stuck = False
        """Whether it may draw more than it should, and nothing tells that this ends."""
        self.told_s = -math.inf
        """When its cap changed last."""
        self.rests_s = -math.inf
        """Until when nothing is written, after a write that failed."""
        self._call: Call[Reading] | None = None
        self.began_s = -math.inf
        """When its last call began."""
        self.wanted_w: float | None = None
        """The cap that the call under way sets; None for a reading."""

    @property
    def call(self) -> Call[Reading] | None:
        """The call that is under way."""
        return self._call

    def begin(self, call: Call[Reading], now_s: float, cap_w: float | None) -> None:
        """Note a call that has begun."""
        self._call, self.began_s, self.wanted_w = call, now_s, cap_w

    def end(self) -> None:
        """The call has come back."""
        self._call = None


class PowerNode:
    """The GPUs of one node. Use from one thread; call `tick` several times a second.

    :param devices: those that take part; the others are left alone.
    :param budget_w: what all may draw together.
    :param saved: where the caps from before are kept; None where nothing is ever written (`writes` is False).
    :param floor_w: no cap is set below it, whatever a device takes.
    """

    def __init__(
        self,
        backend: PowerBackend,
        devices: Iterable[Device],
        budget_w: float,
        starts: Starts,
        *,
        saved: SavedCaps | None,
        patience: Patience = Patience(),
        floor_w: float = 0.0,
    ) -> None:
        self.gpus = {device.uuid: Gpu(device) for device in devices}
        self.caps: CapTransaction[str] = CapTransaction(budget_w, GRAIN_W)
        self.counts: Counter[str] = Counter()
        """``write``, ``rollback``, ``changed_by_others``, ``over_cap``, and the faults of devices."""
        self.patience = patience
        self._floor_w = floor_w
        self._backend = backend
        self._starts = starts
        self._saved = saved
        self._before_w: dict[str, float] = {}
        self._held_until_s = -math.inf

    @property
    def ready(self) -> bool:
        """Whether the cap of every device is known."""
        return all(gpu.reading is not None for gpu in self.gpus.values())

    @property
    def kept_w(self) -> float:
        """The most that all devices may draw now. One that has not told its cap counts at the highest it takes."""
        silent = [gpu.device.max_w for uuid, gpu in self.gpus.items() if uuid not in self.caps.accounts]
        return self.caps.kept_w + math.fsum(silent)

    @property
    def writes(self) -> bool:
        """Whether caps are set here."""
        return self._saved is not None

    @property
    def before_w(self) -> Mapping[str, float]:
        """The caps that were there before the first change."""
        return self._before_w

    def keep_before(self) -> None:
        """Write down the caps that are there now, once all are known. Those of a process that was killed stay."""
        present = {uuid: account.told_w for uuid, account in self.caps.accounts.items()}
        if self._saved is not None:
            saved = self._saved.load()
            self._before_w = present | {uuid: watts for uuid, watts in saved.items() if uuid in self.gpus}
            self._saved.save(saved | self._before_w)

    # --- what is wanted ----------------------------------------------------------------------------------------------

    def aim(self, caps_w: Mapping[str, float], now_s: float) -> bool:
        """Want these caps, in whole watts. False while a change that failed is being rolled back.

        Raises ConfigError when the caps exceed the budget or a device's limits; then nothing is touched.
        """
        self.check(caps_w)
        if now_s < self._held_until_s:
            return False
        self.caps.aim({uuid: max(math.floor(cap_w), self._lowest_w(uuid)) for uuid, cap_w in caps_w.items()})
        return True

    def fit(self) -> None:
        """Want lower caps where those that are wanted exceed the budget, each by the same share of what it may fall.

        A policy may want too much, or nothing at all, and the budget may have become smaller. What a GPU may draw that
        does not come down, the others make room for, as for a lost one: both count at their most. Nothing of that
        waits for the end of a rollback: lower caps are always safe.
        """
        lost_w = {uuid: account.kept_w for uuid, account in self.caps.accounts.items() if account.lost}
        self._fit_beside(lost_w)
        stuck = {uuid: self.caps.accounts[uuid] for uuid, gpu in self.gpus.items() if gpu.stuck}
        self._fit_beside({uuid: max(one.target_w, one.kept_w) for uuid, one in stuck.items()} | lost_w)

    def _fit_beside(self, fixed_w: Mapping[str, float]) -> None:
        """Lower what is wanted of the others until all fits, where some count at given watts whatever is wanted."""
        wanted = {uuid: account.target_w for uuid, account in self.caps.accounts.items()} | dict(fixed_w)
        budget_w, total_w = self.caps.budget_w, math.fsum(wanted.values())
        if budget_w is None or total_w <= budget_w + GRAIN_W:
            return
        lowest = {uuid: min(self._lowest_w(uuid), watts) for uuid, watts in wanted.items()} | dict(fixed_w)
        least_w = math.fsum(lowest.values())
        share = max(budget_w - least_w, 0.0) / (total_w - least_w) if total_w > least_w else 0.0
        fitted = {uuid: math.floor(low_w + share * (wanted[uuid] - low_w)) for uuid, low_w in lowest.items()}
        self.caps.aim({uuid: max(watts, lowest[uuid]) for uuid, watts in fitted.items() if uuid not in fixed_w})

    def _lowest_w(self, uuid: str) -> float:
        return max(self.gpus[uuid].device.min_w, self._floor_w)

    def check(self, caps_w: Mapping[str, float]) -> None:
        """Raise ConfigError when these caps may not be set."""
        for uuid, cap_w in caps_w.items():
            low_w, high_w = self._lowest_w(uuid), self.gpus[uuid].device.max_w
            if not low_w <= cap_w <= high_w:
                raise ConfigError(f"{uuid}: a cap of {cap_w:g} W is outside its limits, {low_w:g} to {high_w:g} W")
        wanted = {uuid: account.target_w for uuid, account in self.caps.accounts.items()} | dict(caps_w)
        if self.caps.budget_w is not None and math.fsum(wanted.values()) > self.caps.budget_w + GRAIN_W:
            raise ConfigError(
                f"caps of {math.fsum(wanted.values()):g} W together exceed the budget of {self.caps.budget_w:g} W"
            )

    def give_back(self, allowed_w: float | None = None) -> None:
        """Want the caps from before. No cap rises until its watts are free.

        :param allowed_w: what all may draw from now on. Without it the sum of the caps from before, where that is more
            than the budget.
        """
        caps_w = {uuid: self.back_w(uuid) for uuid in self._before_w}
        if allowed_w is None:
            allowed_w = max(self.caps.budget_w or 0.0, math.fsum(caps_w.values()))
        self.caps.budget_w = allowed_w + GRAIN_W * len(caps_w)
        self._count_silent()
        self.caps.aim(caps_w)
        for gpu in self.gpus.values():
            gpu.rests_s = -math.inf
        self._held_until_s = math.inf

    def back_w(self, uuid: str) -> float:
        """Return the cap that a device gets back: the one from before, as near as its limits and the floor let it."""
        return nearest_w(self.gpus[uuid].device, self._floor_w, self._before_w[uuid])

    def _count_silent(self) -> None:
        """Count the devices that never told their cap at the highest they take: others get nothing on their account."""
        for uuid, gpu in self.gpus.items():
            if uuid not in self.caps.accounts:
                gpu.lost = True
                self.caps.open(uuid, gpu.device.max_w)
                self.caps.lost(uuid, gpu.device.max_w)

    @property
    def not_back(self) -> list[str]:
        """The devices that do not have the cap from before, or do not say so; those that only wait last."""
        missing = [uuid for uuid in self._before_w if not self._is_back(uuid)]
        return sorted(missing, key=self._waits)

    def _waits(self, uuid: str) -> bool:
        """Tell whether all is well with a device, and only the watts for its cap are not free."""
        account, gpu = self.caps.accounts.get(uuid), self.gpus[uuid]
        if account is None or gpu.fault is not None or gpu.refusal:
            return False
        return account.writing_w is None and account.target_w > account.told_w

    def _is_back(self, uuid: str) -> bool:
        account = self.caps.accounts.get(uuid)
        return (
            account is not None
            and account.writing_w is None
            and account.known
            and abs(account.told_w - self.back_w(uuid)) <= GRAIN_W
            and self.gpus[uuid].fault is None
        )

    def forget(self) -> None:
        """Remove what was saved, if every cap has been given back."""
        if self._saved is None or self.not_back:
            return
        if others := {uuid: watts for uuid, watts in self._saved.load().items() if uuid not in self.gpus}:
            self._saved.save(others)
        else:
            self._saved.clear()

    # --- what happens ------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Take in what has come back, see to changes that are too late, and begin what is due. Never waits."""
        for uuid, gpu in self.gpus.items():
            self._take_in(uuid, gpu, now_s)
            gpu.stuck = self._is_stuck(uuid, gpu, now_s)
        self._roll_back_late(now_s)
        if self.writes and self._before_w:
            for uuid, cap_w in self.caps.due():
                gpu = self.gpus[uuid]
                if uuid in self._before_w and gpu.call is None and now_s >= gpu.rests_s:
                    self.caps.writes(uuid, cap_w)
                    gpu.begin(self._starts(uuid, self._write(uuid, cap_w)), now_s, cap_w)
        for uuid, gpu in self.gpus.items():
            if gpu.call is None and (now_s - gpu.began_s >= self.patience.poll_s or self._awaited(uuid, gpu)):
                gpu.begin(self._starts(uuid, self._read(uuid)), now_s, None)

    def _awaited(self, uuid: str, gpu: Gpu) -> bool:
        """Tell whether other caps wait for the draw of a device, which answers: then it is read at every tick."""
        return gpu.fault is None and uuid in self.caps.accounts and not self.caps.settled(uuid)

    def _read(self, uuid: str) -> Callable[[], Reading]:
        return lambda: self._backend.read(uuid)

    def _write(self, uuid: str, cap_w: float) -> Callable[[], Reading]:
        def work() -> Reading:
            self._backend.set_cap_w(uuid, cap_w)
            return self._backend.read(uuid)  # a driver may accept a cap and not keep it

        return work

    def _take_in(self, uuid: str, gpu: Gpu, now_s: float) -> None:
        call, patience = gpu.call, self.patience
        if call is None:
            return
        if not call.done:
            if now_s - gpu.began_s > patience.call_s and gpu.fault is not DeviceFault.TIMEOUT:
                self._fault(gpu, DeviceError(uuid, DeviceFault.TIMEOUT, f"no answer within {patience.call_s:g} s"))
            return
        gpu.end()
        if call.error is not None or call.value is None:
            self._failed(uuid, gpu, call.error or RuntimeError("it answered nothing"), now_s)
            return
        gpu.reading, gpu.fault, gpu.why, gpu.lost = call.value, None, "", False
        if uuid not in self.caps.accounts:  # what it was told just before we came is not known
            self.caps.open(uuid, call.value.cap_w, kept_w=gpu.device.max_w)
            gpu.told_s = now_s
            return
        self._seen(uuid, gpu, call.value, now_s)

    def _seen(self, uuid: str, gpu: Gpu, reading: Reading, now_s: float) -> None:
        """Take in what a device says of its cap and its draw."""
        account, patience = self.caps.accounts[uuid], self.patience
        differs = abs(reading.cap_w - account.told_w) > GRAIN_W
        if gpu.wanted_w is not None or differs or not account.known:
            if gpu.wanted_w is None and account.known:
                self.counts["changed_by_others"] += 1
            elif gpu.wanted_w is not None and abs(reading.cap_w - gpu.wanted_w) > GRAIN_W:
                why = f"it took a cap of {gpu.wanted_w:g} W and has {reading.cap_w:g} W"
                self._rest(uuid, gpu, DeviceError(uuid, DeviceFault.REFUSED, why), now_s)
            elif gpu.wanted_w is not None:
                gpu.refusal = ""
                self.counts["write"] += 1
            self.caps.has(uuid, reading.cap_w)
            gpu.told_s, gpu.looks = now_s, 0
            return
        within = reading.draw_w <= reading.cap_w + patience.tolerance_w
        early = gpu.began_s < gpu.told_s + patience.settle_s
        settled = self.caps.settled(uuid)
        gpu.looks = gpu.looks + 1 if within is not settled and not early else 0
        if gpu.looks < LOOKS:
            return
        gpu.looks = 0
        if settled:
            self.counts["over_cap"] += 1
            self.caps.draws(uuid, reading.draw_w)
            gpu.told_s = now_s
        else:
            self.caps.obeys(uuid)

    def _failed(self, uuid: str, gpu: Gpu, error: Exception, now_s: float) -> None:
        known = isinstance(error, DeviceError)
        told = error if known else DeviceError(uuid, DeviceFault.DRIVER, f"{type(error).__name__}: {one_line(error)}")
        assert isinstance(told, DeviceError)  # noqa: S101 - for the type checker
        if gpu.wanted_w is None:
            self._fault(gpu, told)
            return
        account = self.caps.accounts[uuid]
        lowers = gpu.wanted_w < account.told_w
        self.caps.failed(uuid)
        gpu.told_s, gpu.looks = now_s, 0
        self._rest(uuid, gpu, told, now_s)
        if lowers:
            self._roll_back(now_s)

    def _rest(self, uuid: str, gpu: Gpu, error: DeviceError, now_s: float) -> None:
        self._fault(gpu, error)
        gpu.refusal = str(error)
        gpu.rests_s = now_s + self.patience.rest_s

    def _fault(self, gpu: Gpu, error: DeviceError) -> None:
        gpu.fault, gpu.why = error.fault, str(error)
        self.counts[error.fault] += 1

    def _is_stuck(self, uuid: str, gpu: Gpu, now_s: float) -> bool:
        """Tell whether a lower cap was refused or hangs, or the draw has not followed it for too long."""
        if (account := self.caps.accounts.get(uuid)) is None:
            return False
        since_s = gpu.began_s if account.writing_w is not None else gpu.told_s
        return bool(gpu.refusal) or (not self.caps.settled(uuid) and since_s < now_s - self.patience.obey_s)

    def _roll_back_late(self, now_s: float) -> None:
        """Roll back changes that are too late. A lost GPU has that once, and then waits alone, counted at its most."""
        late = [uuid for uuid in self.caps.accounts if self._late(uuid, now_s)]
        for uuid in late:
            if self.gpus[uuid].fault is not None:
                self.gpus[uuid].lost = True
                self.caps.lost(uuid, self.gpus[uuid].device.max_w)
        if late:
            self._roll_back(now_s)

    def _late(self, uuid: str, now_s: float) -> bool:
        gpu, account = self.gpus[uuid], self.caps.accounts[uuid]
        if account.writing_w is not None or gpu.lost or self.caps.settled(uuid):
            return False
        # One that has the cap to go back to draws too much all the same. It counts at its draw, and nothing waits.
        changes = gpu.fault is not None or abs(account.told_w - account.standing_w) > GRAIN_W
        return changes and gpu.told_s < now_s - self.patience.obey_s

    def _roll_back(self, now_s: float) -> None:
        if now_s < self._held_until_s:
            return
        self._held_until_s = now_s + self.patience.rest_s
        self.counts["rollback"] += 1
        self.caps.roll_back()
