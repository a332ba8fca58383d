"""The optimal P/D ratio: Eq. 11-16 of DOPD (Liao et al., Section IV), as pure functions over a performance model.

Symbols of the paper: ``cc_d`` concurrency of a decode worker, ``cc_g`` its largest CUDA-graph batch, ``t_p`` seconds of
one prefill, ``t_d`` seconds of one decode step, ``TP`` tensor-parallel size, ``ISL``/``OSL`` mean lengths in tokens.
"""

from __future__ import annotations

from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.request import Slo
from pdplugins.contracts.workers import Role

BATCH_SHARE = 0.9
"""Share of ``cc_g`` that a decode worker should be able to hold: Section IV-B2, under Eq. 14."""


def mean_context_tokens(isl_tokens: float, osl_tokens: float) -> float:
    """Return the mean context of a request during decode: its prompt and half of its output (Eq. 13)."""
    return isl_tokens + osl_tokens / 2


def kv_concurrency(
    perf: PerfModel, slo: Slo, isl_tokens: float, osl_tokens: float, tp: int, kv_tokens: int | None = None
) -> float:
    """Return the requests whose KV cache one decode worker can hold and read in one step (Eq. 11-13).

    The result is at least 1: a worker that cannot hold even one such request still counts as serving one at a time.
    """
    held = perf.kv_capacity_tokens(tp) if kv_tokens is None else kv_tokens
    usable = min(held, perf.kv_bandwidth_tokens(slo.tpot_s, tp))
    return max(usable / max(mean_context_tokens(isl_tokens, osl_tokens), 1.0), 1.0)


def decode_concurrency(
    perf: PerfModel,
    slo: Slo,
    isl_tokens: float,
    osl_tokens: float,
    tp: int,
    max_batch: int,
    kv_tokens: int | None = None,
) -> float:
    """Return ``cc_d``: the requests that one decode worker of `tp` GPUs serves at once (Eq. 11-14).

    :param kv_tokens: KV cache of the worker as its engine reports it; None for that of Eq. 11.
    """
    return min(kv_concurrency(perf, slo, isl_tokens, osl_tokens, tp, kv_tokens), max_batch)


def concurrency_within_tpot(perf: PerfModel, slo: Slo, context_tokens: float, tp: int, limit: float) -> float:
    """Return the largest batch up to `limit` whose decode step meets the TPOT SLO by the profile; at least 1.

    This is not in the paper. Its Eq. 12 bounds the step by memory traffic alone, but the profile knows the whole step.
    """
    if perf.decode_step_s(limit, context_tokens, tp) <= slo.tpot_s:
        return limit
    low, high = 1.0, max(limit, 1.0)
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (middle, high) if perf.decode_step_s(middle, context_tokens, tp) <= slo.tpot_s else (low, middle)
    return low


def added_s(perf: PerfModel, tokens: float, tp: int) -> float:
    """Return the seconds by which a prompt of `tokens` tokens lengthens a step that runs anyway.

    A step reads the weights once, so only the time beyond that of an empty prefill counts.
    """
    return perf.prefill_s(tokens, tp) - perf.prefill_s(0, tp)


def pd_ratio(prefill_s: float, decode_step_s: float, osl_tokens: float, concurrency: float) -> float:
    """Return the prefill workers that keep one decode worker of `concurrency` requests busy: n_p / n_d of Eq. 15."""
    return prefill_s * concurrency / (decode_step_s * osl_tokens)


def choose_tp(perf: PerfModel, slo: Slo, isl_tokens: float, osl_tokens: float, max_batch: int) -> tuple[int, int]:
    """Return the tensor-parallel sizes (prefill, decode) for requests of these mean lengths.

    By Eq. 16 a larger TP gains less than it costs, as S(TP) <= TP and tau(TP) grows. So prefill gets the smallest size
    that holds the prompt and, for a single prompt, meets the TTFT SLO. More workers serve more load, not larger ones.
    Decode gets the smallest size whose KV cache holds ``0.9 cc_g`` requests with a step inside the TPOT SLO.
    If no size qualifies, prefill gets the fastest one, and decode the one with the most KV cache.
    """
    return _prefill_tp(perf, slo, isl_tokens), _decode_tp(perf, slo, isl_tokens, osl_tokens, max_batch)


def _prefill_tp(perf: PerfModel, slo: Slo, isl_tokens: float) -> int:
    sizes = perf.tp_sizes(Role.PREFILL)
    for tp in sizes:
        answered_s = perf.prefill_s(isl_tokens, tp) + perf.transfer_s(isl_tokens)
        if perf.kv_capacity_tokens(tp) >= isl_tokens and answered_s <= slo.ttft_s:
            return tp
    return min(sizes, key=lambda tp: (perf.prefill_s(isl_tokens, tp), tp))


def _decode_tp(perf: PerfModel, slo: Slo, isl_tokens: float, osl_tokens: float, max_batch: int) -> int:
    sizes = perf.tp_sizes(Role.DECODE)
    wanted = BATCH_SHARE * max_batch
    context = mean_context_tokens(isl_tokens, osl_tokens)
    for tp in sizes:
        held = kv_concurrency(perf, slo, isl_tokens, osl_tokens, tp)
        if held >= wanted and perf.decode_step_s(wanted, context, tp) <= slo.tpot_s:
            return tp
    return max(sizes, key=lambda tp: (perf.kv_capacity_tokens(tp), -tp))
