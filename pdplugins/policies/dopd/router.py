"""DOPD's cache- and load-aware router, which keeps ultra-short prompts on the decode worker.

The paper chooses the decode worker with the lowest inferred cost of cache hits and load (Section V-B). It skips remote
prefill for a prompt whose prefill is negligible next to running decodes and costs less than its KV transfer (Sections
II-C, V-E).
In the paper remote prompts wait in one shared queue (Section V-C). Hosts have a queue for each worker instead, so a
prompt goes to the worker whose queue ends first. A shared queue would send it there too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Placement
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies._common import by_role, cached_tokens, largest_within
from pdplugins.policies.dopd.config import DopdRouterSettings
from pdplugins.policies.dopd.ratio import added_s

LONGEST_LOCAL_TOKENS = 32_768
"""Longer prompts never run locally, however slow the link is."""


def local_prompt_tokens(perf: PerfModel, tp: int) -> int:
    """Return the length of the longest ultra-short prompt (Section II-C) on decode workers of `tp` GPUs; 0 for none.

    Such a prompt prefills on a decode worker in less time than its KV transfer takes. And its prefill is negligible:
    it adds to a step at most the time of a step without tokens, in which the GPU only reads the weights. Without this
    second bound, nearly every prompt would count as ultra-short where the link is slow. Where the profile does not
    say how long such a worker prefills, no prompt is.
    """
    if tp not in perf.tp_sizes(Role.PREFILL):
        return 0
    weights_s = perf.prefill_s(0, tp)

    def late_s(tokens: int) -> float:
        return added_s(perf, tokens, tp) - min(perf.transfer_s(tokens), weights_s)

    return largest_within(0.0, LONGEST_LOCAL_TOKENS, late_s)


class DopdRouter:
    """`pdplugins.types.Router` of DOPD."""

    def __init__(self, settings: DopdRouterSettings, deployment: Deployment) -> None:
        own = settings.local_tokens
        self.local_tokens = local_prompt_tokens(deployment.perf, deployment.decode_tp) if own is None else own
        self._deployment = deployment
        self._block_tokens = settings.block_tokens
        self._cache_weight = settings.cache_weight
        self._workers: tuple[WorkerView, ...] | None = None
        self._ids: frozenset[str] = frozenset()
        self._prefill: Sequence[WorkerView] = ()
        self._decode: Sequence[WorkerView] = ()

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request. An ultra-short one runs on the decode worker alone; others prefill on another worker."""
        if workers is not self._workers:
            self._split(workers)
        decode = self._cheapest_decode(request)
        prompt = request.prompt_tokens
        missing = prompt - cached_tokens(request, decode, self._block_tokens)
        if missing <= self.local_tokens and self._has_time(decode, missing):
            return Placement(decode.id, decode.id, prompt, f"{missing} tokens prefill faster than they move")
        return Placement(self._first_free_prefill(request).id, decode.id, prompt)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Return `placement`, which was complete at arrival, with another decode worker where its own is gone."""
        if workers is not self._workers:
            self._split(workers)
        if placement.second in self._ids:
            return placement
        return Placement(placement.first, self._cheapest_decode(request).id, placement.split)

    def _has_time(self, worker: WorkerView, tokens: int) -> bool:
        """Return whether the next decode step of `worker` may include a prompt of `tokens` tokens.

        The step must stay within the TPOT SLO with all prompts that wait there, and the request must fit the batch and
        the KV cache. An unknown load gives no time.
        """
        load, deployment = worker.load, self._deployment
        decodes, context = load.decode_requests, load.decode_tokens
        if decodes is None or context is None:
            decodes, context = load.running_requests, load.running_tokens
        if load.queued_requests + decodes >= deployment.max_batch:
            return False
        if worker.free_kv_tokens is not None and worker.free_kv_tokens < tokens:
            return False
        perf, tp = deployment.perf, deployment.decode_tp
        step_s = perf.decode_step_s(max(decodes, 1), context / max(decodes, 1), tp)
        return step_s + added_s(perf, tokens + load.queued_tokens, tp) <= deployment.slo.tpot_s

    def _cheapest_decode(self, request: Request) -> WorkerView:
        """Return the decode worker with the least cost: its requests, less the cached share of the prompt."""
        most = self._cache_weight if request.blocks else 0.0
        best, least = self._decode[0], math.inf
        for worker in self._decode:
            load = worker.load
            cost = load.running_requests + load.queued_requests
            if cost - most < least:  # reading `cached_blocks` may cost the host work; a NaN is never less
                if most:
                    cost -= most * cached_tokens(request, worker, self._block_tokens) / max(request.prompt_tokens, 1)
                if cost < least:
                    best, least = worker, cost
        return best

    def _first_free_prefill(self, request: Request) -> WorkerView:
        """Return the prefill worker that has the fewest tokens to compute until this prompt is done."""
        most = request.prompt_tokens if request.blocks else 0
        best, least = self._prefill[0], math.inf
        for worker in self._prefill:
            cost = worker.load.queued_tokens
            if cost - most < least:
                if most:
                    cost -= cached_tokens(request, worker, self._block_tokens)
                if cost < least:
                    best, least = worker, cost
        return best

    def _split(self, workers: tuple[WorkerView, ...]) -> None:
        pools = by_role("dopd", workers)
        self._workers = workers
        self._ids = frozenset(worker.id for worker in workers)
        self._prefill, self._decode = pools[Role.PREFILL] or workers, pools[Role.DECODE] or workers
