"""Driver calls that cannot hold anybody up: each device has a thread of its own.

A call to a driver may hang for minutes, and nothing can end it. Only the thread of that device waits then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from pdplugins.contracts.power import Device, DeviceError, DeviceFault

T = TypeVar("T")
H = TypeVar("H")

LIST_S = 5.0
"""Time in which each device is to describe itself when they are listed; the others do not wait for it longer."""


class Call(Generic[T]):
    """A call that is under way. `done` is set last, and `value` or `error` before it."""

    __slots__ = ("done", "error", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: T | None = None
        self.error: Exception | None = None


class Starts(Protocol):
    """Begins calls. No device has two at once."""

    def __call__(self, uuid: str, work: Callable[[], T]) -> Call[T]:
        """Begin `work` for one device, and return at once."""
        ...


class DeviceThreads:
    """`Starts` with a thread for each device. They end with the process, whatever they wait for."""

    def __init__(self) -> None:
        self._queues: dict[str, SimpleQueue[Callable[[], None]]] = {}

    def __call__(self, uuid: str, work: Callable[[], T]) -> Call[T]:
        """Begin `work` in the thread of one device."""
        call = Call[T]()

        def run() -> None:
            try:
                call.value = work()
            except Exception as error:  # whoever asked gets it
                call.error = error
            call.done = True

        if (queue := self._queues.get(uuid)) is None:
            queue = self._queues[uuid] = SimpleQueue()
            threading.Thread(target=_serve, args=(queue,), name=f"power {uuid}", daemon=True).start()
        queue.put(run)
        return call


def finished(call: Call[T], within_s: float, uuid: str = "", late: str = "no answer") -> T:
    """Wait for a call to a driver. Raises DeviceError when it takes too long, or what the call raised.

    :param uuid: of its device; empty for the driver as a whole.
    :param late: says in that error what did not come.
    """
    return _outcome(call, time.monotonic() + within_s, _late(uuid, within_s, late))


def each_finished(starts: Starts, works: Mapping[str, Callable[[], T]], within_s: float) -> dict[str, T | DeviceError]:
    """Do something with several devices at once. Return by UUID what came of it, or what is wrong with a device.

    :param within_s: for all of them together.
    """
    until_s = time.monotonic() + within_s
    told: dict[str, T | DeviceError] = {}
    for uuid, call in {uuid: starts(uuid, work) for uuid, work in works.items()}.items():
        try:
            told[uuid] = _outcome(call, until_s, _late(uuid, within_s))
        except DeviceError as error:
            told[uuid] = error
    return told


def described(
    starts: Starts, handles: Mapping[str, H], describe: Callable[[str, H], Device]
) -> tuple[tuple[Device, ...], dict[str, DeviceError]]:
    """Let every device describe itself. Return those that did, and what is wrong with the others, by UUID.

    :param handles: what the driver calls each device, by UUID.
    """
    works = {uuid: partial(describe, uuid, handle) for uuid, handle in handles.items()}
    told = each_finished(starts, works, LIST_S)
    failed = {uuid: one for uuid, one in told.items() if isinstance(one, DeviceError)}
    return tuple(one for one in told.values() if isinstance(one, Device)), failed


def _late(uuid: str, within_s: float, what: str = "no answer") -> DeviceError:
    return DeviceError(uuid, DeviceFault.TIMEOUT, f"{what} within {within_s:g} s")


def _outcome(call: Call[T], until_s: float, late: DeviceError) -> T:
    while not call.done:
        if time.monotonic() > until_s:
            raise late
        time.sleep(0.002)
    if call.error is not None:
        raise call.error
    return call.value  # type: ignore[return-value]


def _serve(queue: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        queue.get()()
