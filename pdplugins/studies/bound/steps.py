"""The extreme steps of an engine, as arrays. They bound the work of a GPU-second (docs/bound.md, Lemma 1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from pdplugins.contracts.perf import PerfModel
from pdplugins.perf.steps import StepModel, step_model
from pdplugins.sim.core.clock import TICKS_PER_S
from pdplugins.sim.core.steps import StepTimes

Array = np.ndarray[Any, Any]

GRID = 1.03
"""Ratio of successive prompt lengths at which the times of a model without known knots are taken."""


@dataclass(frozen=True)
class Kind:
    """One kind of worker that a policy may use."""

    perf: PerfModel
    tp: int
    kv_tokens: int
    mixed_step_scale: float = 1.0

    @cached_property
    def steps(self) -> StepModel[float]:
        """Times of whole steps."""
        return step_model(self.perf, self.tp)

    def has_dense(self) -> bool:
        """Return whether the model knows attention separately, and its knots, so that attention can be bounded."""
        return self.steps.dense is not None and self._knots is not None

    def knots(self) -> list[int]:
        """Return the token counts between which prefill times are linear; empty where the model does not know them."""
        return sorted({round(side) for knot in self._knots or () for side in (np.floor(knot), np.ceil(knot))})

    @cached_property
    def _knots(self) -> tuple[float, ...] | None:
        return self.perf.prefill_knots(self.tp)

    @cached_property
    def least_attention_s(self) -> float:
        """Least seconds of attention of any step with prefill. Computed, as a model's tables may be inconsistent."""
        return min(self.attention_s(tokens) for tokens in (0, *self.knots(), self.kv_tokens))

    def base_s(self, tokens: int) -> float:
        """Seconds of a step that prefills `tokens` new tokens, without attention to others where that is known."""
        if self.has_dense():
            return self._dense_s(tokens) + self.least_attention_s
        return self.steps.alone(tokens)

    def attention_s(self, tokens: int) -> float:
        """Seconds of attention of a prompt of `tokens` tokens; 0 where the model does not know attention."""
        return self.steps.attention(tokens) if self.has_dense() else 0.0

    def added_s(self, tokens: int, batch: int) -> float:
        """Least seconds that `tokens` new prompt tokens add to a decode step of `batch` requests, without attention."""
        if self.has_dense():
            added = self.base_s(tokens + batch) - self._dense_s(batch)
        else:
            added = self.steps.alone(tokens) - self.steps.alone(0)
        return min(added, self.mixed_step_scale * added)

    def _dense_s(self, tokens: int) -> float:
        dense = self.steps.dense
        assert dense is not None  # noqa: S101 - callers have asked
        return dense(tokens)

    def points(self, shifts: Iterable[int] = (0,)) -> list[tuple[int, int]]:
        """Return the prompt lengths at which a bound that is linear in tokens has to be checked.

        Each is a pair: the tokens, and the tokens whose time is used for them. Both are equal at the knots of a model.
        For a model without known knots the time of fewer tokens is used, which is safe because times never fall.

        :param shifts: batch sizes. Decodes in the same step move the knots of the dense part to fewer prompt tokens.
        """
        limit = self.kv_tokens
        if knots := self.knots():
            here = {knot - shift for knot in knots for shift in shifts}
            return [(n, n) for n in sorted(here | {1, limit}) if 0 < n <= limit]
        grid = [1]
        while grid[-1] < limit:
            grid.append(max(grid[-1] + 1, int(grid[-1] * GRID)))
        return [
            (1, 1),
            *((after - 1, before) for before, after in pairwise(grid)),
            (limit, grid[-1]),
        ]


@dataclass(frozen=True)
class Steps:
    """Extreme steps, in families. In a family, each decode part can be combined with each prefill part.

    A quantity that is linear in both parts is extreme where each part is extreme. So a family stores its parts side by
    side instead of their combinations.
    """

    counted: Array
    """For each decode part: decodes that count. Other decodes of the batch may miss their objectives."""
    context: Array
    """Tokens of context that the step reads."""
    took_s: Array
    """Seconds of the step without its prefill part."""
    gpus: Array
    decodes: Array
    """Where the decode parts of each family begin."""
    new: Array
    """For each prefill part: new prompt tokens."""
    added_s: Array
    """Seconds that it adds."""
    prefills: Array
    """Where the prefill parts of each family begin."""


def steps_of(kinds: Sequence[Kind], max_batch: int, longest: int, shared: bool) -> Steps:
    """Return the extreme steps of all `kinds`. A linear inequality that holds for them holds for every step.

    :param longest: tokens of the longest context.
    :param shared: whether requests share prefix blocks. Then a batch may read more tokens than the cache holds.
    """
    families = [family for kind in kinds for family in _families(kind, max_batch, longest, shared)]
    decodes, prefills = (np.concatenate([family[part] for family in families], axis=1) for part in (0, 1))
    begins = [np.cumsum([0, *(family[part].shape[1] for family in families[:-1])]) for part in (0, 1)]
    counted, context, took_s, gpus = decodes
    return Steps(counted, context, took_s, gpus, begins[0], prefills[0], prefills[1], begins[1])


def _families(kind: Kind, max_batch: int, longest: int, shared: bool) -> Iterator[tuple[Array, Array]]:
    points = kind.points()
    prefill_only = [(new, kind.base_s(timed)) for new, timed in points]
    yield np.array([[0.0], [0.0], [0.0], [kind.tp]]), np.array(prefill_only).T
    times = StepTimes(kind.perf, kind.tp)
    for batch in range(1, min(max_batch, kind.kv_tokens) + 1):
        most = batch * longest if shared else min(batch * longest, kind.kv_tokens)
        line = times.line(batch)
        bends = (bound + side for bound in line.bounds for side in (-1, 0))
        contexts = sorted({min(batch, most), most, *(bend for bend in bends if batch <= bend <= most)})
        steps = np.array([(context, line.step(context) / TICKS_PER_S, kind.tp) for context in contexts]).T
        with_prefill = kind.points((0, batch)) if kind.has_dense() else points
        added = [(0.0, 0.0), *((new, kind.added_s(timed, batch)) for new, timed in with_prefill)]
        for counted in {1, batch}:
            yield np.vstack((np.full(len(contexts), counted), steps)), np.array(added).T
