"""The composition of the pool: how many workers prefill only, and how many decode and prefill beside that.

A worker that decodes `b` requests in steps of `t` seconds in the mean, a part of them with prompt tokens beside that,
`M` a step in the mean, decodes `b / t` tokens a second and prefills `M / t`. Of all steps within the TPOT SLO the best
ones make a falling curve of prefill over decode. The router keeps all such workers alike, so they are at the same point
of it. With `p` workers that prefill only and `w` others the request rate is the largest one at which::

    w x decode >= rate x OSL,   p x prefill alone + w x prefill beside that decode >= rate x ISL

Co-location and every split into prefill and decode workers are among these, and each number `p` is one look at the
curve. Where decoding many at once costs little more, as with mixtures of experts, the curve sags: then it is better
that some workers prefill only than that all do some of both.

Prefill counts as far as prompts wait no longer than their TTFT allows. Beside decodes a prompt takes several steps,
which leave less of it for waiting. So does the way over a worker that only prefills: the KV cache moves, and the next
worker has a step to run before the first token.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pdplugins.policies._common import largest_within
from pdplugins.policies.fusion.costs import Costs

SIZES = 24
"""Batch sizes that are tried, the largest that keeps the TPOT SLO among them."""
MOST_COUNTS = 256
"""Numbers of prefill-only workers that are tried; in larger pools they lie further apart."""
LEAST_WAIT = 0.02
"""Part of the TTFT that is left for waiting at least: less makes no difference any more."""
PARTS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)
"""What part of the steps prefills is tried. Where places to decode are short, the answer is a small one."""
SEVERAL = 4
"""Workers that share a queue where the points of one worker are compared."""


class Point(NamedTuple):
    """What one worker does in steps of one kind."""

    decoded: float
    """Tokens a second."""
    prefilled: float
    """Tokens a second beside that."""
    wait_s: float = math.inf
    """How long a prompt may wait there within its TTFT."""
    step_s: float = math.inf
    """Mean seconds of a step."""


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
    decoding: float = 1.0
    """Mean context of what decodes at one time, over that of one request."""

    @property
    def context(self) -> float:
        """Mean context of what decodes at one time."""
        return (self.history + self.isl + self.osl / 2) * self.decoding


@dataclass(frozen=True, slots=True)
class Frontier:
    """What one worker of each kind can do for requests of given lengths."""

    lengths: Lengths
    prefill: float
    """Tokens a second of a worker that only prefills."""
    mixed: tuple[Point, ...]
    """Of a worker that decodes: the best points, by decoded tokens. All such workers are at the same one."""
    wait_s: float = math.inf
    """How long a prompt may wait within its TTFT for a worker that only prefills."""

    def rate(self, prefill_only: int, mixed: int) -> float:
        """Return the requests a second that such workers serve at most."""
        return self._most(prefill_only, mixed)[0]

    def step_s(self, workers: int) -> float:
        """Return the mean seconds of a step with which workers that all do both serve the most."""
        return self._most(0, workers)[1]

    def _most(self, prefill_only: int, mixed: int) -> tuple[float, float]:
        """Return the most requests a second, and the mean seconds of a step of the mixed workers at that rate."""
        isl, osl, points = self.lengths.isl, self.lengths.osl, self.mixed
        away = prefill_only * self.prefill * self._done_share(prefill_only, self.wait_s)

        def beyond(index: int) -> float:
            """Return the prefill that is left over at the rate at which all mixed workers decode as at a point."""
            decoded, prefilled, wait_s, _ = points[index]
            return away + mixed * (prefilled * self._done_share(mixed, wait_s) - decoded * isl / osl)

        index = bisect_left(range(len(points)), True, key=lambda index: beyond(index) < 0)
        if index == len(points):
            return mixed * points[-1].decoded / osl, points[-1].step_s
        last, short = points[index], beyond(index)
        at = mixed * last.decoded / osl
        if index == 0:
            return max(at + short / isl, 0.0), last.step_s
        first, left = points[index - 1], beyond(index - 1)
        before, share = mixed * first.decoded / osl, left / (left - short)
        return before + (at - before) * share, first.step_s + (last.step_s - first.step_s) * share

    def _done_share(self, workers: int, wait_s: float) -> float:
        """Return the share of the prefill of so many workers at which prompts wait no longer than they may.

        The mean wait before a server (Pollaczek and Khinchine) is about the time of a prompt, times the spread of their
        lengths, times load over what is left of it. Several workers share one queue.
        """
        return done_share(workers, self.lengths.spread * self.lengths.isl / self.prefill, wait_s)

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
) -> Frontier:
    """Return what workers can do within the TPOT SLO.

    :param kv_tokens: KV cache of one worker that may be planned with.
    :param mixes: whether a worker that decodes may prefill as well.
    :param slow: how many times as long prefill and decode take than the profile says, under a power cap for example.
    """
    whole, history = max(int(lengths.isl), 1), int(lengths.history)
    alone_s = costs.share_s(whole, history) * costs.ratio(decodes=False) * slow[0]
    fit = min(max_batch, int(kv_tokens / lengths.context))
    most = costs.most_decodes(lengths.context, fit, costs.ratio(decodes=True) * slow[1])
    # A request that comes from elsewhere waits for a whole step and half of the one before, a local one for that half.
    join_s = costs.decode_s(most, lengths.context) * costs.ratio(decodes=True) * slow[1]
    away_s = costs.due_s - alone_s - 1.5 * join_s - costs.transfer_s(whole)
    least_s = LEAST_WAIT * costs.due_s
    points = [
        Point(decodes / step_s, prefilled, max(costs.due_s - takes_s - join_s / 2, least_s), step_s)
        for decodes in _sizes(most)
        for prefilled, step_s, takes_s in _steps(costs, decodes, lengths.context, whole, history, mixes, slow)
    ]
    return Frontier(lengths, whole / max(alone_s, 1e-9), curve(points, lengths.spread * alone_s), max(away_s, least_s))


def curve(points: Iterable[Point], own_s: float = 0.0) -> tuple[Point, ...]:
    """Return the points that no other beats in both what is decoded and what is prefilled in time, by the first.

    :param own_s: seconds of a prompt, times the spread of their lengths.
    """
    kept: list[tuple[float, Point]] = []
    for _, prefilled, point in sorted(
        ((point.decoded, point.prefilled * done_share(SEVERAL, own_s, point.wait_s), point) for point in points),
        reverse=True,
    ):
        if not kept or prefilled > kept[-1][0]:
            kept.append((prefilled, point))
    return tuple(point for _, point in reversed(kept))


def done_share(workers: int, own_s: float, wait_s: float) -> float:
    """Return the share of the prefill of so many workers that is done while prompts wait for `wait_s` in the mean."""
    return workers / (workers + own_s / wait_s) if workers else 0.0


def _sizes(most: int) -> list[int]:
    """Return batch sizes from 1 to `most`, the larger the further apart."""
    most = max(most, 1)
    return sorted({round(most ** (index / (SIZES - 1))) for index in range(SIZES)})


def _shared(whole: int, largest: int) -> Iterable[int]:
    """Yield the prompt tokens of a step of one prompt, of 2, 4 and so on, and the most that fit: none that fits is cut.

    Where prompts are short, and the TTFT not much longer than a full step, shorter steps have them in time.
    """
    tokens = whole
    while tokens < largest:
        yield tokens
        tokens *= 2
    yield largest


def _steps(
    costs: Costs, decodes: int, context: float, whole: int, history: int, mixes: bool, slow: tuple[float, float]
) -> Iterable[tuple[float, float, float]]:
    """Yield the prompt tokens a second and the mean seconds of steps with `decodes` decodes that keep the TPOT SLO.

    A part of them has prompts and the others only decode: as many prompts as the TPOT SLO allows in each step, or fewer
    whole ones, or more, where it pays that the others save time for it. A batch scheduler spends what is saved before
    it is all there, so that the last is more than it does. The third number is how many seconds a prompt of `whole`
    tokens takes then.
    """
    prefill_slow, decode_slow = (costs.ratio(decodes=True) * phase for phase in slow)
    alone_s = costs.decode_s(decodes, context) * decode_slow

    def step_s(tokens: int) -> float:
        # It falls a little where a whole prompt fits. The largest may be missed there; what is found keeps the SLO.
        done = history + (whole // 2 if tokens < whole else 0)
        return alone_s + prefill_slow * costs.added_s(tokens, done, decodes)

    def mixed(tokens: int, rate: float, most: float = 1.0) -> Iterable[tuple[float, float, float]]:
        """Yield steps of which at most the part `most` prefills `tokens`: that makes `rate` tokens a second."""
        took_s = step_s(tokens)
        for part in PARTS:
            mean_s = alone_s + part * most * (took_s - alone_s)
            yield part * most * tokens / mean_s, mean_s, took_s + max(whole - tokens, 0) / rate

    yield 0.0, alone_s, math.inf
    if not mixes or alone_s >= costs.step_s:
        return
    within = 0.0
    if largest := largest_within(costs.step_s, costs.most_tokens, step_s):
        within = largest / step_s(largest)
        for tokens in _shared(whole, largest):
            yield from mixed(tokens, tokens / step_s(tokens))
    if gathered_s := costs.gathered_s(alone_s, costs.step_s):
        larger = largest_within(costs.step_s + gathered_s, costs.most_tokens, step_s)
        if larger and (took_s := step_s(larger)) > costs.step_s:
            rate = costs.averaged(larger, alone_s, took_s, costs.step_s)
            if costs.pays(rate, within):
                yield from mixed(larger, rate, (costs.step_s - alone_s) / (took_s - alone_s))
