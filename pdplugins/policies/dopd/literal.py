"""Algorithm 2 of the paper as printed (lines 10-14), for `paper_literal`. It differs from Eq. 13-15 in two places.

Line 11 takes TPOT at a context of (i + o) / 2, although the mean context of a decode is i + o / 2 (Eq. 13). It also
takes TPOT at the total concurrency r, although one worker runs only its share. Line 14 multiplies the ratio by n_d,
although the ratio already contains r. So more than one decode worker is counted twice, and the result is more prefill
workers than by Eq. 15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdplugins.contracts.deployment import Deployment
from pdplugins.policies.dopd.load import Load
from pdplugins.policies.dopd.ratio import decode_concurrency, pd_ratio


@dataclass(frozen=True, slots=True)
class Literal:
    """The result of Algorithm 2."""

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
