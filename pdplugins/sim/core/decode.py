"""The requests that decode together on one engine, advanced any number of steps at once."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush
from typing import Final

from pdplugins.sim.core.flight import Flight
from pdplugins.sim.core.records import Gaps
from pdplugins.sim.core.steps import Line

ORDER_BITS: Final = 32
NEVER: Final = 1 << 60
"""A step number that no batch reaches."""


class DecodeBatch:
    """A batch at the end of a step. Every step gives each member one token."""

    __slots__ = (
        "_gap_steps", "_gap_times", "_leaves", "_members", "_new", "_past", "before", "context", "first_leave", "gaps",
        "last", "own_tpots", "size", "steps", "time",
    )  # fmt: skip

    def __init__(self, gaps: Gaps) -> None:
        self.size = 0
        self.context = 0
        """Tokens in the KV cache, over all members."""
        self.time = 0
        """When the last step ended: now, or up to one step ahead of it."""
        self.last = 0
        """When the members that are not new got their last token."""
        self.before = 0
        """When those members got the token before that."""
        self.steps = 0
        self.first_leave = NEVER
        """Step after which the first member leaves."""
        self._leaves: list[int] = []
        """Heap with one number for each member: the step after which it leaves, then its order of joining. One number
        compares faster than a tuple. Members that left early may still be in it, but never at the top."""
        self._members: dict[int, Flight] = {}
        """Members by order of joining, in that order."""
        self._new: list[Flight] = []
        self.own_tpots: dict[int, float] = {}
        """TPOT of each member that has one of its own, by order of joining, s."""
        self.gaps = gaps
        # Only gaps that are larger than all later ones, and their steps. So the largest gap since step s is the first
        # one here from step s on.
        self._gap_steps: list[int] = []
        self._gap_times: list[int] = []
        self._past: tuple[list[int], list[int], list[int]] = ([], [], [])

    def join(self, flight: Flight) -> None:
        """Let a request decode from the next step on."""
        order = self.gaps.joins = self.gaps.joins + 1  # one count for all engines, because requests move between them
        steps = self.steps
        flight.order = order
        flight.since = steps + 1
        leave = flight.leave = steps + flight.stop - flight.emitted
        self.size += 1
        self.context += flight.isl + flight.emitted - 1
        heappush(self._leaves, leave << ORDER_BITS | order)
        if leave < self.first_leave:  # noqa: PLR1730 - min() is slower here
            self.first_leave = leave
        self._members[order] = flight
        self._new.append(flight)
        if flight.tpot_s:
            self.own_tpots[order] = flight.tpot_s

    def advance(self, line: Line, steps: int, end: int) -> None:
        """Make `steps` decode-only steps, the last of which ends at `end`."""
        size, context = self.size, self.context
        if self._new or self.time != self.last:
            first_end = end if steps == 1 else self.time + line.step(context)
            self._irregular(first_end)
            regular = steps - 1
        else:
            regular = steps
            first_end = self.time
        self.steps += steps
        if regular:
            longest = line.step(context + (steps - 1) * size)
            gap_steps, gap_times = self._gap_steps, self._gap_times
            while gap_times and gap_times[-1] <= longest:
                gap_times.pop()
                gap_steps.pop()
            gap_steps.append(self.steps)
            gap_times.append(longest)
            self.gaps.means.append(float(end - first_end) / regular)
            self.gaps.counts.append(regular * size)
            self.before = end - longest if regular > 1 else first_end
        self.context = context + steps * size
        self.time = self.last = end

    def one_step(self, end: int) -> None:
        """Make one step that also prefills."""
        self._irregular(end)
        self.steps += 1
        self.context += self.size
        self.time = self.last = end

    def first_tokens(self, end: int) -> None:
        """Note the first tokens that the step that ends at `end` gives."""
        for flight in self._new:
            if not flight.emitted and flight.first_token != end:
                self.gaps.first_token(flight, end)

    def leaving(self) -> list[Flight]:
        """Take out and return the members whose part is done, in the order of joining."""
        gone: list[Flight] = []
        while self.first_leave == self.steps:
            flight = self._members[self._leaves[0] & (1 << ORDER_BITS) - 1]
            self._settle(flight)
            gone.append(flight)
        return gone

    def remove(self, flight: Flight) -> None:
        """Take out a member before its part is done."""
        self._settle(flight)

    def remember(self) -> None:
        """Remember the largest gaps as they were before the step in progress."""
        self._past = self._gap_steps.copy(), self._gap_times.copy(), [flight.gap for flight in self._new]

    def undo_step(self) -> None:
        """Undo the last step, which was made ahead and will never end."""
        self._gap_steps, self._gap_times, gaps = self._past
        for flight in self.members():
            if flight in self._new:
                continue
            if flight.since == self.steps:
                self._new.append(flight)
                flight.gap = gaps.pop(0)
                if not flight.emitted:
                    flight.first_token = -1
            else:
                flight.leave += 1
        self.last = self.before

    def latest(self) -> Flight:
        """Return the member that joined last."""
        return next(reversed(self._members.values()))

    def members(self) -> list[Flight]:
        """Return all members in the order of joining."""
        return list(self._members.values())

    def _settle(self, flight: Flight) -> None:
        self.size -= 1
        members, leaves = self._members, self._leaves
        del members[flight.order]
        if flight.tpot_s:
            del self.own_tpots[flight.order]
        while leaves and leaves[0] & (1 << ORDER_BITS) - 1 not in members:
            heappop(leaves)
        self.first_leave = leaves[0] >> ORDER_BITS if leaves else NEVER
        if self._new and flight in self._new:  # it has not got a token here
            self.context -= flight.isl + flight.emitted - 1
            self._new.remove(flight)
            return
        emitted = flight.stop - (flight.leave - self.steps)
        flight.kv += emitted - flight.emitted
        flight.emitted = emitted
        flight.last_token = self.last
        self.context -= flight.isl + emitted - 1
        place = bisect_left(self._gap_steps, flight.since + 1)
        if place < len(self._gap_steps):
            gap = self._gap_times[place]
            if gap > flight.gap:  # noqa: PLR1730 - max() is slower here
                flight.gap = gap
        if not self.size:
            self._gap_steps.clear()
            self._gap_times.clear()

    def _irregular(self, end: int) -> None:
        """Note the gaps of the step that ends at `end`, where they differ from the duration of the step."""
        old = self.size - len(self._new)
        self.first_tokens(end)
        for flight in self._new:
            if not flight.emitted:
                continue
            gap = end - flight.last_token
            if gap > flight.gap:  # noqa: PLR1730 - max() is slower here
                flight.gap = gap
            self.gaps.means.append(gap)
            self.gaps.counts.append(1)
        self._new.clear()
        if old:
            gap = end - self.last
            self.gaps.add(gap, 1, old)
            self._note(self.steps + 1, gap)
        self.before = self.last

    def _note(self, step: int, gap: int) -> None:
        gap_steps, gap_times = self._gap_steps, self._gap_times
        while gap_times and gap_times[-1] <= gap:
            gap_times.pop()
            gap_steps.pop()
        gap_steps.append(step)
        gap_times.append(gap)
