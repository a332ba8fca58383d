"""The cheapest GPU-seconds of a prompt token and of an output token (docs/bound.md, Lemma 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from pdplugins.studies.bound.steps import Array, Steps

MARGIN = 1e-9
"""Least share by which rates are lowered to allow for rounding, because the simulator rounds to ticks."""
TOLERANCE_S = 1e-9
"""GPU-seconds by which a step may still be too cheap when the search for rates ends; `_inside` corrects that."""
MOST_ROUNDS = 100
MOST_RATE = 1e6
"""Largest rate in GPU-seconds, which bounds the program while it has few steps."""


@dataclass(frozen=True)
class Rates:
    """No step costs fewer GPU-seconds than its tokens at these rates."""

    prompt: float
    """GPU-seconds of one new prompt token."""
    token: float
    """GPU-seconds of one output token."""
    context: float
    """GPU-seconds of reading one token of context."""
    slack: float
    """Extra GPU-seconds of an output token for each second by which its step is shorter than the TPOT objective."""


def best_rates(
    steps: Steps, mix: tuple[float, float, float], tpot_s: float, anew: tuple[float, float] | None = None
) -> Rates:
    """Return the rates with the highest cost of a workload. Constraints are added until no step is too cheap.

    A step is too cheap if it costs less than its tokens at these rates.

    :param mix: new prompt tokens and output tokens of the workload, and tokens of context that the outputs read.
    :param anew: (context, tokens to recompute) of an example request. Its output token must not cost more than
        recomputing its context, because anything above that does not raise the bound.
    """
    families = len(steps.decodes)
    decode, prefill = steps.decodes, steps.prefills  # start with the first parts of each family
    lines, limits = [np.zeros((1, 4))], [np.zeros(1)]
    if anew is not None:
        lines[0][0] = (-anew[1], 1.0, anew[0], tpot_s)
    rates = np.zeros(4)
    for _ in range(MOST_ROUNDS):
        line, limit = _lines(steps, decode, prefill, tpot_s)
        lines.append(line)
        limits.append(limit)
        rates = _solve(np.concatenate(lines), np.concatenate(limits), mix)
        over, decode, prefill = _worst(steps, rates, tpot_s)
        worst = np.argsort(over)[-families // 8 :]
        worst = worst[over[worst] > 0]
        if not len(worst) or over.max() < TOLERANCE_S:
            break
        decode, prefill = decode[worst], prefill[worst]
    return Rates(*(float(rate) for rate in _inside(steps, rates, tpot_s)))


def _lines(steps: Steps, decode: Array, prefill: Array, tpot_s: float) -> tuple[Array, Array]:
    """Return the constraints ``line @ rates <= limit`` of the steps of these parts, as shares of their cost."""
    took_s = steps.took_s[decode] + steps.added_s[prefill]
    counted = steps.counted[decode]
    line = np.column_stack((steps.new[prefill], counted, steps.context[decode], -counted * (took_s - tpot_s)))
    cost = np.maximum(steps.gpus[decode] * took_s, 1e-12)
    return line / cost[:, None], np.ones(len(cost))


def _worst(steps: Steps, rates: Array, tpot_s: float) -> tuple[Array, Array, Array]:
    """Return for each family by how many GPU-seconds its cheapest step is too cheap, and the parts of that step."""
    prompt, token, context, slack = rates
    decode = (
        token * steps.counted
        + context * steps.context
        - slack * steps.counted * (steps.took_s - tpot_s)
        - steps.gpus * steps.took_s
    )
    # A family has one kind of worker and one count, so its first decode part gives both.
    sizes = np.diff(np.append(steps.prefills, len(steps.new)))
    price = np.repeat((slack * steps.counted + steps.gpus)[steps.decodes], sizes)
    prefill = prompt * steps.new - price * steps.added_s
    best = [_argmax(values, begins) for values, begins in ((decode, steps.decodes), (prefill, steps.prefills))]
    return decode[best[0]] + prefill[best[1]], best[0], best[1]


def _argmax(values: Array, begins: Array) -> Array:
    """Return the index of the maximum of each part of `values`."""
    largest = np.maximum.reduceat(values, begins)
    owner = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(values))))
    found = np.flatnonzero(values == largest[owner])
    return np.asarray(found[np.unique(owner[found], return_index=True)[1]])


def _inside(steps: Steps, rates: Array, tpot_s: float) -> Array:
    """Return `rates`, lowered until no step is cheaper than its tokens. Zero rates always qualify."""
    less = MARGIN
    while less < 1:
        lowered = rates * (1 - less)
        if _worst(steps, lowered, tpot_s)[0].max() <= 0:
            return lowered
        less *= 2
    return np.zeros(4)


def _solve(lines: Array, limits: Array, mix: tuple[float, float, float]) -> Array:
    value = np.array([*mix, 0.0])
    found = linprog(-value / max(value.max(), 1.0), A_ub=lines, b_ub=limits, bounds=(0, MOST_RATE), method="highs")
    return np.zeros(4) if found.x is None else np.asarray(np.maximum(found.x, 0.0))
