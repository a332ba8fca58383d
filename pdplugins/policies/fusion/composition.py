"""The composition of the pool: how many workers prefill only, and how many decode and prefill beside that.

A linear programme over step types. Each column is a step: prompt tokens M, decodes b, and its time t within the TPOT
SLO. It spends workers on columns so that the request rate is as large as possible::

    max rate   with   sum x M / t >= rate * ISL,   sum x b / t >= rate * OSL,   sum x <= workers

Co-location and every split into prefill and decode workers are points of it. There are two products, prefilled and
decoded tokens, so the columns that are worth anything are the upper hull of the points (b / t, M / t), and the optimum
lies on an edge of it. No solver is needed: the hull is made once, and each number of workers is one look at it.

A request has its place to decode from when it goes on, so some places are those of requests that are not prefilled yet.
By Little's law `b` places decode `b / (t + held / OSL)` tokens a second, where `held` seconds go by before the first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from pdplugins.policies._common import largest_within
from pdplugins.policies.fusion.costs import Costs

SIZES = 24
"""Batch sizes that are tried, the largest that keeps the TPOT SLO among them."""
MIXED_TOKENS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
"""Prompt tokens of a mixed step that are tried, beside the most that the TPOT SLO leaves."""
Point = tuple[float, float]
"""Tokens a second that one worker decodes, and that it prefills beside that."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens of one request."""

    isl: float
    """Of the prompt that must be computed."""
    osl: float
    history: float = 0.0
    """Of the prompt that a KV cache has already: earlier rounds of a session."""

    @property
    def context(self) -> float:
        """Mean context while it decodes."""
        return self.history + self.isl + self.osl / 2


@dataclass(frozen=True, slots=True)
class Frontier:
    """What one worker of each kind can do for requests of given lengths."""

    lengths: Lengths
    prefill: float
    """Tokens a second of a worker that only prefills."""
    mixed: tuple[Point, ...]
    """Of a worker that decodes: the best points, by decoded tokens. Between two of them it alternates."""

    def rate(self, prefill_only: int, mixed: int) -> float:
        """Return the requests a second that such workers serve at most."""
        isl, osl, points = self.lengths.isl, self.lengths.osl, self.mixed

        def beyond(index: int) -> float:
            """Return the prefill that is left over at the rate at which all mixed workers decode as at a point."""
            decoded, prefilled = points[index]
            return prefill_only * self.prefill + mixed * (prefilled - decoded * isl / osl)

        index = bisect_left(range(len(points)), True, key=lambda index: beyond(index) < 0)
        if index == len(points):
            return mixed * points[-1][0] / osl
        at, short = mixed * points[index][0] / osl, beyond(index)
        if index == 0:
            return max(at + short / isl, 0.0)
        before, left = mixed * points[index - 1][0] / osl, beyond(index - 1)
        return before + (at - before) * left / (left - short)

    def best(self, workers: int, gain: float = 0.0) -> int:
        """Return the smallest number of prefill-only workers whose rate is at most `gain` below the best one."""

        # The rate is concave in the number, so both the best and the first that is good enough are found by halving.
        def rate(prefill_only: int) -> float:
            return self.rate(prefill_only, workers - prefill_only)

        top = bisect_left(range(workers - 1), True, key=lambda n: rate(n) >= rate(n + 1))
        enough = rate(top) / (1 + gain)
        return bisect_left(range(top), True, key=lambda n: rate(n) >= enough)


def frontier(
    costs: Costs,
    lengths: Lengths,
    kv_tokens: float,
    max_batch: int,
    *,
    mixes: bool = True,
    slow: tuple[float, float] = (1.0, 1.0),
    held_s: float = 0.0,
) -> Frontier:
    """Return what workers can do within the TPOT SLO.

    :param kv_tokens: KV cache of one worker that may be planned with.
    :param mixes: whether a worker that decodes may prefill as well.
    :param slow: how many times as long prefill and decode take than the profile says, under a power cap for example.
    :param held_s: how long a request has a place to decode before it decodes.
    """
    whole, history = max(int(lengths.isl), 1), int(lengths.history)
    alone_s = costs.share_s(whole, history) * costs.ratio(decodes=False) * slow[0]
    fit = min(max_batch, int(kv_tokens / lengths.context))
    most = costs.most_decodes(lengths.context, fit, costs.ratio(decodes=True) * slow[1])
    points = [
        (decodes / (step_s + held_s / lengths.osl), tokens / step_s)
        for decodes in _sizes(most)
        for tokens, step_s in _steps(costs, decodes, lengths.context, whole, history, mixes, slow)
    ]
    return Frontier(lengths, whole / max(alone_s, 1e-9), hull(points))


def hull(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the points that no mix of others beats in both numbers, by the first number."""
    kept: list[Point] = []
    for point in sorted(points, reverse=True):
        if not kept or point[1] > kept[-1][1]:
            while len(kept) > 1 and _below(kept[-2], kept[-1], point):
                kept.pop()
            kept.append(point)
    return tuple(reversed(kept))


def _below(right: Point, middle: Point, left: Point) -> bool:
    """Return whether `middle` does not lie above the line from `right` to `left`."""
    rise, run = left[1] - right[1], right[0] - left[0]
    return (middle[1] - right[1]) * run <= rise * (right[0] - middle[0])


def _sizes(most: int) -> list[int]:
    """Return batch sizes from 1 to `most`, the larger the further apart."""
    most = max(most, 1)
    return sorted({round(most ** (index / (SIZES - 1))) for index in range(SIZES)})


def _steps(
    costs: Costs, decodes: int, context: float, whole: int, history: int, mixes: bool, slow: tuple[float, float]
) -> Iterable[tuple[int, float]]:
    """Yield prompt tokens and seconds of steps with `decodes` decodes that keep the TPOT SLO, the largest one last."""
    prefill_slow, decode_slow = (costs.ratio(decodes=True) * phase for phase in slow)
    alone_s = costs.decode_s(decodes, context) * decode_slow

    def step_s(tokens: int) -> float:
        # It falls a little where a whole prompt fits. The largest may be missed there; what is found keeps the SLO.
        done = history + (whole // 2 if tokens < whole else 0)
        return alone_s + prefill_slow * costs.added_s(tokens, done, decodes)

    yield 0, alone_s
    if mixes and (largest := largest_within(costs.step_s, costs.most_tokens, step_s)):
        smaller = (tokens for tokens in MIXED_TOKENS if tokens < largest)
        yield from ((tokens, step_s(tokens)) for tokens in (*smaller, largest))
