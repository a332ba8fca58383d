"""DOPD's cache- and load-aware router, which keeps ultra-short prompts on the decode worker.

The paper chooses the decode worker with the lowest inferred cost of cache hits and load (Section V-B). It skips remote
prefill for a prompt whose KV transfer would cost more than its prefill next to running decodes (Sections II-C, V-E).
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
from pdplugins.policies._common import by_role, cached_tokens, cheapest, largest_within
from pdplugins.policies.dopd.config import DopdRouterSettings

LONGEST_LOCAL_TOKENS = 32_768
"""Longer prompts never run locally, however slow the link is."""


def local_prompt_tokens(perf: PerfModel, tp: int) -> int:
    """Return the longest prompt that prefills on a decode worker in less time than its KV transfer takes; 0 for none.

    Prefill joins a step that runs anyway, so only its time beyond that of an empty prefill counts: a step reads the
    weights once.
    """
    alone_s = perf.prefill_s(0, tp)

    def late_s(tokens: int) -> float:
        return perf.prefill_s(tokens, tp) - alone_s - perf.transfer_s(tokens)

    return largest_within(0.0, LONGEST_LOCAL_TOKENS, late_s)


class DopdRouter:
    """`pdplugins.types.Router` of DOPD."""

    def __init__(self, settings: DopdRouterSettings, deployment: Deployment) -> None:
        own = settings.local_tokens
        self.local_tokens = local_prompt_tokens(deployment.perf, deployment.decode_tp) if own is None else own
        self._block_tokens = settings.block_tokens
        self._cache_weight = settings.cache_weight
        self._workers: tuple[WorkerView, ...] | None = None
        self._prefill: Sequence[WorkerView] = ()
        self._decode: Sequence[WorkerView] = ()

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request. An ultra-short one runs on the decode worker alone; others prefill on another worker."""
        if workers is not self._workers:
            self._split(workers)
        decode = self._cheapest_decode(request)
        prompt = request.prompt_tokens
        missing = prompt - cached_tokens(request, decode, self._block_tokens)
        if missing <= self.local_tokens:
            return Placement(decode.id, decode.id, prompt, f"{missing} tokens prefill faster than they move")
        return Placement(self._first_free_prefill(request).id, decode.id, prompt)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Return `placement`, which was complete at arrival."""
        return placement

    def _cheapest_decode(self, request: Request) -> WorkerView:
        """Return the decode worker with the least cost: its requests, less the cached share of the prompt."""
        weight = self._cache_weight / max(request.prompt_tokens, 1)
        return cheapest(request, self._decode, _requests, weight, self._block_tokens)

    def _first_free_prefill(self, request: Request) -> WorkerView:
        """Return the prefill worker that has the fewest tokens to compute until this prompt is done."""
        return cheapest(request, self._prefill, _queued_tokens, 1.0, self._block_tokens)

    def _split(self, workers: tuple[WorkerView, ...]) -> None:
        pools = by_role("dopd", workers)
        self._workers = workers
        self._prefill, self._decode = pools[Role.PREFILL] or workers, pools[Role.DECODE] or workers


def _requests(worker: WorkerView) -> float:
    load = worker.load
    requests = load.running_requests + load.queued_requests
    return requests if requests < math.inf else math.inf  # comparisons with NaN would depend on the order of the list


def _queued_tokens(worker: WorkerView) -> float:
    tokens = worker.load.queued_tokens
    return tokens if tokens < math.inf else math.inf
