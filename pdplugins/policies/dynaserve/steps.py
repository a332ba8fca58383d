"""How long a step takes that prefills some chunks and decodes some requests, cheaply enough to ask while composing it.

With a dense table (everything but attention, over the tokens of the step) both phases share that part of the step, and
a chunk adds its attention. Without one the step is the prefill of all new tokens plus the decode step, less one reading
of the weights. Both are `pdplugins.perf.table.TableModel.mixed_step_s`, taken apart.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol, runtime_checkable

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.workers import Role

CELL = 32
CELLS = 768
"""Up to 24,576 tokens; beyond that the profile is asked."""


@runtime_checkable
class DensePerf(Protocol):
    """A `PerfModel` that may know the dense part of a step."""

    def has_dense(self, tp: int) -> bool:
        """Return whether it does at this tensor-parallel size."""
        ...

    def dense_s(self, tokens: float, tp: int) -> float:
        """Seconds of all of a step but attention, when it computes `tokens` tokens."""
        ...


def shared_tp(deployment: Deployment) -> int:
    """Return the tensor-parallel size of a unified instance: that of decode, where prefill has times for it too."""
    decode_tp = deployment.decode_tp
    return decode_tp if decode_tp in deployment.perf.tp_sizes(Role.PREFILL) else deployment.prefill_tp


class Grid:
    """A function of tokens, kept every `CELL` tokens and linear between: asked hundreds of times for one batch."""

    __slots__ = ("_rises", "_time_s", "_values")

    def __init__(self, time_s: Callable[[float], float]) -> None:
        values = [time_s(index * CELL) for index in range(CELLS + 1)]
        self._time_s = time_s
        self._values = values
        self._rises = [(after - before) / CELL for before, after in pairwise(values)]

    def __call__(self, tokens: int) -> float:
        """Return the value at `tokens`."""
        index = tokens // CELL
        if index >= CELLS:
            return self._time_s(tokens)
        return self._values[index] + tokens % CELL * self._rises[index]


class StepModel:
    """Step times from a profile: ``alone_s`` of the decodes, ``added_s`` of each chunk."""

    def __init__(self, deployment: Deployment) -> None:
        self._perf: PerfModel = deployment.perf
        perf, tp = deployment.perf, shared_tp(deployment)
        self._decode_tp = deployment.decode_tp
        self._dense_s: Grid | None = None
        if isinstance(perf, DensePerf) and perf.has_dense(tp):
            self._dense_s = Grid(lambda tokens: perf.dense_s(tokens, tp))
            self._attention_s = Grid(lambda tokens: perf.prefill_s(tokens, tp) - perf.dense_s(tokens, tp))
        else:  # the whole prefill stands for it
            self._attention_s = Grid(lambda tokens: perf.prefill_s(tokens, tp))

    def alone_s(self, dnum: int, ctx: float) -> float:
        """Seconds of a step of `dnum` decodes of mean context `ctx` and no prefill."""
        return self._perf.decode_step_s(dnum, ctx, self._decode_tp) if dnum else 0.0

    def added_s(self, plen: int, dnum: int, done: int, tokens: int) -> float:
        """Seconds that a chunk of `tokens` tokens adds to a step of `dnum` decodes and `plen` prompt tokens.

        :param done: tokens of the same prompt before the chunk; it attends to them.
        """
        dense_s, attention_s, before = self._dense_s, self._attention_s, plen + dnum
        if dense_s is not None:
            added_s = dense_s(before + tokens) - (dense_s(before) if before else 0.0)
            added_s += max(attention_s(done + tokens) - attention_s(done), 0.0)
            return added_s if plen else added_s + attention_s(0)
        added_s = attention_s(plen + tokens) - (attention_s(plen) if before else 0.0)
        if done:
            more_s = attention_s(done + tokens) - attention_s(done) - attention_s(tokens) + attention_s(0)
            added_s += max(more_s, 0.0)
        return added_s
