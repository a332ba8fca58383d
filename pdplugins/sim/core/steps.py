"""How long a step takes, and how long a run of decode steps takes, in closed form.

For a batch of b requests the time of a decode step is piecewise linear in its total context n, because the tables of a
profile are linear between their knots. Every step adds b tokens. So inside one piece ``base + slope * n``, k steps that
start at n take ``k * (base + slope * n) + slope * b * k (k - 1) / 2``. All terms are whole ticks, so the sum is exact.

A step with prefill is one event. `pdplugins.perf.steps` says how long it takes. Each term of that sum is rounded to
whole ticks here, and cached.
"""

from __future__ import annotations

from bisect import bisect_right
from math import ceil, sqrt

from pdplugins.contracts.perf import PerfModel
from pdplugins.perf.steps import StepModel, dense_part
from pdplugins.sim.core.clock import ticks

DEFAULT_CONTEXTS = tuple(64.0 * 1.25**power for power in range(35))
"""Mean contexts, 64 to about 126,000 tokens, at which a model that names no knots is tabulated."""

Chunks = list[tuple[int, int]]
"""New tokens and earlier tokens of each chunk of a step."""


class Line:
    """Decode step time of one batch size over total context: continuous, non-decreasing and piecewise linear."""

    __slots__ = ("base", "batch", "bounds", "slope")

    def __init__(self, batch: int, contexts: list[float], times_s: list[float], slow: float) -> None:
        self.batch = batch
        bounds = self.bounds = [ceil(context * batch) for context in contexts[1:-1]]
        """First total context of each piece but the first."""
        self.base: list[int] = []
        self.slope: list[int] = []
        left, low, base, slope = contexts[0], times_s[0], 0, 0
        for index in range(len(contexts) - 1):
            right, high = contexts[index + 1], times_s[index + 1]
            earlier, flatter = base, slope
            slope = max(ticks(slow * (high - low) / ((right - left) * batch)), 0)
            base = max(ticks(slow * low), 1) - int(slope * left * batch + 0.5)
            if index:  # rounding must not let a longer context take less time
                bound = bounds[index - 1]
                base = max(base, earlier + flatter * (bound - 1) - slope * bound)
            self.base.append(base)
            self.slope.append(slope)
            left, low = right, high

    def step(self, context: int) -> int:
        """Return the time of one step that reads `context` tokens in all."""
        piece = bisect_right(self.bounds, context)
        return self.base[piece] + self.slope[piece] * context

    def span(self, context: int, steps: int) -> int:
        """Return the time of `steps` steps, the first of which reads `context` tokens."""
        batch, bounds = self.batch, self.bounds
        piece, total = bisect_right(bounds, context), 0
        while steps:
            here = steps
            if piece < len(bounds):
                within = -((context - bounds[piece]) // batch)
                if within < here:  # noqa: PLR1730 - min() is slower here
                    here = within
            slope = self.slope[piece]
            total += here * (self.base[piece] + slope * context) + slope * batch * (here * (here - 1) // 2)
            if here == steps:
                break
            steps -= here
            context += here * batch
            piece = bisect_right(bounds, context, piece)
        return total

    def until(self, context: int, time: int) -> tuple[int, int]:
        """Return the fewest steps that take at least `time`, and the time that they take."""
        batch, bounds = self.batch, self.bounds
        piece, steps, total = bisect_right(bounds, context), 0, 0
        while True:
            slope = self.slope[piece]
            first, growth = self.base[piece] + slope * context, slope * batch
            if piece < len(bounds):
                here = -((context - bounds[piece]) // batch)
                whole = here * first + growth * (here * (here - 1) // 2)
                if total + whole < time:
                    steps, total, context = steps + here, total + whole, context + here * batch
                    piece = bisect_right(bounds, context, piece)
                    continue
            here = _fewest(first, growth, time - total)
            return steps + here, total + here * first + growth * (here * (here - 1) // 2)


def _fewest(first: int, growth: int, time: int) -> int:
    """Return the fewest steps that take `time`, the first taking `first` and each later one `growth` more."""
    if time <= 0:
        return 0
    if growth:
        half = first - growth / 2
        guess = int(2 * time / (half + sqrt(half * half + 2.0 * growth * time)))
    else:
        guess = time // first
    while guess * first + growth * (guess * (guess - 1) // 2) < time:
        guess += 1
    while guess and (guess - 1) * first + growth * ((guess - 1) * (guess - 2) // 2) >= time:
        guess -= 1
    return guess


class StepTimes:
    """All step times of one performance model at one tensor-parallel size, in ticks. Equal workers share one.

    :param mixed_scale: factor on the time that prefill adds to a step with decodes; 1.0 for the sum that the profile
        gives. No profile was measured in mixed steps, so this tells how much a result depends on that sum.
    :param mixes: whether engines prefill and decode in one step; else a mixed step stands for one of each kind.
    """

    def __init__(self, perf: PerfModel, tp: int, mixed_scale: float = 1.0, mixes: bool = True) -> None:
        self._perf = perf
        self._tp = tp
        self._mixed_scale = mixed_scale
        self._contexts = _contexts(perf, tp)
        self._lines: dict[float, dict[int, Line]] = {}
        self._prefill: dict[int, int] = {}
        self._dense: dict[int, int] = {}
        self._attention: dict[int, int] = {}
        self._dense_s = dense_part(perf, tp)
        self._steps: StepModel[int] = StepModel(self._alone, mixes=mixes)
        if self._dense_s is not None:
            self._steps = StepModel(self._alone, self._dense_part, self._attention_part, mixes=mixes)

    def line(self, batch: int, slow: float = 1.0) -> Line:
        """Return the decode step times of a batch of `batch` requests, `slow` times as long as the profile says."""
        lines = self.lines(slow)
        if (line := lines.get(batch)) is None:
            row = self._perf.decode_row_s(batch, self._tp)
            if row is None:
                row = tuple([self._perf.decode_step_s(batch, context, self._tp) for context in self._contexts])
            line = lines[batch] = Line(batch, self._contexts, list(row), slow)
        return line

    def lines(self, slow: float) -> dict[int, Line]:
        """Return the lines computed so far at one slowdown, by batch size."""
        return self._lines.setdefault(slow, {})

    def prefill(self, chunks: Chunks, slow: float = 1.0) -> int:
        """Return the time of a step that prefills `chunks`."""
        time = self._steps.prefill(chunks)
        return time if slow == 1.0 else round(time * slow)

    def mixed(self, chunks: Chunks, batch: int, context: int, slow: tuple[float, float] = (1.0, 1.0)) -> int:
        """Return the time of a step that prefills `chunks` and decodes `batch` requests of `context` tokens in all.

        Whatever the scale of mixed steps is, it is never less than the time of either phase alone.

        :param slow: slowdown of prefill and of decode. The time that the phases save by sharing a step is not slowed.
        """
        time = self.prefill(chunks, slow[0])
        if not batch:
            return time
        saved = self._steps.saved(sum([new for new, _ in chunks]), batch)
        decode = self.line(batch, slow[1]).step(context)
        both = time + max(decode - saved, 0)
        if self._mixed_scale == 1.0:
            return both
        return max(time, decode, decode + round(self._mixed_scale * (both - decode)))

    def _dense_part(self, tokens: int) -> int:
        """Return the time of a step without its attention."""
        if (time := self._dense.get(tokens)) is None:
            dense_s = self._dense_s
            assert dense_s is not None  # noqa: S101 - the step model calls this only where dense_s exists
            time = self._dense[tokens] = max(ticks(dense_s(tokens)), 1)
        return time

    def _attention_part(self, tokens: int) -> int:
        if (time := self._attention.get(tokens)) is None:
            time = self._attention[tokens] = self._alone(tokens) - self._dense_part(tokens)
        return time

    def _alone(self, tokens: int) -> int:
        """Return the prefill time of one prompt."""
        if (time := self._prefill.get(tokens)) is None:
            time = self._prefill[tokens] = max(ticks(self._perf.prefill_s(tokens, self._tp)), 1)
        return time


def _contexts(perf: PerfModel, tp: int) -> list[float]:
    """Return the contexts of a line: zero, the knots of the model, and one beyond, which gives the slope outside."""
    own = perf.decode_contexts(tp)
    knots = DEFAULT_CONTEXTS if own is None else own
    return [0.0, *knots, 2 * knots[-1] - knots[-2]]
