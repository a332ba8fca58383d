"""The requests that decode together on one engine, advanced any number of steps at once."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush

from pdplugins.sim.flight import Flight
from pdplugins.sim.records import Gaps
from pdplugins.sim.steps import Line


class DecodeBatch:
    """A batch at the end of a step. Every step gives each member one token."""

    __slots__ = ("_gap_at", "_gap_of", "_gaps", "_new", "before", "context", "last", "leaves", "size", "steps", "time")

    def __init__(self, gaps: Gaps) -> None:
        self.size = 0
        self.context = 0
        """Tokens in the KV cache, over all members."""
        self.time = 0
        """When the last step ended: now, or up to one step ahead of it."""
        self.last = 0
        """When the members that are not new got their last token."""
        self.before = 0
        """When they got the one before."""
        self.steps = 0
        self.leaves: list[tuple[int, int, Flight]] = []
        """Heap of (step after which it leaves, order of joining, member)."""
        self._new: list[Flight] = []
        self._gaps = gaps
        # Largest gaps so far: steps ascending, gaps falling. The largest since step s is the first at or after s.
        self._gap_at: list[int] = []
        self._gap_of: list[int] = []

    def join(self, flight: Flight, order: int) -> None:
        """Let a request decode from the next step on."""
        flight.order = order
        flight.since = self.steps + 1
        self.size += 1
        self.context += flight.context
        heappush(self.leaves, (self.steps + flight.stop - flight.emitted, order, flight))
        self._new.append(flight)

    def advance(self, line: Line, steps: int, end: int) -> None:
        """Make `steps` steps, the last of which ends at `end`, with nothing else in them."""
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
            at, of = self._gap_at, self._gap_of
            while of and of[-1] <= longest:
                of.pop()
                at.pop()
            at.append(self.steps)
            of.append(longest)
            self._gaps.means.append((end - first_end) / regular)
            self._gaps.counts.append(regular * size)
            self.before = end - longest if regular > 1 else first_end
        self.context = context + steps * size
        self.time = self.last = end

    def one_step(self, end: int) -> None:
        """Make one step that other work takes part in."""
        self._irregular(end)
        self.steps += 1
        self.context += self.size
        self.time = self.last = end

    def leaving(self) -> list[Flight]:
        """Take out and return the members whose part is done, in the order of joining."""
        gone: list[Flight] = []
        leaves = self.leaves
        while leaves and leaves[0][0] == self.steps:
            flight = heappop(leaves)[2]
            self._settle(flight, flight.stop)
            gone.append(flight)
        return gone

    def remove(self, flight: Flight) -> None:
        """Take out a member before its part is done."""
        for place, (leave, _, member) in enumerate(self.leaves):
            if member is flight:
                self.leaves[place] = self.leaves[-1]
                self.leaves.pop()
                heapify(self.leaves)
                self._settle(flight, flight.stop - (leave - self.steps))
                return

    def undo_step(self) -> None:
        """Take back the last step, which has not ended yet and never will."""
        old = []
        for leave, order, flight in self.leaves:
            if flight.since == self.steps and flight not in self._new:
                self._new.append(flight)
            old.append((leave if flight in self._new else leave + 1, order, flight))
        self.leaves = old
        self.last = self.before

    def latest(self) -> Flight:
        """Return the member that joined last."""
        return max(self.leaves, key=lambda entry: entry[1])[2]

    def members(self) -> list[Flight]:
        """Return all members in the order of joining."""
        return [flight for _, _, flight in sorted(self.leaves, key=lambda entry: entry[1])]

    def _settle(self, flight: Flight, emitted: int) -> None:
        self.size -= 1
        if self._new and flight in self._new:  # has not had a token here
            self.context -= flight.context
            self._new.remove(flight)
            return
        flight.kv += emitted - flight.emitted
        flight.emitted = emitted
        flight.last_token = self.last
        self.context -= flight.context
        place = bisect_left(self._gap_at, flight.since + 1)
        if place < len(self._gap_at):
            flight.gap = max(flight.gap, self._gap_of[place])
        if not self.size:
            self._gap_at.clear()
            self._gap_of.clear()

    def _irregular(self, end: int) -> None:
        """Note the gaps of the step that ends at `end`, where they are not its duration."""
        old = self.size - len(self._new)
        for flight in self._new:
            gap = end - flight.last_token
            if gap > flight.gap:
                flight.gap = gap
            self._gaps.means.append(gap)
            self._gaps.counts.append(1)
        self._new.clear()
        if old:
            gap = end - self.last
            self._gaps.add(gap, 1, old)
            self._note(self.steps + 1, gap)
        self.before = self.last

    def _note(self, step: int, gap: int) -> None:
        at, of = self._gap_at, self._gap_of
        while of and of[-1] <= gap:
            of.pop()
            at.pop()
        at.append(step)
        of.append(gap)
