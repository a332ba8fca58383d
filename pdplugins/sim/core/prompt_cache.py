"""The KV cache of one request on an engine: taking it for the prompt, sharing it with others, and freeing it."""

from __future__ import annotations

from pdplugins.sim.core.flight import Flight
from pdplugins.sim.core.kv import KvCache


def take_prompt(kv: KvCache, flight: Flight, free: int) -> bool:
    """Take KV capacity for a prompt, at most `free` tokens. Cached prefix blocks and session histories need none.

    Return False, with nothing taken, when `free` is not enough. Sets `done` of the request to its cached tokens.
    """
    if not flight.may_be_cached:
        if free < flight.target:
            return False
        kv.free -= flight.target
        if kv.idle_tokens > kv.free:
            kv.shrink(kv.free)
        flight.kv = flight.target
        return True
    arrival = flight.arrival
    hits = min(kv.match(arrival.blocks), (flight.target - 1) // kv.block_tokens) if arrival.blocks else 0
    shared = arrival.blocks[:hits]
    private = flight.target - hits * kv.block_tokens
    if free < private + kv.idle_among(shared):
        return False
    cached = hits * kv.block_tokens
    if arrival.session is not None:
        cached = max(cached, min(kv.drop(arrival.session), flight.target - 1, arrival.history_tokens))
    kv.pin(shared)
    kv.take(private)
    flight.kv, flight.pins, flight.block_hits, flight.done = private, list(shared), hits, cached
    if not flight.emitted:  # after a preemption the cached tokens may be its own, which do not count
        flight.cached = cached
    return True


def share_prompt(kv: KvCache, flight: Flight) -> None:
    """Let other requests use the blocks of a computed prompt."""
    blocks = flight.arrival.blocks
    whole = min(flight.done // kv.block_tokens, len(blocks))
    added = kv.share(blocks[flight.block_hits : whole])
    flight.kv -= len(added) * kv.block_tokens
    flight.pins = [*flight.pins, *added]


def forget(kv: KvCache, flight: Flight) -> None:
    """Drop the KV cache of a request."""
    kv.free += flight.kv
    flight.kv = 0
    if flight.pins:
        kv.unpin(flight.pins)
        flight.pins, flight.block_hits = (), 0
