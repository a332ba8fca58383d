"""Which worker decodes: the one whose step is the shortest. Requests that ask for a short TPOT decode together.

One request whose TPOT is below the deployment's shortens all steps of its worker, which then prefills little beside its
decodes. A few of them, spread over the pool, leave it hardly any prefill. So each goes where it costs the least: to a
worker that decodes such requests already, while that keeps its TPOT. The others are kept away from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pdplugins.contracts.request import Request
from pdplugins.contracts.workers import WorkerView
from pdplugins.policies.fusion.core import Core

DELAY_SHARE = 0.1
"""Part of the TTFT by which prompts of a worker may come later because of one more decode."""
FULL_S = 1e3
"""Added to the wait for a worker whose KV cache or batch is full: any other is better."""


class Bound(NamedTuple):
    """Where a request decodes, and why there."""

    worker: WorkerView
    reason: str


class Binding:
    """Binds decodes to workers."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._costs = core.costs
        self._present = core.present
        self._tpot_s = core.deployment.slo.tpot_s
        share = DELAY_SHARE if core.settings.long_prompts else math.inf
        self._most_delay_s = share * core.deployment.slo.ttft_s
        """How much later prompts of a worker may come because of one more decode."""

    def best(self, request: Request, workers: Sequence[WorkerView]) -> Bound:
        """Return where a request decodes, of `workers`, of which there must be one."""
        own_s, reason = self.strict_s(request), "shortest step"
        if own_s is not None:
            if keep := [worker for worker in workers if self._keeps(request, worker, own_s)]:
                lost = {worker.id: self._lost(worker, own_s) for worker in keep}
                least = min(lost.values())
                best = self._least_crowded(request, [worker for worker in keep if lost[worker.id] == least])
                return Bound(best, f"its TPOT of {1e3 * own_s:g} ms costs the least prefill")
            reason = f"no worker keeps its TPOT of {1e3 * own_s:g} ms; shortest step"
        return Bound(self._least_crowded(request, workers), reason)

    def strict_s(self, request: Request) -> float | None:
        """Return the TPOT of a request that asks for less than the deployment's; else None."""
        own_s = request.terms.tpot_s if request.terms is not None else None
        return own_s if own_s is not None and own_s < self._tpot_s else None

    def stays(self, request: Request, worker: WorkerView) -> bool:
        """Tell whether a request may decode where it is prefilled, for all that its TPOT costs there."""
        if (own_s := self.strict_s(request)) is None:
            return True
        has = self._core.residents.on(worker.id)
        return bool(has) and has[0] <= own_s and self._keeps(request, worker, own_s)

    def full_s(self, request: Request, worker: WorkerView, decodes: int, context: int) -> float:
        """Return what is added to the wait for a worker that has no place for one more decode."""
        free = worker.free_kv_tokens
        full = free is not None and free < request.prompt_tokens + self._core.lengths.osl
        full = full or decodes >= self._core.deployment.max_batch or not self._core.fits(worker, decodes, context)
        return FULL_S if full else 0.0

    def _least_crowded(self, request: Request, workers: Sequence[WorkerView]) -> WorkerView:
        """Return the worker with the least crowding. Those whose step alone is longer are not looked at further."""
        by_step = sorted((self._step_s(request, worker), place) for place, worker in enumerate(workers))
        best_s, best = math.inf, by_step[0][1]
        for step_s, place in by_step:
            if step_s >= best_s:
                break
            if (crowding_s := self._crowding(request, workers[place], step_s)) < best_s:
                best_s, best = crowding_s, place
        return workers[best]

    def _crowding(self, request: Request, worker: WorkerView, step_s: float) -> float:
        """Return `step_s`, that of the worker with this request; more where others there are harmed by it."""
        decodes, context = self._present.decodes(worker)
        if (tightest_s := self._core.own_tpot_s(worker, decodes, context)) is not None:
            step_s *= max(self._tpot_s / tightest_s, 1.0)
        # With a step more it comes behind workers without such prompts, before those that would miss their TPOT.
        late_s = self._costs.step_s if self._delays(worker, decodes, context, tightest_s) else 0.0
        return step_s + self.full_s(request, worker, decodes, context) + late_s

    def _delays(self, worker: WorkerView, decodes: int, context: int, own_s: float | None) -> bool:
        """Tell whether what waits on a worker comes too much later beside one more decode like those that it has."""
        if not (ahead := self._present.ahead(worker)):
            return False
        slow, most_s = self._core.drift.of(worker.id), self._most_delay_s
        one = context // decodes if decodes else int(self._core.context)
        then_s = ahead / self._costs.beside(decodes + 1, context + one, own_s, slow)
        return then_s > most_s and then_s - ahead / self._costs.beside(decodes, context, own_s, slow) > most_s

    def _keeps(self, request: Request, worker: WorkerView, own_s: float) -> bool:
        """Tell whether a worker has a place for a request, within its TPOT."""
        decodes, context = self._present.decodes(worker)
        if self.full_s(request, worker, decodes, context):
            return False
        return self._step_s(request, worker) <= self._costs.limit_s(own_s)

    def _lost(self, worker: WorkerView, own_s: float) -> float:
        """Return the prompt tokens a second that a worker prefills less for a request with this TPOT."""
        decodes, context = self._present.decodes(worker)
        slow, has_s = self._core.drift.of(worker.id), self._core.own_tpot_s(worker, decodes, context)
        now = self._costs.beside(decodes, context, has_s, slow)
        return now - self._costs.beside(decodes, context, min(own_s, has_s or own_s), slow)

    def _step_s(self, request: Request, worker: WorkerView) -> float:
        """Return the seconds of the worker's step with this request."""
        decodes, context = self._present.decodes(worker)
        mean_context = (context + request.prompt_tokens) / (decodes + 1)
        return self._costs.decode_s(decodes + 1, mean_context) * self._core.drift.of(worker.id)
