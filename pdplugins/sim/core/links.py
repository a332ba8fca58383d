"""KV transfers between workers. Transfers that leave or enter the same worker share its link fairly.

A transfer runs at the smaller of its two shares, one at the sender's link and one at the receiver's. Its fixed latency
follows its last token. The shares on a link are computed again whenever a transfer starts or ends there.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

from pdplugins.sim.core.clock import TICKS_PER_S, TRANSFER, Events, ticks


class Port:
    """The link of one worker, full duplex."""

    __slots__ = ("due", "into", "latency", "out", "tokens_per_s", "version")

    def __init__(self, tokens_per_s: float, latency_s: float = 0.0) -> None:
        self.tokens_per_s = tokens_per_s
        self.latency = max(ticks(latency_s), 1)
        """Fixed latency in ticks of the transfers that leave here."""
        self.out: list[Transfer] = []
        self.into: list[Transfer] = []
        self.due = -1
        """When the next of the incoming transfers that share a link will end; -1 when there is none."""
        self.version = 0


class Transfer:
    """One transfer of KV cache between two workers."""

    __slots__ = ("argument", "done", "end", "left", "rate", "shared", "since", "sink", "source", "version")

    def __init__(self, source: Port, sink: Port, size: float, done: Callable[[Any], None], argument: Any) -> None:
        self.source = source
        self.sink = sink
        self.left = size
        """Tokens that were left when the rate last changed."""
        self.rate = 0.0
        self.since = 0
        """When the rate last changed."""
        self.end = 0
        """When its last token will leave the link, at the current rate."""
        self.shared = False
        """Whether it shares a link. Then other transfers speed up when it ends, so its end is an event of its own."""
        self.version = 0
        self.done = done
        self.argument = argument


class Links:
    """All transfers of one simulation.

    A transfer that shares no link is one event: its arrival. Transfers that share links speed up when another one ends.
    So each receiving worker has one event more, the next end of a shared transfer. The receiver has it, not the sender,
    because transfers that start together mostly waited for KV capacity on the same receiver.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._gathering = False
        self._gathered: list[Transfer] = []

    def gather(self) -> None:
        """Defer the computation of shares until `spread`, for transfers that start at the same instant."""
        self._gathering = True

    def spread(self) -> None:
        """Compute the shares of the transfers that have started since `gather`."""
        self._gathering = False
        gathered = self._gathered
        if len(gathered) == 1:
            self._begin(gathered[0])
        elif gathered:
            ports = dict.fromkeys([transfer.source for transfer in gathered if len(transfer.source.out) > 1])
            sinks = dict.fromkeys([transfer.sink for transfer in gathered])
            self._share([port.out for port in ports] + [port.into for port in sinks])
        gathered.clear()

    def start(self, source: Port, sink: Port, size: float, done: Callable[[Any], None], argument: Any) -> Transfer:
        """Move the KV cache of `size` tokens, and call ``done(argument)`` when all of it has arrived."""
        transfer = Transfer(source, sink, size, done, argument)
        now = transfer.since = self._events.now
        out, into = source.out, sink.into
        if out:
            self._forget(out[0], now)
        if into:
            self._forget(into[0], now)
        out.append(transfer)
        into.append(transfer)
        if self._gathering:
            self._gathered.append(transfer)
        else:
            self._begin(transfer)
        return transfer

    def _begin(self, transfer: Transfer) -> None:
        source, sink = transfer.source, transfer.sink
        if len(source.out) > 1 or len(sink.into) > 1:
            self._share([source.out, sink.into])
            return
        rate, other_rate = source.tokens_per_s, sink.tokens_per_s
        transfer.rate = rate if rate < other_rate else other_rate
        end = transfer.end = transfer.since + ticks(transfer.left / transfer.rate)
        self._arrive_at(end + source.latency, transfer)

    def _forget(self, transfer: Transfer, now: int) -> None:
        """Remove a transfer from its links if it has ended. It shared neither, so its end was not an event."""
        if transfer.end <= now and not transfer.shared and transfer.rate:
            self._leave(transfer)

    def stop(self, transfer: Transfer) -> None:
        """Abort a transfer. Its `done` is not called."""
        transfer.version += 1
        if transfer in transfer.source.out:
            self._leave(transfer)
            self._share([transfer.source.out, transfer.sink.into])

    def on_event(self, target: Any, version: int) -> None:
        """Handle the arrival of a transfer, or the next end of a shared transfer at a receiving worker."""
        if isinstance(target, Transfer):
            if version == target.version:
                self._on_arrival(target)
        elif version == target.version:
            self._on_end(target)

    def _on_arrival(self, transfer: Transfer) -> None:
        out, into = transfer.source.out, transfer.sink.into
        if not transfer.shared and transfer in out:
            out.remove(transfer)
            into.remove(transfer)
            if out or into:
                self._share([out, into])
        transfer.done(transfer.argument)

    def _on_end(self, port: Port) -> None:
        now, port.due = self._events.now, -1
        changed = [port.into]
        for transfer in [transfer for transfer in port.into if transfer.shared and transfer.end <= now]:
            self._leave(transfer)
            self._arrive_at(now + transfer.source.latency, transfer)
            if transfer.source.out:
                changed.append(transfer.source.out)
        self._share(changed)
        self._arm(port)

    @staticmethod
    def _leave(transfer: Transfer) -> None:
        transfer.source.out.remove(transfer)
        transfer.sink.into.remove(transfer)

    def _share(self, changed: list[list[Transfer]]) -> None:
        """Update the transfers on changed links: how many tokens are left, at which rate they move, when they end."""
        now = self._events.now
        touched: dict[Port, None] = {}
        for transfers in changed:
            for transfer in transfers:
                source, sink = transfer.source, transfer.sink
                leave, enter = len(source.out), len(sink.into)
                rate, other_rate = source.tokens_per_s / leave, sink.tokens_per_s / enter
                if other_rate < rate:  # noqa: PLR1730 - min() is slower here
                    rate = other_rate
                shared = leave > 1 or enter > 1
                if rate != transfer.rate or shared != transfer.shared:
                    left = transfer.left - transfer.rate * ((now - transfer.since) / TICKS_PER_S)
                    transfer.left = left if left > 0.0 else 0.0
                    transfer.since, transfer.rate = now, rate
                    transfer.end = now + ticks(transfer.left / rate)
                    transfer.version += 1
                    transfer.shared = shared
                    touched[sink] = None
                    if not shared:
                        self._arrive_at(transfer.end + source.latency, transfer)
        for port in touched:
            self._arm(port)

    def _arm(self, port: Port) -> None:
        due = -1
        for transfer in port.into:
            if transfer.shared and (due < 0 or transfer.end < due):
                due = transfer.end
        if due != port.due:
            port.due = due
            port.version += 1
            if due >= 0:
                self._push(due, port, port.version)

    def _arrive_at(self, time: int, transfer: Transfer) -> None:
        self._push(time, transfer, transfer.version)

    def _push(self, time: int, target: Any, version: int) -> None:
        events = self._events
        sequence = events.sequence = events.sequence + 1
        heappush(events.heap, (time, TRANSFER, sequence, target, version))
