"""The safe router: whatever a router does, every request is placed on workers that take work.

A router that raises, or whose answer cannot be followed, is replaced for that request by its own fallback, if it has
one, else by the least loaded workers.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from time import perf_counter_ns
from typing import Any

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.request import Request
from pdplugins.contracts.roles import MovesRoles, RoleMove
from pdplugins.contracts.router import (
    BindsEarly,
    ElasticRouter,
    FallsBack,
    HearsOutcomes,
    Outcome,
    Placement,
    PlansAhead,
    Router,
)
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.runtime.decision import Decision, Fault, Journal
from pdplugins.runtime.faults import SafePolicy, Tally, fallback_of, implements, one_line

Workers = tuple[WorkerView, ...]
ROLES = frozenset(Role)


class SafeRouter(SafePolicy[Router]):
    """A router that never raises, and only ever names workers that take work. Not for use by two threads at once.

    Both methods take `usable`: the ids of the workers that a placement may name. At least one of the
    `workers` must be in it.

    """

    __slots__ = (
        "_binder",
        "_elastic",
        "_fallback",
        "_learner",
        "_mover",
        "_on_arrival",
        "_on_prefill_done",
        "_own",
        "_planner",
        "hears_outcomes",
        "moves_roles",
        "plans_ahead",
    )

    def __init__(
        self,
        router: Router,
        deployment: Deployment,
        *,
        journal: Journal | None = None,
        clock: Callable[[], int] = perf_counter_ns,
        tally: Tally | None = None,
    ) -> None:
        super().__init__(Kind.ROUTER, router, journal, tally, clock)
        self._own = LeastLoaded(RouterSettings.model_validate({}), deployment)
        self._fallback: Router | None = fallback_of(router, FallsBack, "on_arrival")
        self._on_arrival = router.on_arrival
        self._on_prefill_done = router.on_prefill_done
        more: Any = router
        self._learner: HearsOutcomes | None = more if implements(more, HearsOutcomes) else None
        self._elastic: ElasticRouter | None = more if implements(more, ElasticRouter) else None
        self._mover: MovesRoles | None = more if implements(more, MovesRoles) else None
        self._binder: BindsEarly | None = more if implements(more, BindsEarly) else None
        self._planner: PlansAhead | None = more if implements(more, PlansAhead) else None
        self.plans_ahead = self._planner is not None
        """Whether `plan_ahead` needs to be called at all."""
        self.hears_outcomes = self._learner is not None
        """Whether `on_ended` needs to be called at all."""
        self.moves_roles = self._mover is not None
        """Whether `take_role_moves` needs to be called at all."""

    def on_arrival(self, request: Request, workers: Workers, now_s: float, usable: Container[str]) -> Placement:
        """Place a request, or one round of a session, that has just arrived. Never raises.

        `second` of the answer may be None: then `on_prefill_done` fills it in.
        """
        # The simulator asks some hundred thousand times a second: what is right passes without another call or object.
        placement: Placement | None = None
        fault: Fault | None = None
        tally, clock = self.tally, self._clock
        began = clock()
        try:
            answer: object = self._on_arrival(request, workers, now_s)
        except BaseException as error:
            fault = self._failed(error)
        took = clock() - began
        tally.calls += 1
        tally.ns += took
        if fault is None:
            try:
                if (
                    type(answer) is Placement
                    and answer.first in usable
                    and (answer.second is None or answer.second in usable)
                    and type(answer.split) is int
                    and answer.split >= 0
                    and type(answer.reason) is str
                ):
                    placement = answer
                else:
                    placement, fault = self._mended(answer, usable)
            except Exception as error:  # a worker that is not a string, a split that is not a number
                fault = self._unsafe(f"the answer of {type(self.policy).__name__}: {one_line(error)}")
        if placement is None:
            placement = self._least_loaded(request, workers, now_s, usable)
        if self._journal is not None and (fault is not None or not self._journal.skips(Kind.ROUTER, took * 1e-9)):
            self._decided(placement, fault, took, request, workers, now_s)
        return placement

    def on_prefill_done(
        self,
        request: Request,
        placement: Placement,
        workers: Workers,
        now_s: float,
        usable: Container[str],
        *,
        early: bool = False,
    ) -> Placement:
        """Return `placement` with a `second` that takes work. Never raises.

        Only `second` and the reason are the router's: what has been computed stays where it is.

        :param early: the prompt is still to be computed. `on_prefilled` must follow.
        """
        whole: Placement | None = None
        ask = self._binder.bind_early if early and self._binder is not None else self._on_prefill_done
        answer, fault, took = self._asked(lambda: ask(request, placement, workers, now_s))
        if fault is None:
            whole, fault = self._completed(answer, placement, usable)
        if whole is None:
            second = self._least_loaded(request, workers, now_s, usable).second
            whole = Placement(placement.first, second, placement.split)
        if self._journal is not None and (fault is not None or not self._journal.skips(Kind.ROUTER, took * 1e-9)):
            self._decided(whole, fault, took, request, workers, now_s, open_placement=placement)
        return whole

    def on_prefilled(self, request: Request, now_s: float) -> None:
        """Tell a router that binds early that the prompt of a request is computed. Never raises."""
        if (binder := self._binder) is not None:
            self._told(lambda: binder.on_prefilled(request, now_s))

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Tell a router that learns from outcomes how a request ended. Never raises."""
        if (learner := self._learner) is not None:
            self._told(lambda: learner.on_ended(request, outcome))

    def plan_ahead(self, workers: Workers, now_s: float) -> None:
        """Let a router do what no request should wait for. Never raises."""
        if self._planner is not None and workers:
            with self._guarded:
                self._planner.plan_ahead(workers, now_s)

    @property
    def pools(self) -> tuple[int, int] | None:
        """Workers that an elastic router gives new prefills and new decodes now; None where there is none to show."""
        if self._elastic is not None:
            with self._guarded:
                prefill, decode = self._elastic.pools
                return int(prefill), int(decode)
        return None

    def take_role_moves(self) -> tuple[RoleMove, ...]:
        """Return the moves proposed since the last call; empty where the router has none. Never raises."""
        good: tuple[RoleMove, ...] = ()
        if self._mover is not None:
            with self._guarded:
                moves = tuple(self._mover.take_role_moves())
                good = tuple(
                    RoleMove(m.worker, Role(m.role), one_line(m.reason))
                    for m in moves
                    if type(m) is RoleMove and type(m.worker) is str and m.role in ROLES
                )
                if len(good) < len(moves):
                    self._unsafe(f"{type(self.policy).__name__} proposes what is not a RoleMove")
        return good

    def _mended(self, answer: object, usable: Container[str]) -> tuple[Placement | None, Fault | None]:
        """Check an answer that failed the quick check: return what can be followed of it, and its fault, if any."""
        if not isinstance(answer, Placement):
            return None, self._unsafe(f"the router answered with {type(answer).__name__}, not Placement")
        first, second = answer.first, answer.second
        if first not in usable or (second is not None and second not in usable):
            return None, self._unknown(f"{one_line(first)} or {one_line(second)} takes no work")
        split = int(answer.split)
        fault = None if split >= 0 else self._unsafe(f"split is {split}, not a number of tokens")
        return Placement(first, second, max(split, 0), one_line(answer.reason)), fault

    def _completed(
        self, answer: object, opened: Placement, usable: Container[str]
    ) -> tuple[Placement | None, Fault | None]:
        """Return `opened` with the second worker that the router names, if that takes work; else what is wrong."""
        try:
            if not isinstance(answer, Placement):
                return None, self._unsafe(f"the router answered with {type(answer).__name__}, not Placement")
            second = answer.second
            if second is None or second not in usable:
                return None, self._unknown(f"{one_line(second)} takes no work")
            unchanged = (answer.first, answer.split) == (opened.first, opened.split)
            if unchanged and type(answer) is Placement and type(answer.reason) is str:
                return answer, None
            return Placement(opened.first, second, opened.split, one_line(answer.reason)), None
        except Exception as error:
            return None, self._unsafe(f"the answer of {type(self.policy).__name__}: {one_line(error)}")

    def _least_loaded(self, request: Request, workers: Workers, now_s: float, usable: Container[str]) -> Placement:
        """Return where the router's own fallback places a request, else the least loaded workers that take work."""
        if self._fallback is not None:
            with self._guarded:
                answer: object = self._fallback.on_arrival(request, workers, now_s)
                mended, fault = self._mended(answer, usable)
                if mended is not None and fault is None and mended.second is not None:
                    return mended
        able = tuple(w for w in workers if w.id in usable)
        try:
            placement = self._own.on_arrival(request, workers, now_s)
            if placement.first in usable and placement.second in usable:
                return placement
            return self._own.on_arrival(request, able, now_s)
        except Exception as error:  # loads that are no numbers
            if not able:
                raise
            self.tally.fault(Fault.BAD_METRICS, f"loads of workers: {one_line(error)}", error)
            first, second = (next((w.id for w in able if w.role is role), able[0].id) for role in Role)
            return Placement(first, second, request.prompt_tokens)

    def _unknown(self, why: str) -> Fault:
        self.tally.fault(Fault.UNKNOWN_WORKER, why)
        return Fault.UNKNOWN_WORKER

    def _decided(
        self,
        placement: Placement,
        fault: Fault | None,
        took_ns: int,
        request: Request,
        workers: Workers,
        now_s: float,
        open_placement: Placement | None = None,
    ) -> None:
        """Tell the journal. Only called when there is one."""
        seen: dict[str, Any] = {"request": request, "workers": workers, "now_s": now_s}
        if open_placement is not None:
            seen["placement"] = open_placement
        journal = self._journal
        assert journal is not None  # noqa: S101 - callers looked
        journal.decided(Decision(Kind.ROUTER, placement, fault, took_ns / 1e9), seen)
