"""What the parts of fusion share in one process: costs, the traffic, and the composition of the pool."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies.fusion.composition import Composition, columns, solve
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.costs import Costs, decodes_of

KV_SHARE = 0.85
"""Share of the KV cache that the requests in service may plan with. Lengths differ, and what is full stops."""
MOST_OPEN = 4096
"""Requests whose order is remembered."""
FADE = 0.01
"""Weight of one request in the mean lengths."""


class Lengths:
    """Mean lengths of prompts and outputs, over recent requests.

    Short outputs end first, so the first ones to end say too little. An output counts only when all requests that came
    before it have ended, or too many have come since.
    """

    def __init__(self, prior_tokens: int) -> None:
        self.isl: float | None = None
        self.osl = float(prior_tokens)
        self._open: OrderedDict[str, int | None] = OrderedDict()
        """Requests in the order they came, each with its output once it has ended."""

    def arrived(self, request: Request) -> None:
        """Learn the length of a prompt: what of it must be computed."""
        tokens = float(max(request.prompt_tokens - request.history_tokens, 1))
        self.isl = tokens if self.isl is None else self.isl + FADE * (tokens - self.isl)
        self._open.setdefault(request.id, None)
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
            self._count()

    def ended(self, request: Request, output_tokens: int | None) -> None:
        """Learn the length of an output; None for a request that did not finish."""
        if request.id in self._open:
            self._open[request.id] = -1 if output_tokens is None else output_tokens
            self._count()

    def _count(self) -> None:
        while self._open and (tokens := next(iter(self._open.values()))) is not None:
            self._open.popitem(last=False)
            if tokens >= 0:
                self.osl += FADE * (tokens - self.osl)


class Core:
    """Knows the costs and the lengths, and chooses the composition."""

    def __init__(self, settings: FusionSettings, deployment: Deployment) -> None:
        self.settings = settings
        self.deployment = deployment
        self.costs = Costs(settings, deployment)
        self.ttft_s = deployment.slo.ttft_s * settings.ttft_share
        self.lengths = Lengths(settings.prior_tokens)
        self._places_key = -1
        self._most_decodes = 0
        self._solved_s: float | None = None
        self._changed_s: float | None = None
        self.wanted: int | None = None
        self.best = Composition(0.0, 0.0)

    def compose(self, workers: Sequence[WorkerView], now_s: float) -> int | None:
        """Return how many workers should prefill only; None while nothing should change."""
        settings = self.settings
        if not settings.composition or self.lengths.isl is None or len(workers) < 2:
            return None
        if self._solved_s is not None and now_s - self._solved_s < settings.interval_s:
            return self.wanted
        self._solved_s = now_s
        if self._changed_s is not None and now_s - self._changed_s < settings.dwell_s:
            return self.wanted
        present = sum(worker.role is Role.PREFILL for worker in workers)
        self.wanted = self._choose(workers, present)
        if self.wanted != present:
            self._changed_s = now_s
        return self.wanted

    def _choose(self, workers: Sequence[WorkerView], present: int) -> int:
        kv_tokens = int(KV_SHARE * min(worker.kv_capacity_tokens for worker in workers))
        isl, osl, count = self.lengths.isl or 1.0, self.lengths.osl, len(workers)
        steps = columns(self.costs, isl, osl, kv_tokens, self.deployment.max_batch)
        self.best = solve(steps, count, isl, osl)
        below = int(self.best.prefill_only)
        near = {max(below - 1, 0), below, min(below + 1, count - 1), present}
        rates = {n: solve(steps, count, isl, osl, n).rate for n in near}
        enough = max(rates.values()) / (1 + self.settings.gain)
        return present if rates[present] >= enough else min(n for n in near if rates[n] >= enough)


    def decode_places(self, workers: Sequence[WorkerView]) -> int:
        """Return how many requests the workers that decode can have within the TPOT SLO and their KV cache."""
        context = (self.lengths.isl or 0.0) + self.lengths.osl / 2
        key = int(context) // 64
        if key != self._places_key:
            self._places_key = key
            self._most_decodes = self.costs.most_decodes(context, self.deployment.max_batch)
        places = 0
        for worker in workers:
            if worker.role is Role.DECODE:
                places += int(min(self._most_decodes, KV_SHARE * worker.kv_capacity_tokens / max(context, 1.0)))
        return places


def work_ahead_s(costs: Costs, worker: WorkerView) -> float:
    """Return the seconds of prefill that wait or run on a worker."""
    load = worker.load
    tokens = load.queued_tokens + (load.prefill_tokens or 0.0)
    return tokens / costs.beside(*decodes_of(worker))
