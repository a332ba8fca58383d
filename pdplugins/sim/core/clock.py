"""Virtual time and the one queue of events.

Time is a whole number of ticks of 10 femtoseconds. Sums of step times are then exact, whatever their order: advancing
a thousand decode steps in one formula gives the same time, to the last bit, as adding them one by one, and two things
that happen at the same instant are recognised as such. The queue is ordered by (time, kind, sequence), so a run never
depends on hashes or addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any, Final

TICKS_PER_S: Final = 1e14
"""Ticks of 10 fs: the slope of a decode step, about 1e-8 s per context token, keeps six digits, and half a day is small
enough for a machine word. A float, so that compiled code divides as Python does."""

ACTION: Final = 0
"""Anything but the end of a step. Work that arrives at the very end of a step takes part in the next one."""
TRANSFER: Final = 1
"""A KV transfer ends."""
STEP: Final = 2
"""A step of an engine ends."""

Event = tuple[int, int, int, Any, Any]
"""(time, kind, sequence, target, argument)."""


def ticks(seconds: float) -> int:
    """Return `seconds`, which is not negative, in ticks."""
    return int(seconds * TICKS_PER_S + 0.5)  # not round(), which compiled code has to call


def seconds(time: int) -> float:
    """Return `time`, in ticks, in seconds."""
    return time / TICKS_PER_S


class Events:
    """The queue, and the time of the event that is being handled."""

    __slots__ = ("heap", "now", "sequence")

    def __init__(self) -> None:
        self.heap: list[Event] = []
        self.now = 0
        self.sequence = 0

    def push(self, time: int, kind: int, target: Any, argument: Any) -> None:
        """Queue an event that `kind` says how to handle."""
        self.sequence += 1
        heappush(self.heap, (time, kind, self.sequence, target, argument))

    def call_at(self, time: int, action: Callable[[Any], None], argument: Any = None) -> None:
        """Call ``action(argument)`` at `time`."""
        self.push(time, ACTION, action, argument)
