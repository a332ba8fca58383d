"""Placement: each request goes where its first token is predicted soonest, and decodes where the KV cache fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pdplugins.contracts.request import Request
from pdplugins.contracts.roles import RoleMove
from pdplugins.contracts.router import Ending, Outcome, Placement
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies._common import check_ready
from pdplugins.policies.fusion.core import Core, work_ahead_s
from pdplugins.policies.fusion.costs import decodes_of

FULL_S = 1e3
"""Added to the wait for a worker whose KV cache or batch is full: any other is better."""


class FusionRouter:
    """`pdplugins.types.Router` of fusion. Prefill workers only prefill; decode workers decode, and prefill beside."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._costs = core.costs
        self._most = core.deployment.max_batch
        self._workers: tuple[WorkerView, ...] | None = None
        self._prefill: tuple[WorkerView, ...] = ()
        self._mixed: tuple[WorkerView, ...] = ()
        self._moves: tuple[RoleMove, ...] = ()

    @property
    def pools(self) -> tuple[int, int]:
        """Number of workers that only prefill, and number of the others."""
        return len(self._prefill), len(self._mixed)

    @property
    def signals(self) -> Mapping[str, float]:
        """Named numbers behind the decisions."""
        return {"capacity_rate": self._core.best.rate, "prefill_only": self._core.best.prefill_only}

    def take_role_moves(self) -> tuple[RoleMove, ...]:
        """Return the roles to change."""
        moves, self._moves = self._moves, ()
        return moves

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request where its first token is predicted soonest."""
        check_ready("fusion", workers)
        self._core.lengths.arrived(request)
        self._look(workers, now_s)
        first, first_s = self._least_prefill(request)
        mixed, mixed_s = self._least_mixed(request)
        if first is None or (mixed is not None and mixed_s <= first_s):
            assert mixed is not None
            return Placement(mixed.id, mixed.id, request.prompt_tokens, f"first token in {mixed_s:.2f} s, local")
        return Placement(first.id, None, request.prompt_tokens, f"first token in {first_s:.2f} s, prefill only")

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Bind the decode to the worker that has the most to spare."""
        self._look(workers, now_s)
        pool = self._mixed or workers
        needed = request.prompt_tokens + self._core.lengths.osl
        best = min(pool, key=lambda worker: self._crowding(worker, needed))
        return Placement(placement.first, best.id, request.prompt_tokens, "least context")

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Learn the length of an answer."""
        finished = outcome.ending is Ending.FINISHED
        self._core.lengths.ended(request, outcome.output_tokens if finished else None)

    def _look(self, workers: tuple[WorkerView, ...], now_s: float) -> None:
        if workers is not self._workers:
            self._workers = workers
            self._prefill = tuple(worker for worker in workers if worker.role is Role.PREFILL)
            self._mixed = tuple(worker for worker in workers if worker.role is Role.DECODE)
        wanted = self._core.compose(workers, now_s)
        if wanted is not None and wanted != len(self._prefill):
            self._moves = tuple(self._changes(wanted))

    def _changes(self, wanted: int) -> Sequence[RoleMove]:
        reason = f"{wanted} workers prefill only"
        extra = len(self._prefill) - wanted
        if extra > 0:
            idle = sorted(self._prefill, key=lambda worker: worker.load.queued_tokens)[:extra]
            return [RoleMove(worker.id, Role.DECODE, reason) for worker in idle]
        idle = sorted(self._mixed, key=lambda worker: decodes_of(worker)[1])[:-extra]
        return [RoleMove(worker.id, Role.PREFILL, reason) for worker in idle]

    def _least_prefill(self, request: Request) -> tuple[WorkerView | None, float]:
        """Return the worker that only prefills with the soonest first token, and when that is."""
        if not self._prefill:
            return None, 0.0
        best = min(self._prefill, key=lambda worker: work_ahead_s(self._costs, worker))
        own_s = self._costs.prefill_s(request.prompt_tokens) + self._costs.transfer_s(request.prompt_tokens)
        return best, work_ahead_s(self._costs, best) + own_s

    def _least_mixed(self, request: Request) -> tuple[WorkerView | None, float]:
        best, best_s = None, 0.0
        needed = request.prompt_tokens + self._core.lengths.osl
        for worker in self._mixed:
            own = request.prompt_tokens - (request.history_tokens if worker.id == request.bound_worker else 0)
            load, decodes = worker.load, decodes_of(worker)
            tokens = load.queued_tokens + (load.prefill_tokens or 0.0) + own
            wait_s = tokens / self._costs.beside(*decodes) + self._full_s(worker, decodes[0], needed)
            if best is None or wait_s < best_s:
                best, best_s = worker, wait_s
        return best, best_s

    def _full_s(self, worker: WorkerView, decodes: int, needed: float) -> float:
        free = worker.free_kv_tokens
        return FULL_S if decodes >= self._most or (free is not None and free < needed) else 0.0

    def _crowding(self, worker: WorkerView, needed: float) -> float:
        decodes, context = decodes_of(worker)
        return context + FULL_S * self._full_s(worker, decodes, needed)
