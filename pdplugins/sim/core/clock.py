"""Virtual time and the one queue of events.

Time is a whole number of ticks of 10 femtoseconds, so sums of step times are exact in any order. One formula for a
thousand decode steps gives the same time, to the last bit, as adding them one by one. Events at the same instant have
equal times. The queue is ordered by (time, kind, sequence), so a run never depends on hashes or addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any, Final

TICKS_PER_S: Final = 1e14
"""Ticks of 10 fs. They are short enough to keep six digits of the slope of a decode step, about 1e-8 s per context
token, and long enough for half a day in a machine word. A float, so that compiled code divides as Python does."""

ACTION: Final = 0
"""Anything but a step or a transfer. It sorts before `STEP`, so work that arrives as a step ends joins the next one."""
TRANSFER: Final = 1
"""A KV transfer ends."""
STEP: Final = 2
"""A step of an engine ends."""

Event = tuple[int, int, int, Any, Any]
"""(time, kind, sequence, target, argument)."""


def ticks(seconds: float) -> int:
    """Convert non-negative `seconds` to ticks."""
    return int(seconds * TICKS_PER_S + 0.5)  # not round(), which compiled code has to call


def seconds(time: int) -> float:
    """Convert `time` from ticks to seconds."""
    return time / TICKS_PER_S


class Events:
    """The queue, and the time of the event that is being handled."""

    __slots__ = ("heap", "now", "sequence")

    def __init__(self) -> None:
        self.heap: list[Event] = []
        self.now = 0
        self.sequence = 0

    def push(self, time: int, kind: int, target: Any, argument: Any) -> None:
        """Queue an event. Its `kind` says how to handle it."""
        self.sequence += 1
        heappush(self.heap, (time, kind, self.sequence, target, argument))

    def call_at(self, time: int, action: Callable[[Any], None], argument: Any = None) -> None:
        """Call ``action(argument)`` at `time`."""
        self.push(time, ACTION, action, argument)
