"""KV transfers between workers. Transfers that leave or enter the same worker share its link fairly.

A transfer moves at the smaller of its shares at both ends, and its fixed latency comes after its last token. Shares are
reckoned anew whenever a transfer starts or ends at one of its ends.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

from pdplugins.sim.clock import TICKS_PER_S, TRANSFER, Events, ticks


class Port:
    """The link of one worker, full duplex."""

    __slots__ = ("into", "latency", "out", "tokens_per_s")

    def __init__(self, tokens_per_s: float, latency_s: float = 0.0) -> None:
        self.tokens_per_s = tokens_per_s
        self.latency = max(ticks(latency_s), 1)
        """Of transfers that leave here."""
        self.out: list[Transfer] = []
        self.into: list[Transfer] = []


class Transfer:
    """KV cache on its way."""

    __slots__ = ("argument", "done", "end", "left", "rate", "shared", "since", "sink", "source", "version")

    def __init__(self, source: Port, sink: Port, size: float, done: Callable[[Any], None], argument: Any) -> None:
        self.source = source
        self.sink = sink
        self.left = size
        """Tokens that were left when the rate last changed."""
        self.rate = 0.0
        self.since = 0
        """When that was."""
        self.end = 0
        """When its last token leaves the link, as things are."""
        self.shared = False
        """Whether others wait for that."""
        self.version = 0
        self.done = done
        self.argument = argument


class Links:
    """All transfers of one simulation.

    A transfer that has its links for itself is one event, its arrival. One that shares them is two: others go faster
    from the moment when its last token has left.
    """

    def __init__(self, events: Events) -> None:
        self._events = events

    def start(self, source: Port, sink: Port, size: float, done: Callable[[Any], None], argument: Any) -> Transfer:
        """Move the KV cache of `size` tokens; call ``done(argument)`` when all of it has come."""
        transfer = Transfer(source, sink, size, done, argument)
        now = transfer.since = self._events.now
        out, into = source.out, sink.into
        out.append(transfer)
        into.append(transfer)
        if len(out) == 1 and len(into) == 1:
            rate, other = source.tokens_per_s, sink.tokens_per_s
            self._reschedule(transfer, rate if rate < other else other)
            return transfer
        for other in [other for other in dict.fromkeys((*out, *into)) if other.end <= now and other is not transfer]:
            self._leave(other)  # long gone, but nobody had to know
        self._share(source, sink)
        return transfer

    def stop(self, transfer: Transfer) -> None:
        """Give up a transfer; `done` is not called."""
        transfer.version += 1
        if transfer in transfer.source.out:
            self._leave(transfer)
            self._share(transfer.source, transfer.sink)

    def on_end(self, transfer: Transfer, version: int) -> None:
        """Handle the last token of a transfer, or, when its latency has passed too, its arrival."""
        if version != transfer.version:
            return
        now = self._events.now
        if now == transfer.end:
            self._leave(transfer)
            self._share(transfer.source, transfer.sink)
            self._events.push(now + transfer.source.latency, TRANSFER, transfer, version)
            return
        out, into = transfer.source.out, transfer.sink.into
        if transfer in out:
            out.remove(transfer)
            into.remove(transfer)
        transfer.done(transfer.argument)

    @staticmethod
    def _leave(transfer: Transfer) -> None:
        transfer.source.out.remove(transfer)
        transfer.sink.into.remove(transfer)

    def _share(self, source: Port, sink: Port) -> None:
        if not source.out and not sink.into:
            return
        for transfer in dict.fromkeys((*source.out, *sink.into)):
            out, into = transfer.source, transfer.sink
            users, takers = len(out.out), len(into.into)
            rate = min(out.tokens_per_s / users, into.tokens_per_s / takers)
            shared = users > 1 or takers > 1
            if rate != transfer.rate or (shared and not transfer.shared):
                transfer.shared = shared
                self._reschedule(transfer, rate)

    def _reschedule(self, transfer: Transfer, rate: float) -> None:
        events = self._events
        now = events.now
        if transfer.rate:
            transfer.left = max(transfer.left - transfer.rate * ((now - transfer.since) / TICKS_PER_S), 0.0)
            transfer.since = now
        transfer.rate = rate
        transfer.version += 1
        end = transfer.end = now + round(transfer.left / rate * TICKS_PER_S)
        arrival = end if transfer.shared else end + transfer.source.latency
        sequence = events.sequence = events.sequence + 1
        heappush(events.heap, (arrival, TRANSFER, sequence, transfer, transfer.version))
