"""KV transfers between workers. Transfers that leave or enter the same worker share its link fairly.

A transfer moves at the smaller of its shares at both ends, and its fixed latency comes after its last token. Shares are
reckoned anew whenever a transfer starts or ends at one of its ends.
"""

from __future__ import annotations

from collections.abc import Callable
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

    __slots__ = ("_since", "argument", "done", "left", "rate", "sink", "source", "version")

    def __init__(self, source: Port, sink: Port, size: float, done: Callable[[Any], None], argument: Any) -> None:
        self.source = source
        self.sink = sink
        self.left = size
        """Tokens that were left when the rate last changed."""
        self.rate = 0.0
        self.done = done
        self.argument = argument
        self.version = 0
        self._since = 0

    def settle(self, now: int) -> None:
        """Take off what has moved since the rate last changed."""
        self.left = max(self.left - self.rate * ((now - self._since) / TICKS_PER_S), 0.0)
        self._since = now


class Links:
    """All transfers of one simulation."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def start(self, source: Port, sink: Port, size: float, done: Callable[[Any], None], argument: Any) -> Transfer:
        """Move the KV cache of `size` tokens; call ``done(argument)`` when the last one has come."""
        transfer = Transfer(source, sink, size, done, argument)
        source.out.append(transfer)
        sink.into.append(transfer)
        transfer.settle(self._events.now)
        self._share(source, sink)
        return transfer

    def stop(self, transfer: Transfer) -> None:
        """Give up a transfer; `done` is not called."""
        transfer.version += 1
        if transfer in transfer.source.out:
            self._leave(transfer)

    def on_end(self, transfer: Transfer, version: int) -> None:
        """Handle the last token of a transfer, or, when its latency has passed too, its arrival."""
        if version == -1 - transfer.version:
            transfer.done(transfer.argument)
        elif version == transfer.version:
            self._leave(transfer)
            self._events.push(self._events.now + transfer.source.latency, TRANSFER, transfer, -1 - version)

    def _leave(self, transfer: Transfer) -> None:
        transfer.source.out.remove(transfer)
        transfer.sink.into.remove(transfer)
        if transfer.source.out or transfer.sink.into:
            self._share(transfer.source, transfer.sink)

    def _share(self, source: Port, sink: Port) -> None:
        for transfer in dict.fromkeys((*source.out, *sink.into)):
            out, into = transfer.source, transfer.sink
            rate = min(out.tokens_per_s / len(out.out), into.tokens_per_s / len(into.into))
            if rate != transfer.rate:
                self._reschedule(transfer, rate)

    def _reschedule(self, transfer: Transfer, rate: float) -> None:
        now = self._events.now
        transfer.settle(now)
        transfer.rate = rate
        transfer.version += 1
        end = now + ticks(transfer.left / rate)
        self._events.push(end, TRANSFER, transfer, transfer.version)
