"""The traffic that advice is for: all of it, a part that stands for it, and further draws of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pdplugins.errors import ConfigError
from pdplugins.workloads import formats, traces
from pdplugins.workloads.trace import TraceRequest
from pdplugins.workloads.transform import Transform

Requests = list[TraceRequest]
WINDOWS = 4
"""Places of a trace that a part of it is cut out of, evenly spread."""
BLOCK_S, LEAST_BLOCKS, REACH = 60.0, 10, 2
"""Length of the blocks in which a trace from a file is drawn anew, and from how many blocks away one may come."""
DURATION_S, MOST = 3600.0, 30_000
"""Traffic that is given by its lengths and its rate ends after this time or this number of requests."""
FEWEST, LONGEST_S = 10, 86_400.0
"""Requests on the average that it has at least, for which it may be longer: some draws of fewer have none."""
SPREAD = 0.6
"""Sigma of log-normal lengths, where only their means are given."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests, and how to draw more like them."""

    name: str
    requests: Requests
    draw: Callable[[int], Requests]
    """Returns other requests of the same kind, by the number of the draw from 1."""
    how: str
    """How draws differ, in words."""

    @property
    def rate(self) -> float:
        """Return the mean arrivals per second."""
        return len(self.requests) / max(self.requests[-1].arrival_s, 1e-9)

    @property
    def longest_tokens(self) -> int:
        """Return the longest prompt plus output."""
        return max(prompt + output for request in self.requests for _, prompt, output in request.turns())

    @property
    def repeats(self) -> bool:
        """Return whether prompts repeat what came before, so that caches matter to a router."""
        return any(request.rounds or request.blocks for request in self.requests)


def named(trace: str, changes: Transform) -> Traffic:
    """Return the traffic that ``--trace`` names. Raises ConfigError or TraceError."""
    requests = changes.apply(traces.read(trace))
    if not formats.is_there(Path(trace)):
        try:
            traces.read(_seeded(trace, 1))
        except ConfigError:  # a mix, or a plugin's generator without a seed
            pass
        else:
            return Traffic(
                Path(trace).name,
                requests,
                lambda number: changes.apply(traces.read(_seeded(trace, number))),
                "seeds of the workload",
            )
    return Traffic(
        Path(trace).name, requests, lambda number: shuffled(requests, number), "draws of the trace's own minutes"
    )


def lengths(isl: float, osl: float, changes: Transform, seed: int) -> Traffic:
    """Return Poisson arrivals at the rate of `changes`, with log-normal lengths of these means. Raises ConfigError."""
    rate = changes.rate or 1.0
    duration_s = min(changes.clip_s or LONGEST_S, LONGEST_S, max(DURATION_S, FEWEST / rate), MOST / rate)
    if duration_s < FEWEST / rate:
        raise ConfigError(
            f"advise: --rate {rate:g} is {rate * duration_s:.2g} requests in {duration_s:g} s, and {FEWEST} are the "
            "fewest that advice can be judged by; raise the rate or --clip-s, or give a trace"
        )
    median = np.exp(-(SPREAD**2) / 2)
    sizes = ",".join(
        f"{key}_tokens={{kind: lognormal, median: {mean * median:.6g}, sigma: {SPREAD}, high: {8 * mean:.6g}}}"
        for key, mean in (("isl", isl), ("osl", osl))
    )
    text = f"synthetic:duration_s={duration_s:g},arrivals={{kind: poisson, rate: {rate}}},{sizes}"

    def draw(number: int) -> Requests:
        return changes.apply(traces.read(f"{text},seed={seed + number}"))

    return Traffic(f"{isl:g} in, {osl:g} out, {rate:g}/s", draw(0), draw, "seeds of the workload")


def _seeded(name: str, number: int) -> str:
    """Return the name of a workload with another seed: the last one given counts."""
    head, _, settings = name.partition(":")
    return f"{head}:{settings}{',' if settings else ''}seed={1000 + number}"


def part_of(requests: Requests, most: int) -> Requests:
    """Return at most `most` requests that stand for all: a few stretches, one after the other without a pause."""
    if len(requests) <= most:
        return requests
    kept: Requests = []
    start_s = 0.0
    for index in range(WINDOWS):
        length = most // WINDOWS
        first = int((index + 0.5) * len(requests) / WINDOWS) - length // 2
        stretch = requests[first : first + length + 1]
        kept += [
            replace(request, arrival_s=round(start_s + request.arrival_s - stretch[0].arrival_s, 6))
            for request in stretch[:-1]
        ]
        start_s += stretch[-1].arrival_s - stretch[0].arrival_s
    return kept


def shuffled(requests: Sequence[TraceRequest], number: int) -> Requests:
    """Return a draw of a trace by a local block bootstrap: each block is one of its neighbours, or itself.

    The load still drifts as it did, and bursts stay whole (Paparoditis and Politis, 2002). Blocks of a trace of few
    minutes are shorter, because one block alone would be the same in each draw.
    """
    rng = np.random.default_rng(number)
    block_s = min(BLOCK_S, requests[-1].arrival_s / LEAST_BLOCKS)
    if block_s <= 0:  # all came at once
        return list(requests)
    blocks: list[Requests] = [[] for _ in range(int(requests[-1].arrival_s // block_s) + 1)]
    for request in requests:
        blocks[int(request.arrival_s // block_s)].append(request)
    drawn: Requests = []
    for index in range(len(blocks)):
        chosen = int(np.clip(index + rng.integers(-REACH, REACH + 1), 0, len(blocks) - 1))
        shift_s = (index - chosen) * block_s
        drawn += [_moved(request, shift_s, index) for request in blocks[chosen]]
    return traces.from_zero(drawn) if drawn else list(requests)


def _moved(request: TraceRequest, shift_s: float, index: int) -> TraceRequest:
    session = None if request.session is None else f"{index}.{request.session}"
    return replace(request, arrival_s=max(request.arrival_s + shift_s, 0.0), session=session)
