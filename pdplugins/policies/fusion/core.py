"""What the parts of fusion share in one process: costs, the traffic, and the composition of the pool."""

from __future__ import annotations

from collections.abc import Sequence

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Ending, Outcome
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies.fusion.composition import Frontier, Lengths, frontier
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.costs import Costs
from pdplugins.policies.fusion.lengths import MeanLengths

CONTEXT_CELL = 64
"""Decode places are counted anew when the mean context changes by so many tokens."""


class Core:
    """Knows the costs and the lengths, and chooses the composition."""

    def __init__(self, settings: FusionSettings, deployment: Deployment) -> None:
        self.settings = settings
        self.deployment = deployment
        self.costs = Costs(settings, deployment)
        self.lengths = MeanLengths(settings.prior_tokens)
        self.capacity = 0.0
        """Requests a second that the pool serves at most, by the programme; 0 before its first solution."""
        self.wanted: int | None = None
        """Workers that should prefill only; None before the first solution."""
        self.longest_wait_s = 0.0
        """The longest wait of a request that went on, over the whole run."""
        self._solved_s: float | None = None
        self._changed_s: float | None = None
        self._places: tuple[object, int, int] | None = None

    def compose(self, workers: Sequence[WorkerView], now_s: float) -> int | None:
        """Return how many workers should prefill only; None while nothing should change."""
        settings = self.settings
        if not settings.composition or settings.scale or self.lengths.isl is None or len(workers) < 2:
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

    def ended(self, request: Request, outcome: Outcome) -> None:
        """Learn the length of an answer. A second call for the same request changes nothing."""
        finished = outcome.ending is Ending.FINISHED
        self.lengths.ended(request, outcome.output_tokens if finished else None)

    def frontier(self, isl: float, osl: float, kv_capacity_tokens: float, *, mixes: bool = True) -> Frontier:
        """Return what workers can do for requests of these mean lengths."""
        kv_tokens = self.settings.kv_share * kv_capacity_tokens
        return frontier(self.costs, Lengths(isl, osl), kv_tokens, self.deployment.max_batch, mixes=mixes)

    def decode_places(self, workers: Sequence[WorkerView]) -> int:
        """Return how many requests the workers that decode can have within the TPOT SLO and their KV cache."""
        context = (self.lengths.isl or 0.0) + self.lengths.osl / 2
        cell = int(context) // CONTEXT_CELL
        if self._places is None or self._places[0] is not workers or self._places[1] != cell:
            within = self.costs.most_decodes(context, self.deployment.max_batch)
            fits = [
                self.settings.kv_share * worker.kv_capacity_tokens / max(context, 1.0)
                for worker in workers
                if worker.role is Role.DECODE
            ]
            self._places = workers, cell, sum(int(min(within, places)) for places in fits)
        return self._places[2]

    def _choose(self, workers: Sequence[WorkerView], present: int) -> int:
        capacity = min(worker.kv_capacity_tokens for worker in workers)
        count, gain = len(workers), self.settings.gain
        does = self.frontier(self.lengths.isl or 1.0, max(self.lengths.osl, 1.0), capacity)
        top = does.best(count)
        self.capacity = does.rate(top, count - top)
        if does.rate(present, count - present) * (1 + gain) >= self.capacity:
            return present
        return does.best(count, gain)
