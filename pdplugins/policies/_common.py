"""What more than one policy needs. Pure, as they are."""

from __future__ import annotations

import math

from pdplugins.contracts.deployment import Deployment


def fit_pools(deployment: Deployment, prefill: int, decode: int) -> tuple[int, int]:
    """Return the pools that a wish becomes within the GPU budget; at least one worker of each role stays.

    Where the budget binds: the pools with the largest throughput that fit. Both phases keep as equal a share of
    their wish as whole workers allow, which is DOPD's Eq. 15 scaled down.
    """
    used = deployment.gpus(prefill, decode)
    if used <= deployment.gpu_budget:
        return prefill, decode

    def served(pools: tuple[int, int]) -> tuple[float, int]:
        return min(pools[0] / prefill, pools[1] / decode), -deployment.gpus(*pools)

    # More decode workers than the even share leave less for prefill. Fewer help only until that frees a GPU for it.
    budget, prefill_tp, decode_tp = deployment.gpu_budget, deployment.prefill_tp, deployment.decode_tp
    even = decode * budget / used
    fewest = int(even) - math.ceil(prefill_tp / decode_tp)
    most = min(math.ceil(even), (budget - prefill_tp) // decode_tp)
    fits = ((d, (budget - d * decode_tp) // prefill_tp) for d in range(max(fewest, 1), most + 1))
    return max(((min(prefill, p), d) for d, p in fits), key=served, default=(1, 1))
