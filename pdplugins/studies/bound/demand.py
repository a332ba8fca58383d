"""The least work of each request in GPU-seconds, and its time windows in seconds (docs/bound.md, Lemma 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pdplugins.contracts.request import Slo
from pdplugins.sim.core.clock import TICKS_PER_S
from pdplugins.sim.core.steps import StepTimes
from pdplugins.studies.bound.rates import Rates, best_rates
from pdplugins.studies.bound.steps import Array, Kind, steps_of
from pdplugins.workloads.trace import TraceRequest

LATE = 1 + 1e-9
"""Factor by which a time may exceed an objective, to allow for rounding."""


@dataclass(frozen=True)
class Demand:
    """The requests that can meet both objectives, one entry each."""

    total: int
    """Requests of the trace, including all rounds of all sessions."""
    free: int
    """Later rounds of sessions. Their arrival depends on the policy, so they count as served without cost."""
    prefill: Array
    """GPU-seconds of the prompt."""
    decode: Array
    """GPU-seconds of the output after the first token."""
    arrival_s: Array
    first_by_s: Array
    """Latest time of the first token."""
    decode_from_s: Array
    """Earliest time of the first token."""
    last_by_s: Array
    """Latest time of the last token."""
    rates: Rates
    last_arrival_s: float
    """Latest arrival of any request."""

    @property
    def hopeless(self) -> int:
        """Number of requests that miss an objective on any worker, even when they run alone."""
        return self.total - self.free - len(self.prefill)


def demand_of(trace: Sequence[TraceRequest], kinds: Sequence[Kind], slo: Slo, max_batch: int, block: int) -> Demand:
    """Return the demand of `trace` on workers of `kinds`."""
    arrival = np.array([request.arrival_s for request in trace])
    isl = np.array([request.isl_tokens for request in trace])
    osl = np.array([request.osl_tokens for request in trace])
    again = np.array(_cacheable(trace, block, slo.ttft_s * LATE), dtype=int)
    own = np.array([isl if r.session else len(r.blocks) * block for r, isl in zip(trace, isl, strict=True)], dtype=int)
    new = np.maximum(isl - again, 1)
    least_s = _fastest_prefill(kinds, isl, new)
    fits = isl + osl - 1 <= max(kind.kv_tokens for kind in kinds)
    tokens, tpot_s = osl - 1, slo.tpot_s * LATE
    step_s = _fastest_step(kinds, isl, np.maximum(isl + 1 - own, 1))
    able = fits & (least_s <= slo.ttft_s * LATE) & ((tokens == 0) | (step_s <= tpot_s))

    read = tokens * isl + tokens * (tokens - 1) // 2
    steps = steps_of(kinds, max_batch, int((isl + osl).max()), any(request.blocks for request in trace))
    mix = (float(new[able].sum()), float(tokens[able].sum()), float(read[able].sum()))
    trials = []
    for anew in _examples(isl[able], own[able]):
        rates = best_rates(steps, mix, tpot_s, anew)
        prefill, decode = rates.prompt * new, _decode_work(rates, isl, tokens, own, tpot_s)
        trials.append((float((prefill + decode)[able].sum()), rates, prefill, decode))
    _, rates, prefill, decode = max(trials, key=lambda trial: trial[0])
    prefill = prefill + _attention(kinds, isl, isl - new)
    first_by = arrival + slo.ttft_s * LATE
    return Demand(
        total=sum(1 + len(request.rounds) for request in trace),
        free=sum(len(request.rounds) for request in trace),
        prefill=prefill[able],
        decode=decode[able],
        arrival_s=arrival[able],
        first_by_s=first_by[able],
        decode_from_s=(arrival + least_s)[able],
        last_by_s=(first_by + tpot_s * tokens)[able],
        rates=rates,
        last_arrival_s=float(arrival.max()),
    )


def _examples(isl: Array, own: Array) -> list[tuple[float, float] | None]:
    """Return a request with little to recompute, one with a medium amount, and None. Rates are tried for each."""
    anew = np.maximum(isl + 1 - own, 1)
    order = np.argsort(anew, kind="stable")
    picks = [order[len(order) * share // 100] for share in (5, 50)] if len(order) else []
    return [*((float(isl[pick]), float(anew[pick])) for pick in picks), None]


def _decode_work(rates: Rates, isl: Array, tokens: Array, own: Array, tpot_s: float) -> Array:
    """Return the GPU-seconds of all output tokens after the first.

    A token at context c comes from a decode step or from a recomputation, whichever is cheaper. A recomputation is the
    prefill of a preempted request: it computes the context again, except for what the cache still has of its prompt.
    """
    flat, slope = rates.token, rates.context
    flat_anew = rates.prompt * (1 - own) - rates.slack * tpot_s
    steeper = rates.prompt - slope
    if steeper > 0:  # recomputing is cheaper only for short contexts
        until = np.ceil((flat - flat_anew) / steeper)
        anew = np.clip(until - isl, 0, tokens)
        low_anew = np.clip(np.ceil(-flat_anew / rates.prompt) - isl, 0, anew)  # it costs nothing below this context
        work = _sum(flat_anew, rates.prompt, isl + low_anew, anew - low_anew)
        return np.asarray(work + _sum(flat, slope, isl + anew, tokens - anew))
    return np.zeros(len(isl))


def _sum(flat: Array | float, slope: float, start: Array, count: Array) -> Array:
    """Return the sum of flat + slope * c for `count` contexts from `start`."""
    return np.asarray(count * flat + slope * (count * start + count * (count - 1) / 2))


def _fastest_prefill(kinds: Sequence[Kind], isl: Array, new: Array) -> Array:
    """Return the fewest seconds to prefill each prompt alone, with any division into chunks."""
    best = np.full(len(isl), np.inf)
    unique, where = np.unique(new, return_inverse=True)
    for kind in kinds:
        lengths, times = np.array(kind.points()).T
        per_token = np.minimum.accumulate(np.array([kind.base_s(int(tokens)) for tokens in times]) / lengths)
        before = np.searchsorted(lengths, unique, side="right") - 1
        whole = np.array([kind.base_s(int(tokens)) for tokens in unique])
        best = np.minimum(best, np.minimum(whole, unique * per_token[before])[where])
    return best


def _fastest_step(kinds: Sequence[Kind], isl: Array, anew: Array) -> Array:
    """Return the fewest seconds between two tokens of each request: a decode step alone, or a recomputation."""
    best = np.full(len(isl), np.inf)
    for kind in kinds:
        line = StepTimes(kind.perf, kind.tp).line(1)
        for counts, ask in ((isl, lambda c, line=line: line.step(c) / TICKS_PER_S), (anew, kind.base_s)):
            unique, where = np.unique(counts, return_inverse=True)
            best = np.minimum(best, np.array([ask(int(count)) for count in unique])[where])
    return best


def _attention(kinds: Sequence[Kind], isl: Array, cached: Array) -> Array:
    """Return the GPU-seconds of attention of the uncached part of each prompt, if all models know attention."""
    if not all(kind.has_dense() for kind in kinds):
        return np.zeros(len(isl))
    knots = np.array(sorted({0, int(isl.max()), *(k for kind in kinds for k in kind.knots() if k < isl.max())}))
    slopes = [np.diff([kind.tp * kind.attention_s(int(knot)) for knot in knots]) / np.diff(knots) for kind in kinds]
    grown = np.concatenate(([0.0], np.cumsum(np.min(slopes, axis=0) * np.diff(knots))))
    return np.maximum(np.interp(isl, knots, grown) - np.interp(cached, knots, grown), 0.0)


def _cacheable(trace: Sequence[TraceRequest], block: int, ttft_s: float) -> list[int]:
    """Return the leading tokens of each prompt that some worker may have cached before its first token is due.

    A request must compute a block itself only if no other request that arrives before that time has the block.
    """
    arrivals: dict[int, list[float]] = {}
    for request in trace:
        for key in set(request.blocks):
            arrivals.setdefault(key, []).append(request.arrival_s)
    seen: set[str] = set()
    found = []
    for request in trace:
        hits = 0
        for key in request.blocks:
            first, *others = arrivals[key]
            if first == request.arrival_s and (not others or others[0] > request.arrival_s + ttft_s):
                break
            hits += 1
        known = request.session is not None and request.session in seen
        if request.session is not None:
            seen.add(request.session)
        found.append(request.isl_tokens - 1 if known else min(hits * block, request.isl_tokens - 1))
    return found
