"""Times of mixed steps, cheap enough to be read hundreds of times while one batch is composed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.workers import Role
from pdplugins.perf.steps import StepModel, dense_part

CELL_TOKENS = 32
CELLS = 768
"""Cells of a grid. They reach up to 24,576 tokens; beyond that the profile itself is read."""


def shared_tp(deployment: Deployment) -> int:
    """Return the tensor-parallel size of a worker that does both phases.

    This is the size of decode workers if the profile has prefill times for it, else the size of prefill workers.
    """
    decode_tp = deployment.decode_tp
    return decode_tp if decode_tp in deployment.perf.tp_sizes(Role.PREFILL) else deployment.prefill_tp


class Grid:
    """A function of tokens, tabulated every `CELL_TOKENS` tokens and linear in between."""

    __slots__ = ("_rises", "_time_s", "_values")

    def __init__(self, time_s: Callable[[float], float]) -> None:
        values = [time_s(index * CELL_TOKENS) for index in range(CELLS + 1)]
        self._time_s = time_s
        self._values = values
        self._rises = [(after - before) / CELL_TOKENS for before, after in pairwise(values)]

    def __call__(self, tokens: int) -> float:
        """Return the value at `tokens`."""
        index = tokens // CELL_TOKENS
        if index >= CELLS:
            return self._time_s(tokens)
        return self._values[index] + tokens % CELL_TOKENS * self._rises[index]


def grid_steps(perf: PerfModel, tp: int, *, mixes: bool) -> StepModel[float]:
    """Return `pdplugins.perf.steps.step_model` over grids instead of the profile itself."""

    def prefill_s(tokens: float) -> float:
        return perf.prefill_s(tokens, tp)

    if (dense_s := dense_part(perf, tp)) is None:
        return StepModel(Grid(prefill_s), mixes=mixes)
    attention = Grid(lambda tokens: prefill_s(tokens) - dense_s(tokens))
    return StepModel(prefill_s, Grid(dense_s), attention, mixes=mixes)


def adder(steps: StepModel[float], earlier: int, tokens: int, batch: int) -> Callable[[int], float]:
    """Return `StepModel.added` as a function of the new tokens alone, for a search that tries many."""
    attention, dense = steps.attention, steps.dense
    if dense is None:
        return lambda new: steps.added(new, earlier, tokens, batch)
    knows_dense, before = dense, tokens + batch if steps.mixes else tokens
    dense_before = dense(before) if before else 0.0
    attended, alone = attention(earlier), 0.0 if tokens else attention(0)

    def added(new: int) -> float:
        attending = attention(earlier + new) - attended
        return knows_dense(before + new) - dense_before + (attending if attending > 0 else 0.0) + alone

    return added
