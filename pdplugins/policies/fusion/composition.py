"""The composition of the pool: how many workers prefill only, and how many decode and prefill beside that.

A linear programme over step types. Each column is a step: prompt tokens M, decodes b, and its time t within the TPOT
SLO. It spends workers on columns so that the request rate is as large as possible::

    max rate   with   sum x M / t >= rate * ISL,   sum x b / t >= rate * OSL,   sum x <= workers

Co-location and every split into prefill and decode workers are points of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from pdplugins.contracts.batching import BatchView
from pdplugins.policies.dynaserve.batching import Step
from pdplugins.policies.fusion.costs import Costs

SIZES = 24
"""Batch sizes that are tried."""
MIXED_TOKENS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Column:
    """One kind of step."""

    prefill_tokens: int
    decodes: int
    step_s: float


@dataclass(frozen=True, slots=True)
class Composition:
    """What the programme says."""

    rate: float
    """Requests a second that the pool serves at most."""
    prefill_only: float
    """Workers that only prefill; a fraction."""


def columns(costs: Costs, isl: float, osl: float, kv_tokens: int, max_batch: int) -> list[Column]:
    """Return the steps that keep the TPOT SLO, for prompts of `isl` and outputs of `osl` tokens."""
    context = isl + osl / 2
    whole = max(int(isl), 1)
    found = [Column(whole, 0, costs.prefill_s(whole))]
    most = min(max_batch, int(kv_tokens / context))
    for decodes in np.unique(np.round(np.geomspace(1, max(most, 1), SIZES)).astype(int)).tolist():
        alone_s = costs.decode_s(decodes, context)
        if alone_s > costs.step_s:
            break
        found.append(Column(0, decodes, alone_s))
        for tokens in MIXED_TOKENS:
            step = Step(costs.table, BatchView((), decodes, int(decodes * context)), costs.step_s)
            time_s = alone_s + costs.table.steps.added(tokens, whole // 2 if tokens < whole else 0, 0, decodes)
            if time_s > costs.step_s:
                break
            found.append(Column(tokens, decodes, time_s))
    return found


def solve(steps: Sequence[Column], workers: int, isl: float, osl: float, prefill_only: int | None = None) -> Composition:
    """Return the best composition, or the best with a given number of workers that only prefill."""
    only = np.array([step.decodes == 0 for step in steps])
    times = np.array([step.step_s for step in steps])
    prefill = np.array([step.prefill_tokens for step in steps]) / times
    decode = np.array([step.decodes for step in steps]) / times
    limits = [np.append(-prefill, isl), np.append(-decode, osl)]
    bounds: list[float] = [0.0, 0.0]
    if prefill_only is None:
        limits.append(np.append(np.ones(len(steps)), 0.0))
        bounds.append(workers)
    else:
        limits += [np.append(only.astype(float), 0.0), np.append((~only).astype(float), 0.0)]
        bounds += [prefill_only, workers - prefill_only]
    goal = np.append(np.zeros(len(steps)), -1.0)
    answer = linprog(goal, A_ub=np.array(limits), b_ub=np.array(bounds), bounds=(0, None))
    if not answer.success:
        return Composition(0.0, 0.0)
    return Composition(float(answer.x[-1]), float(answer.x[:-1][only].sum()))
