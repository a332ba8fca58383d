"""Algorithm 2 of the paper as printed (lines 10-14), for `paper_literal`. It differs from Eq. 13-15 in two places.

Line 11 reads TPOT at (i + o) / 2 where a decode's mean context is i + o / 2 (Eq. 13), and at the total concurrency r
where a worker runs its share. Line 14 multiplies the ratio, which already holds r, by n_d: with more than one decode
worker it counts them twice and asks for more prefill workers than Eq. 15 does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdplugins.contracts.deployment import Deployment
from pdplugins.policies.dopd.load import Load
from pdplugins.policies.dopd.ratio import decode_concurrency, pd_ratio


@dataclass(frozen=True, slots=True)
class Literal:
    """What Algorithm 2 answers."""

    prefill: int
    decode: int
    cc_d: float
    ratio: float
    prefill_s: float
    decode_step_s: float


def algorithm_2(load: Load, deployment: Deployment) -> Literal:
    """Return the pools for a forecast whose `amount` is the request concurrency r."""
    perf = deployment.perf
    concurrency = load.amount
    cc_d = decode_concurrency(
        perf,
        deployment.slo,
        load.isl_tokens,
        load.osl_tokens,
        deployment.decode_tp,
        deployment.max_batch,
        deployment.kv_tokens,
    )
    ttft = perf.prefill_s(load.isl_tokens, deployment.prefill_tp)  # line 10
    context = (load.isl_tokens + load.osl_tokens) / 2
    tpot = perf.decode_step_s(max(concurrency, 1.0), context, deployment.decode_tp)  # line 11
    ratio = pd_ratio(ttft, tpot, load.osl_tokens, concurrency)  # line 12
    decode = max(math.ceil(concurrency / cc_d), 1)  # line 13
    prefill = max(math.ceil(ratio * decode), 1)  # line 14
    return Literal(prefill, decode, cc_d, ratio, ttft, tpot)
