"""Driver calls that cannot hold anybody up: each device has a thread of its own.

A call to a driver may hang for minutes, and nothing can end it. Only the thread of that device waits then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


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


def _serve(queue: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        queue.get()()
