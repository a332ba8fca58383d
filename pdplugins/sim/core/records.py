"""The records of a run: one for each request, and the gaps between tokens."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from pdplugins.sim.core.clock import TICKS_PER_S

if TYPE_CHECKING:
    from pdplugins.sim.core.flight import Arrival, Flight
    from pdplugins.sim.core.window import Window


class Record(NamedTuple):
    """The latencies of one request, in seconds; `arrival_s` and `finish_s` count from the start of the run.

    A round of a session that was not sent has none of them but `arrival_s`.
    """

    id: str
    arrival_s: float
    isl_tokens: int
    osl_tokens: int
    ttft_s: float | None
    """None when there was no token."""
    tpot_s: float | None
    """Decode time over (output tokens - 1); 0 for one token. None when the answer is not whole."""
    largest_tbt_s: float | None
    """0 when there were fewer than two tokens."""
    finish_s: float | None
    """When it ended, answered or not."""
    prefill_worker: str | None
    decode_worker: str | None
    error: str | None = None
    cached_tokens: int = 0
    """Prompt tokens that it did not have to compute, because a KV cache had them."""


def record(flight: Flight, ttft_s: float | None, tpot_s: float | None, now: int) -> Record:
    """Return the record of a request that ends `now`."""
    prefill, decode = flight.names
    fields = (
        flight.id,
        flight.arrived / TICKS_PER_S,
        flight.isl,
        flight.osl,
        ttft_s,
        tpot_s,
        flight.gap / TICKS_PER_S,
        now / TICKS_PER_S,
        prefill,
        decode,
        flight.error,
        flight.cached,
    )
    return tuple.__new__(Record, fields)  # Record(...) would pass each field twice, for every request


def unsent(name: str, arrival: Arrival) -> Record:
    """Return the record of a round whose session has ended early."""
    why = "not sent: an earlier round of its session failed"
    size = arrival.isl_tokens, arrival.osl_tokens
    return Record(name, arrival.arrival_s, *size, None, None, None, None, None, None, why)


class Gaps:
    """Gaps between the tokens of all requests, in ticks. Each entry is the mean over a run of steps, and a count."""

    __slots__ = ("counts", "joins", "means", "mortal", "ticks_per_s", "windows")

    def __init__(self, ticks_per_s: float) -> None:
        self.ticks_per_s = ticks_per_s
        self.joins = 0
        """How often a request joined a decode batch."""
        self.mortal = False
        """Whether a worker may die in the middle of a step."""
        self.means = array("d")
        self.counts = array("q")
        self.windows: list[Window] = []
        """Windows that count first tokens."""

    def first_token(self, flight: Flight, time: int) -> None:
        """Note when the client of a request gets its first token."""
        flight.first_token = time
        for window in self.windows:
            window.first_token(flight, time)

    def token(self, flight: Flight, time: int) -> None:
        """Note a token that no decode step has given: the first one, or one that a prompt gave when computed again."""
        if flight.emitted:
            gap = time - flight.last_token
            flight.gap = max(flight.gap, gap)
            self.means.append(gap)
            self.counts.append(1)
        else:
            self.first_token(flight, time)
        flight.emitted += 1
        flight.last_token = time

    def add(self, time: int, steps: int, members: int) -> None:
        """Add `steps` gaps of each of `members` requests that took `time` together."""
        self.means.append(float(time) / steps)
        self.counts.append(steps * members)
