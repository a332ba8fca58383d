"""The time of an engine step that prefills several chunks of prompts and decodes some requests.

A performance model knows the prefill time T(n) of one prompt of n tokens. Some models also know D(n), the dense part of
a step over n tokens: everything but attention. A chunk is (n, h): n new tokens after h tokens of its prompt that are in
the KV cache. N is the sum of all n, and b is the number of requests that decode in the same step.

With D, attention is A(t) = T(t) - D(t) for a prompt of t tokens:

* chunks share the dense part: a step takes ``D(N) + A(0)``, and each chunk adds ``A(h + n) - A(h)``;
* decodes add their own step time, less ``D(N) + D(b) - D(N + b)``, as both phases share one dense part.

Without D:

* chunks together take ``T(N)``, and each chunk with h > 0 adds ``T(h + n) - T(h) - T(n) + T(0)``, which is the time of
  the whole prompt beyond the times of its two parts;
* decodes add their own step time, less ``T(0)``: the weights are read once.

Some engines never mix: SGLang without ``--enable-mixed-chunk`` prefills in one step and decodes in the next. There a
step stands for both, and takes the sum of their times.

No term is ever below zero. The same code computes seconds (`step_model`) and the whole ticks of the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

from pdplugins.contracts.perf import PerfModel

Time = TypeVar("Time", int, float)
Chunk = tuple[int, int]
"""New tokens, and tokens of the same prompt before them."""


class StepModel(Generic[Time]):
    """Times of steps, in the time unit of the given functions.

    :param alone: T, the prefill time of one prompt alone, over its tokens.
    :param dense: D, the dense part of a step, over its tokens; None where it is not known.
    :param attention: A, the attention of one prompt, over its tokens; None for the difference of T and D.
    :param mixes: whether the engine prefills and decodes in one step.
    """

    __slots__ = ("alone", "attention", "dense", "mixes")

    def __init__(
        self,
        alone: Callable[[int], Time],
        dense: Callable[[int], Time] | None = None,
        attention: Callable[[int], Time] | None = None,
        *,
        mixes: bool = True,
    ) -> None:
        self.mixes = mixes
        self.alone: Callable[[int], Time] = alone
        self.dense: Callable[[int], Time] | None = dense
        if attention is None and dense is not None:
            attention = _difference(alone, dense)
        self.attention: Callable[[int], Time] = alone if attention is None else attention
        """Attention of one prompt, over its tokens. Without D this is the whole prefill time."""

    def prefill(self, chunks: Sequence[Chunk]) -> Time:
        """Return the time of a step that prefills `chunks`."""
        if len(chunks) == 1 and not chunks[0][1]:
            return self.alone(chunks[0][0])
        tokens = sum([new for new, _ in chunks])
        dense = self.dense
        shared = self.alone(tokens) if dense is None else dense(tokens) + self.attention(0)
        return shared + sum([self.attending(new, earlier) for new, earlier in chunks])

    def attending(self, new: int, earlier: int) -> Time:
        """Return the time that a chunk takes beyond what all chunks of a step share."""
        attention = self.attention
        if self.dense is not None:
            return max(attention(earlier + new) - attention(earlier), 0)
        if not earlier:
            return 0
        return max(attention(earlier + new) - attention(earlier) - attention(new) + attention(0), 0)

    def saved(self, tokens: int, batch: int) -> Time:
        """Return the time saved when `tokens` prompt tokens and `batch` decodes share one step instead of using two."""
        if not self.mixes:
            return 0
        if (dense := self.dense) is None:
            return self.alone(0)
        return dense(tokens) + dense(batch) - dense(tokens + batch)

    def mixed(self, chunks: Sequence[Chunk], batch: int, decode: Time) -> Time:
        """Return the time of a step that prefills `chunks` and decodes `batch` requests.

        :param decode: time of a step that only decodes them.
        """
        if not batch:
            return self.prefill(chunks)
        if not (tokens := sum([new for new, _ in chunks])):
            return decode
        return self.prefill(chunks) + max(decode - self.saved(tokens, batch), 0)

    def added(self, new: int, earlier: int, tokens: int, batch: int) -> Time:
        """Return the time that one more chunk adds to a step of `tokens` prompt tokens and `batch` decodes.

        The sum over the chunks of a step, plus the time of its decodes, equals `mixed`, savings included. Callers that
        compose a step chunk by chunk use this.
        """
        dense, attending = self.dense, self.attending(new, earlier)
        if not self.mixes:
            batch = 0
        if dense is None:
            return self.alone(tokens + new) - (self.alone(tokens) if tokens + batch else 0) + attending
        before = tokens + batch
        added = dense(before + new) - (dense(before) if before else 0) + attending
        return added if tokens else added + self.attention(0)


def _difference(alone: Callable[[int], Time], dense: Callable[[int], Time]) -> Callable[[int], Time]:
    return lambda tokens: alone(tokens) - dense(tokens)


def dense_part(perf: PerfModel, tp: int) -> Callable[[float], float] | None:
    """Return D of a model at one tensor-parallel size, in seconds over tokens; None where the model has none."""
    if perf.dense_s(0, tp) is None:
        return None
    return lambda tokens: cast(float, perf.dense_s(tokens, tp))


def step_model(perf: PerfModel, tp: int, *, mixes: bool = True) -> StepModel[float]:
    """Return the step times of a model at one tensor-parallel size, in seconds."""
    return StepModel(lambda tokens: perf.prefill_s(tokens, tp), dense_part(perf, tp), mixes=mixes)
