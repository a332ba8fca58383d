"""Transfers that share links: known answers in seconds."""

from __future__ import annotations

from heapq import heappop

import pytest

from pdplugins.sim.core.clock import Events, seconds, ticks
from pdplugins.sim.core.links import Links, Port


def arrivals(*transfers: tuple[float, int, int, float], latency_s: float = 0.0) -> list[float]:
    """Start (at, source, sink, tokens) over ports of 100 tokens/s; return when each has come."""
    events, done = Events(), {}
    links = Links(events)
    ports = [Port(100.0, latency_s) for _ in range(4)]
    for number, (at_s, source, sink, tokens) in enumerate(transfers):

        def start(
            _: object, number: int = number, source: int = source, sink: int = sink, tokens: float = tokens
        ) -> None:
            links.start(ports[source], ports[sink], tokens, lambda n: done.__setitem__(n, seconds(events.now)), number)

        events.call_at(ticks(at_s), start)
    while events.heap:
        events.now, kind, _, target, argument = heappop(events.heap)
        if kind == 0:
            target(argument)
        else:
            links.on_event(target, argument)
    return [done[number] for number in range(len(transfers))]


def test_alone_it_has_the_whole_link() -> None:
    assert arrivals((0.0, 0, 1, 200), latency_s=0.5) == pytest.approx([2.5])


def test_two_from_one_worker_go_at_half_the_rate() -> None:
    assert arrivals((0.0, 0, 1, 100), (0.0, 0, 2, 100)) == pytest.approx([2.0, 2.0])


def test_two_into_one_worker_share_until_the_first_has_left() -> None:
    assert arrivals((0.0, 0, 2, 100), (0.5, 1, 2, 100)) == pytest.approx([1.5, 2.0])


def test_latency_does_not_hold_the_link() -> None:
    """The first has left the link at 1 s and arrives at 2 s; the second starts in between and is alone."""
    assert arrivals((0.0, 0, 1, 100), (1.2, 0, 1, 100), latency_s=1.0) == pytest.approx([2.0, 3.2])


def test_the_slower_end_counts() -> None:
    """One shares its source with a transfer that shares its sink with two more."""
    times = arrivals((0.0, 0, 1, 50), (0.0, 0, 2, 100), (0.0, 3, 2, 100))
    assert times == pytest.approx([1.0, 2.0, 2.0])
