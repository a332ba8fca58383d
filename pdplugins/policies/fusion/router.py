"""Placement: each request goes where its first token is predicted soonest, and decodes where the KV cache fits."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from pdplugins.contracts.request import Request
from pdplugins.contracts.roles import RoleMove
from pdplugins.contracts.router import Outcome, Placement
from pdplugins.contracts.workers import ANYTHING, Role, WorkerView
from pdplugins.policies._common import cached_tokens, check_ready
from pdplugins.policies.fusion.binding import Binding, Bound
from pdplugins.policies.fusion.choices import Turns
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings

NEAR = 0.7
"""Part of the TTFT SLO: a predicted first token within it is taken to be in time."""
MOST_TBT_S = 1e3
"""A host that reports more has no such number."""
Soonest = tuple[float, WorkerView]
"""Predicted seconds to the first token, and the worker that gives it."""


class FusionRouter:
    """`pdplugins.types.Router` of fusion. Prefill workers only prefill; decode workers decode, and prefill beside."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._costs = core.costs
        self._present = core.present
        self._binding = Binding(core)
        self._tpot_s = core.deployment.slo.tpot_s
        self.fallback = LeastLoaded(RouterSettings(colocated=True), core.deployment)
        """Places requests when this raises: whole requests on the least loaded worker."""
        self._workers: tuple[WorkerView, ...] | None = None
        self._named: Mapping[str, WorkerView] = {}
        self._prefill: tuple[WorkerView, ...] = ()
        self._mixed: tuple[WorkerView, ...] = ()
        self._alone: tuple[WorkerView, ...] = ()
        """Decode workers that can serve a whole request."""
        self._by_id: Mapping[str, WorkerView] = {}
        """The same, by id."""
        self._turns = {name: Turns(core.settings.choices) for name in ("prefill", "alone", "mixed")}
        self._moves: tuple[RoleMove, ...] = ()
        """Roles to change that nobody has taken yet."""

    @property
    def pools(self) -> tuple[int, int]:
        """Number of workers that only prefill, and number of the others."""
        return len(self._prefill), len(self._mixed)

    @property
    def signals(self) -> Mapping[str, float]:
        """Named numbers behind the decisions."""
        return {
            "capacity_rate": self._core.capacity,
            "prefill_only": float(self._core.wanted or 0),
            "mean_output_tokens": self._core.lengths.osl,
            "hand_over_delay_s": self._core.hand_overs.delay_s,
            "ttft_missed": self._core.feedback.ttft_missed,
            "tpot_missed": self._core.feedback.tpot_missed,
        }

    def take_role_moves(self) -> tuple[RoleMove, ...]:
        """Return the roles to change."""
        moves, self._moves = self._moves, ()
        return moves

    def plan_ahead(self, workers: tuple[WorkerView, ...], now_s: float) -> None:
        """Solve the programme when it is time, and note the roles that follow."""
        self._present.at(workers, now_s)
        self._look(workers)
        self._core.look(workers, now_s)
        present, unfit = len(self._prefill), self._unfit(workers)
        known = (worker.kv_capacity_tokens for worker in workers if worker.kv_capacity_tokens > 0)
        smallest = min(known, default=self._core.kv_capacity_tokens)
        wanted = self._core.compose(len(workers), present, smallest, now_s, len(unfit))
        if wanted is not None:
            self._moves = tuple(self._changes(wanted, unfit))

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request where its first token is predicted soonest."""
        check_ready("fusion", workers)
        self._present.at(workers, now_s)
        if not request.blocks:
            self._core.began(request, (), now_s)
        self._look(workers)
        self._core.hand_overs.placed(request, None)
        placement = self._soonest(request, workers)
        if request.blocks and not self._core.lengths.knows(request):
            self._core.began(request, (self._named[placement.first],), now_s)
        if self._present.follows:
            self._present.placed(request, placement, self._known(request, self._named[placement.first]))
        if placement.second is not None:
            self._core.residents.placed(request, placement.second)
        self._core.drift.mixes(placement.first, now_s)
        if placement.second in (None, placement.first):
            self._core.drift.placed(request.id, placement.first)
        return placement

    def _soonest(self, request: Request, workers: tuple[WorkerView, ...]) -> Placement:
        away, local = self._soonest_away(request), self._soonest_local(request)
        if local is not None and (away is None or (local[0] <= away[0] and not self._spares(local[1], away))):
            than = "" if away is None else f", {away[0]:.2f} s by way of {away[1].id}"
            first, why = local[1], f"first token in {local[0]:.2f} s, local{than}"
            if self._stays(request, first):
                return Placement(first.id, first.id, request.prompt_tokens, why)
            return Placement(first.id, None, request.prompt_tokens, f"{why}; decodes where its TPOT costs the least")
        if away is not None:
            than = "" if local is None else f", {local[0]:.2f} s local on {local[1].id}"
            if not self._core.sizes_steps:  # engines of this process hand over as the profile says
                expected_s = self._present.now_s + away[0] - self._core.hand_overs.delay_s
                self._core.hand_overs.placed(request, expected_s)
            return self._away(request, workers, away[1], f"first token in {away[0]:.2f} s, prefill only{than}")
        # Nobody prefills for others, and nobody serves alone: the host knows what to do with one that cannot.
        return Placement(workers[0].id, None, request.prompt_tokens, "no worker that prefills")

    def _stays(self, request: Request, first: WorkerView) -> bool:
        """Tell whether a request decodes where it is prefilled; else that is chosen when its prefill has ended."""
        return len(self._mixed) < 2 or self._binding.stays(request, first)

    def _away(self, request: Request, workers: tuple[WorkerView, ...], first: WorkerView, why: str) -> Placement:
        """Let `first` prefill, or as much of the prompt as its KV cache holds where the next worker can go on."""
        prompt, can = request.prompt_tokens, first.capabilities or ANYTHING
        holds = int(self._core.settings.kv_share * first.kv_capacity_tokens)
        if prompt > holds > 0 and can.splits:
            second = self._binds(request, workers).worker
            if (second.capabilities or ANYTHING).splits and second.kv_capacity_tokens > first.kv_capacity_tokens:
                return Placement(first.id, second.id, holds, f"{why}; it holds {holds} of {prompt} tokens")
        # A stock prefill server must know before it begins where the KV cache goes.
        return Placement(first.id, None if can.alone else self._binds(request, workers).worker.id, prompt, why)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Bind the decode to the worker that has the most to spare."""
        check_ready("fusion", workers)
        self._look(workers)
        self._present.at(workers, now_s)
        best, why = self._binds(request, workers)
        self._present.bound(request, placement.first, best.id)
        self._core.residents.placed(request, best.id)
        self._core.drift.placed(request.id, best.id)
        if best.id != placement.first and not self._core.sizes_steps:
            self._core.hand_overs.begins(request, now_s + self._costs.transfer_s(request.prompt_tokens))
        return Placement(placement.first, best.id, request.prompt_tokens, why)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Learn the length of an answer."""
        self._core.ended(request, outcome)

    def _look(self, workers: tuple[WorkerView, ...]) -> None:
        if workers is not self._workers:
            self._workers = workers
            self._prefill = tuple(worker for worker in workers if worker.role is Role.PREFILL)
            self._mixed = tuple(worker for worker in workers if worker.role is Role.DECODE)
            self._alone = tuple(worker for worker in self._mixed if (worker.capabilities or ANYTHING).alone)
            self._by_id = {worker.id: worker for worker in self._alone}
            self._named = {worker.id: worker for worker in workers}
            self._core.drift.keep(self._named.keys())
            self._present.keep(self._named.keys())

    def _unfit(self, workers: tuple[WorkerView, ...]) -> set[str]:
        """Return the ids of the workers that are too slow to decode even one request within the TPOT SLO."""
        return {worker.id for worker in workers if not self._core.fits(worker, 0, 0)}

    def _changes(self, wanted: int, unfit: Container[str]) -> Sequence[RoleMove]:
        """Return the moves to `wanted` prefill-only workers. Those that are `unfit` to decode are the first of them."""
        reason, extra = f"{wanted} workers prefill only", len(self._prefill) - wanted
        leave = [worker for worker in self._prefill if _can(worker, Role.DECODE)]
        join = [worker for worker in self._mixed if _can(worker, Role.PREFILL)]
        leave.sort(key=lambda worker: (worker.id in unfit, self._present.ahead(worker)))
        join.sort(key=lambda worker: (worker.id not in unfit, self._present.decodes(worker)[1]))
        leaving, joining = max(extra, 0), max(-extra, 0)
        fit = sum(worker.id not in unfit for worker in leave[leaving:])
        swapped = min(fit, sum(worker.id in unfit for worker in join[joining:]))
        return [
            *(RoleMove(worker.id, Role.DECODE, reason) for worker in leave[: leaving + swapped]),
            *(RoleMove(worker.id, Role.PREFILL, reason) for worker in join[: joining + swapped]),
        ]

    def _soonest_away(self, request: Request) -> Soonest | None:
        """Return the soonest first token by way of a worker that only prefills."""
        best: Soonest | None = None
        for worker in self._turns["prefill"].of(self._prefill):
            if not (ahead := self._present.ahead(worker)):
                best = 0.0, worker
                break
            wait_s = ahead / self._core.beside(worker)
            if best is None or wait_s < best[0]:
                best = wait_s, worker
        if best is None:
            return None
        wait_s, worker = best
        own_s = self._costs.prefill_s(request.prompt_tokens, self._known(request, worker))
        own_s *= self._core.drift.of(worker.id)
        handed_s = self._costs.transfer_s(request.prompt_tokens) + self._core.hand_overs.delay_s
        return wait_s + own_s + handed_s, worker

    def _spares(self, local: WorkerView, away: Soonest) -> bool:
        """Tell whether a prompt goes to a worker that only prefills though `local` would give its first token sooner.

        Prefill beside decodes costs places to decode. So it does where that is in time and at most a full step waits.
        """
        first_token_s, worker = away
        in_time = first_token_s + self._joins_s() <= NEAR * self._core.deployment.slo.ttft_s
        return in_time and self._present.ahead(worker) <= self._costs.chunk and self._present.decodes(local)[0] > 0

    def _joins_s(self) -> float:
        """Return how long a prompt from elsewhere waits to decode: its first step, and half of the one before."""
        if not self._mixed:
            return 0.0
        worker = self._mixed[0]
        decodes, context = self._present.decodes(worker)
        tbt_s = worker.load.recent_tbt_s
        if tbt_s is None or not 0 < tbt_s <= MOST_TBT_S:
            tbt_s = self._costs.decode_s(max(decodes, 1), context / max(decodes, 1))
        return 1.5 * tbt_s

    def _soonest_local(self, request: Request) -> Soonest | None:
        """Return the soonest first token on a worker that also decodes."""
        best: Soonest | None = None
        whole = self._costs.tokens(request.prompt_tokens, 0)
        for worker in self._candidates(request):
            decodes, context = self._present.decodes(worker)
            known = self._known(request, worker)
            tokens = self._costs.tokens(request.prompt_tokens, known) if known else whole
            tokens += self._present.ahead(worker)
            own_s = self._core.own_tpot_s(worker, decodes, context)
            wait_s = self._costs.pace(decodes, context, own_s, self._core.drift.of(worker.id)).takes_s(tokens)
            if best is not None and wait_s >= best[0]:
                continue
            wait_s = wait_s * self._harm(worker, own_s) + self._binding.full_s(request, worker, decodes, context)
            if best is None or wait_s < best[0]:
                best = wait_s, worker
        return best

    def _candidates(self, request: Request) -> Sequence[WorkerView]:
        """Return the workers to look at, with the one that holds the session."""
        few = self._turns["alone"].of(self._alone)
        if len(few) == len(self._alone) or (holder := self._by_id.get(request.bound_worker or "")) is None:
            return few
        return [*few, holder]

    def _known(self, request: Request, worker: WorkerView) -> int:
        """Return the tokens of the prompt in the worker's KV cache: the session's history, or a cached prefix."""
        history = request.history_tokens if worker.id == request.bound_worker else 0
        if request.blocks:
            history = max(history, cached_tokens(request, worker, self._core.settings.block_tokens))
        return min(history, request.prompt_tokens)

    def _harm(self, worker: WorkerView, own_s: float | None) -> float:
        """Return how many times its time a prompt counts on a worker whose decodes are slower than they may be.

        :param own_s: their tightest TPOT; None for that of the deployment.
        """
        tbt_s, tpot_s = worker.load.recent_tbt_s, self._tpot_s if own_s is None else own_s
        return tbt_s / tpot_s if tbt_s is not None and tpot_s < tbt_s <= MOST_TBT_S else 1.0

    def _binds(self, request: Request, workers: tuple[WorkerView, ...]) -> Bound:
        """Return where a request decodes, and why there."""
        return self._binding.best(request, self._turns["mixed"].of(self._mixed or workers))


def _can(worker: WorkerView, phase: Role) -> bool:
    """Tell whether a worker may change to a role. Those of a host that does not say may."""
    return phase in (worker.capabilities or ANYTHING).phases
