"""The composition of the pool: how many workers prefill only, and how many decode and prefill beside that.

A worker that decodes `b` requests in steps of `t` seconds, with `M` prompt tokens beside them, decodes `b / t` tokens a
second and prefills `M / t`. Of all steps within the TPOT SLO the best ones make a falling curve of prefill over decode.
The router keeps all such workers alike, so they are at the same point of it. With `p` workers that prefill only and `w`
others the request rate is the largest one at which::

    w x decode >= rate x OSL,   p x prefill alone + w x prefill beside that decode >= rate x ISL

Co-location and every split into prefill and decode workers are among these, and each number `p` is one look at the
curve. Where decoding many at once costs little more, as with mixtures of experts, the curve sags: then it is better
that some workers prefill only than that all do some of both.

Prefill counts as far as prompts wait no longer than their TTFT allows. On a worker that only prefills less of it is
left for waiting: the KV cache moves, and the next worker has a step to run before the first token.

A request has its place to decode from when it goes on, so some places are those of requests that are not prefilled yet.
By Little's law `b` places decode `b / (t + held / OSL)` tokens a second, where `held` seconds go by before the first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from pdplugins.policies._common import largest_within
from pdplugins.policies.fusion.costs import PAYS, Costs

SIZES = 24
"""Batch sizes that are tried, the largest that keeps the TPOT SLO among them."""
MOST_COUNTS = 256
"""Numbers of prefill-only workers that are tried; in larger pools they lie further apart."""
LEAST_WAIT = 0.02
"""Part of the TTFT that is left for waiting at least: less makes no difference any more."""
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
    spread: float = 1.0
    """Mean square of the prompts over the square of their mean."""

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
    """Of a worker that decodes: the best points, by decoded tokens. All such workers are at the same one."""
    waits_s: tuple[float, float] = (math.inf, math.inf)
    """How long a prompt may wait within its TTFT: for a worker that only prefills, and for one that decodes."""

    def rate(self, prefill_only: int, mixed: int) -> float:
        """Return the requests a second that such workers serve at most."""
        isl, osl, points = self.lengths.isl, self.lengths.osl, self.mixed
        away = prefill_only * self.prefill * self._in_time(prefill_only, self.waits_s[0])
        here = mixed * self._in_time(mixed, self.waits_s[1])

        def beyond(index: int) -> float:
            """Return the prefill that is left over at the rate at which all mixed workers decode as at a point."""
            decoded, prefilled = points[index]
            return away + here * prefilled - mixed * decoded * isl / osl

        index = bisect_left(range(len(points)), True, key=lambda index: beyond(index) < 0)
        if index == len(points):
            return mixed * points[-1][0] / osl
        at, short = mixed * points[index][0] / osl, beyond(index)
        if index == 0:
            return max(at + short / isl, 0.0)
        before, left = mixed * points[index - 1][0] / osl, beyond(index - 1)
        return before + (at - before) * left / (left - short)

    def _in_time(self, workers: int, wait_s: float) -> float:
        """Return the share of the prefill of so many workers at which prompts wait no longer than they may.

        The mean wait before a server (Pollaczek and Khinchine) is about the time of a prompt, times the spread of their
        lengths, times load over what is left of it. Several workers share one queue.
        """
        own_s = self.lengths.spread * self.lengths.isl / self.prefill
        return workers / (workers + own_s / wait_s) if workers else 0.0

    def best(self, workers: int, gain: float = 0.0) -> int:
        """Return the smallest number of prefill-only workers whose rate is at most `gain` below the best one."""
        counts = range(0, workers, -(-workers // MOST_COUNTS))
        rates = [self.rate(count, workers - count) for count in counts]
        enough = max(rates) / (1 + gain)
        return next(count for count, rate in zip(counts, rates, strict=True) if rate >= enough)


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
    # A request that comes from elsewhere waits for a whole step and half of the one before, a local one for that half.
    join_s = costs.decode_s(most, lengths.context) * costs.ratio(decodes=True) * slow[1]
    local_s = costs.due_s - alone_s - join_s / 2
    away_s = local_s - join_s - costs.transfer_s(whole)
    waits_s = max(away_s, LEAST_WAIT * costs.due_s), max(local_s, LEAST_WAIT * costs.due_s)
    return Frontier(lengths, whole / max(alone_s, 1e-9), curve(points), waits_s)


def curve(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the points that no other beats in both numbers, by the first number."""
    kept: list[Point] = []
    for point in sorted(points, reverse=True):
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return tuple(reversed(kept))


def _sizes(most: int) -> list[int]:
    """Return batch sizes from 1 to `most`, the larger the further apart."""
    most = max(most, 1)
    return sorted({round(most ** (index / (SIZES - 1))) for index in range(SIZES)})


def _steps(
    costs: Costs, decodes: int, context: float, whole: int, history: int, mixes: bool, slow: tuple[float, float]
) -> Iterable[tuple[float, float]]:
    """Yield prompt tokens and seconds of steps with `decodes` decodes that keep the TPOT SLO.

    Then of larger ones, where it pays to save time for these: the mean of such a step and of those that save for it.
    """
    prefill_slow, decode_slow = (costs.ratio(decodes=True) * phase for phase in slow)
    alone_s = costs.decode_s(decodes, context) * decode_slow

    def step_s(tokens: int) -> float:
        # It falls a little where a whole prompt fits. The largest may be missed there; what is found keeps the SLO.
        done = history + (whole // 2 if tokens < whole else 0)
        return alone_s + prefill_slow * costs.added_s(tokens, done, decodes)

    yield 0, alone_s
    if not mixes or alone_s >= costs.step_s:
        return
    largest = largest_within(costs.step_s, costs.most_tokens, step_s)
    within = largest / step_s(largest) if largest else 0.0
    if largest:
        yield from ((tokens, step_s(tokens)) for tokens in (*_below(largest), largest))
    if gathered_s := costs.gathered_s(alone_s, costs.step_s):
        most = largest_within(costs.step_s + gathered_s, costs.most_tokens, step_s)
        averaged = {
            tokens: costs.averaged(tokens, alone_s, took_s, costs.step_s)
            for tokens in (*_below(most), most)
            if (took_s := step_s(tokens)) > costs.step_s
        }
        if averaged.get(most, 0.0) >= PAYS * within:
            yield from ((rate * costs.step_s, costs.step_s) for rate in averaged.values())


def _below(most: int) -> Iterable[int]:
    return (tokens for tokens in MIXED_TOKENS if tokens < most)
