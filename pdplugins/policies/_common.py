"""Helpers of several policies: pools within a budget, searches, roles, cached prefixes and random numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.errors import ConfigError

ALONE_CONTEXT = 1024.0
"""Tokens of the one request that decodes in the shortest step."""
REACHABLE = 3.0
"""TPOT that is planned with where none can be kept, in such steps: about the throughput of co-location."""
WORD = 0xFFFFFFFFFFFFFFFF

Interval = Annotated[float, Field(ge=0.01, le=1e9, allow_inf_nan=False)]
"""Seconds between two looks of a policy: at most a hundred looks a second, at least one in thirty years."""


def fit_pools(deployment: Deployment, prefill: int, decode: int) -> tuple[int, int]:
    """Return the wanted pools, cut to the GPU budget. At least one worker of each role stays.

    Where the budget is too small, the result is the pools that fit and serve the most. Both phases then get nearly the
    same share of what they wanted, as far as whole workers allow. This is DOPD's Eq. 15 scaled down.
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


def fit_headroom(deployment: Deployment, wish: tuple[int, int], busy: tuple[int, int]) -> tuple[int, int]:
    """Return the wanted pools, prefill and decode, cut to the GPU budget: first what exceeds the busy workers.

    Pools that shrank in proportion would take from decode workers that all are busy, where most of the wish is headroom
    for prefill. Both phases get nearly the same share of their headroom. Where not even the busy workers fit, these
    are cut in proportion, as :func:`fit_pools` does.

    :param busy: workers of each pool that the load keeps busy, rounded up.
    """
    budget, prefill_tp, decode_tp = deployment.gpu_budget, deployment.prefill_tp, deployment.decode_tp
    if deployment.gpus(*wish) <= budget:
        return wish
    least = min(max(busy[0], 1), wish[0]), min(max(busy[1], 1), wish[1])
    left = budget - deployment.gpus(*least)
    if left <= 0:
        return fit_pools(deployment, *least)
    more = wish[0] - least[0], wish[1] - least[1]
    even = more[1] * left / deployment.gpus(*more)

    def granted(headroom: tuple[int, int]) -> tuple[float, int]:
        shares = (got / wanted for got, wanted in zip(headroom, more, strict=True) if wanted)
        return min(shares), -deployment.gpus(*headroom)

    # As in `fit_pools`, a little less than the even share for decode may free a GPU for prefill.
    decodes = range(max(int(even) - math.ceil(prefill_tp / decode_tp), 0), min(math.ceil(even), left // decode_tp) + 1)
    prefill, decode = max(((min(more[0], (left - d * decode_tp) // prefill_tp), d) for d in decodes), key=granted)
    return least[0] + prefill, least[1] + decode


def largest_within(limit_s: float, most: int, time_s: Callable[[int], float]) -> int:
    """Return the largest number from 1 to `most` whose time is at most `limit_s`; 0 where there is none.

    :param time_s: seconds as a function of the number; it must not fall.
    """
    return bisect_right(range(1, most + 1), limit_s, key=time_s)


def reachable(deployment: Deployment) -> Deployment:
    """Return the deployment, with a longer TPOT where its own is below the step of a single decode.

    Nothing keeps such a TPOT. Who tries has one decode at a time on each worker, no prompt beside it, and a queue
    without end, where co-location would only miss the TPOT.
    """
    alone_s = deployment.perf.decode_step_s(1, ALONE_CONTEXT, deployment.decode_tp)
    if alone_s <= deployment.slo.tpot_s:
        return deployment
    return replace(deployment, slo=replace(deployment.slo, tpot_s=REACHABLE * alone_s))


def tightest_tpot_s(own: Collection[float], decodes: int, usual_s: float, least_s: float) -> float:
    """Return the tightest TPOT, in seconds, of requests that decode on one worker.

    One below `least_s` does not count: nothing keeps it any more, and it would only keep prompts waiting.

    :param own: TPOT of each request that has one of its own.
    :param decodes: number of all requests that decode.
    :param usual_s: TPOT of the others.
    :param least_s: TPOT that they have with no prefill beside them.
    """
    kept = [tpot_s for tpot_s in own if tpot_s >= least_s]
    return min(kept) if kept and len(own) >= decodes else min([*kept, usual_s])


def by_role(router: str, workers: Sequence[WorkerView]) -> dict[Role, tuple[WorkerView, ...]]:
    """Return the workers of each role. Raises ConfigError, in the name of `router`, when there is no worker at all."""
    check_ready(router, workers)
    return {role: tuple(worker for worker in workers if worker.role is role) for role in Role}


def check_ready(router: str, workers: Sequence[WorkerView]) -> None:
    """Raise ConfigError, in the name of `router`, when there is no worker at all."""
    if not workers:
        raise ConfigError(f"router {router}: no worker is ready; start at least one")


def cached_tokens(request: Request, worker: WorkerView, block_tokens: int) -> int:
    """Return the leading tokens of a prompt that are in the KV cache of `worker`.

    :param block_tokens: tokens of one prefix block.
    """
    if not request.blocks:  # reading `cached_blocks` may cost the host work
        return 0
    cached, count = worker.cached_blocks, 0
    for block in request.blocks:
        if block not in cached:
            break
        count += 1
    return min(count * block_tokens, request.prompt_tokens)


def cheapest(
    request: Request,
    pool: Sequence[WorkerView],
    load: Callable[[WorkerView], float],
    token_weight: float,
    block_tokens: int,
) -> WorkerView:
    """Return the worker with the least load, after subtracting `token_weight` for each cached token of the prompt.

    Among equals the least loaded wins, then the first. Blocks are counted only where a whole cached prompt would make
    the worker cheaper than the best one so far.
    """
    if not request.blocks:
        return min(pool, key=load)
    whole = token_weight * min(len(request.blocks) * block_tokens, request.prompt_tokens)
    best, lowest, least, limit = pool[0], math.inf, math.inf, math.inf
    for worker in pool:
        value = load(worker)
        if value < limit:
            cost = value - token_weight * cached_tokens(request, worker, block_tokens)
            if cost < lowest or (cost == lowest and value < least):
                best, lowest, least, limit = worker, cost, value, cost + whole
    return best


class SplitMix64:
    """A stream of pseudo-random 64-bit numbers (Steele et al., OOPSLA 2014). Equal seeds give equal streams."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed

    def next(self) -> int:
        """Return the next number, from 0 to 2**64 - 1."""
        self._state = z = (self._state + 0x9E3779B97F4A7C15) & WORD
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        return z ^ (z >> 31)

    def uniform(self) -> float:
        """Return the next number as one of [0, 1)."""
        return float(self.next() >> 11) * 2**-53
