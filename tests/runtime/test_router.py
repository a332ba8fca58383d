"""Whatever a router does, the safe router places every request on workers that take work."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.contracts.kinds import Kind
from pdplugins.runtime.decision import Decision, Fault
from pdplugins.runtime.faults import LOG_EVERY, MOST_TEXT, Tally
from pdplugins.runtime.router import SafeRouter
from pdplugins.types import (
    Deployment,
    Ending,
    Outcome,
    Placement,
    Request,
    Role,
    RoleMove,
    Router,
    WorkerLoad,
    WorkerView,
)
from tests.runtime.hostile import FLEET, Script, Trap, View, errors, junk, numbers, request

IDS = frozenset(view.id for view in FLEET)
DEPLOYMENT = Deployment(None, None, 8, 1, 2, 30.0, 256)  # type: ignore[arg-type] # the safe router looks at neither

names: st.SearchStrategy[Any] = st.sampled_from([*sorted(IDS), "gone"]) | junk
placements = st.builds(Placement, names, names, numbers | junk, st.text() | junk)
moves = st.builds(RoleMove, names, st.sampled_from(Role) | junk)
answers = placements | errors | junk | st.lists(moves | junk) | st.tuples(numbers, numbers)


def assert_safe(placement: Placement, usable: frozenset[str]) -> None:
    assert type(placement) is Placement
    assert placement.first in usable
    assert placement.second is None or placement.second in usable
    assert type(placement.split) is int
    assert placement.split >= 0
    assert type(placement.reason) is str


@pytest.mark.moderate
@given(script=st.lists(answers, min_size=1, max_size=8), usable=st.frozensets(st.sampled_from(sorted(IDS)), min_size=1))
def test_any_answer_becomes_one_to_follow(script: list[Any], usable: frozenset[str]) -> None:
    router = SafeRouter(Script(script), DEPLOYMENT)  # type: ignore[arg-type]
    for turn in range(len(script)):
        arrived = router.on_arrival(request(), FLEET, float(turn), usable)
        assert_safe(arrived, usable)
        opened = Placement(arrived.first, None, arrived.split)
        done = router.on_prefill_done(request(), opened, FLEET, float(turn), usable)
        assert_safe(done, usable)
        assert done.second is not None
        assert (done.first, done.split) == (opened.first, opened.split)
        router.on_ended(request(), Outcome(Ending.FINISHED, 3))
        router.plan_ahead(FLEET, float(turn))
        assert router.pools is None or all(type(size) is int for size in router.pools)
        assert all(type(move) is RoleMove and move.role in Role for move in router.take_role_moves())


def arrive(answer: object) -> tuple[Placement, SafeRouter]:
    router = SafeRouter(Script([answer]), DEPLOYMENT)  # type: ignore[arg-type]
    return router.on_arrival(request(), FLEET, 0.0, IDS), router


def test_a_good_placement_passes_as_it_is() -> None:
    good = Placement("p1", None, 40, "why")
    placement, router = arrive(good)
    assert placement is good
    assert not router.faults
    assert (router.calls, router.ns > 0) == (1, True)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (ValueError("no"), Fault.POLICY_ERROR),
        (None, Fault.UNSAFE_ANSWER),
        (("p0", "d0", 10), Fault.UNSAFE_ANSWER),
        (Placement("gone", "d0", 10), Fault.UNKNOWN_WORKER),
        (Placement("p0", "gone", 10), Fault.UNKNOWN_WORKER),
        (Placement("p0", "d0", math.nan), Fault.UNSAFE_ANSWER),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_followed_is_counted_and_the_least_loaded_are_taken(answer: object, fault: Fault) -> None:
    placement, router = arrive(answer)
    assert placement.first in {"p0", "p1"}
    assert placement.second in {"d0", "d1"}
    assert placement.split == request().prompt_tokens
    assert router.faults == {fault: 1}


def test_a_split_becomes_a_whole_number_of_tokens() -> None:
    placement, router = arrive(Placement("p0", "d0", np.int64(40), "why"))  # type: ignore[arg-type]
    assert (type(placement.split), placement) == (int, Placement("p0", "d0", 40, "why"))
    assert not router.faults


def test_a_negative_split_is_clamped_and_counted() -> None:
    placement, router = arrive(Placement("p0", "d0", -5))
    assert placement == Placement("p0", "d0", 0)
    assert router.faults == {Fault.UNSAFE_ANSWER: 1}


@pytest.mark.parametrize("tokens", [None, "7"])
def test_loads_that_are_no_numbers_keep_no_request_from_a_worker_of_each_role(tokens: Any) -> None:
    odd = View("p9", Role.PREFILL, WorkerLoad("p9", queued_tokens=tokens))
    router = SafeRouter(Script([ValueError("no")]), DEPLOYMENT)  # type: ignore[arg-type]
    placement = router.on_arrival(request(), (odd, *FLEET), 0.0, frozenset({"p1", "d1"}))
    assert placement == Placement("p1", "d1", request().prompt_tokens)
    assert router.faults == {Fault.POLICY_ERROR: 1, Fault.BAD_METRICS: 1}
    assert router.on_arrival(request(), (odd, *FLEET), 0.0, frozenset({"d0"})).first == "d0"


class Elastic:
    """A router with all that a router may have."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.pools: Any = (3, 1)
        self.moves: Any = (RoleMove("p0", Role.DECODE),)

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        return Placement("p0", None, 0)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        return Placement("p1", "d1", 7, "moved")

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def take_role_moves(self) -> Any:
        return self.moves


class Plain:
    """A router with nothing but placements."""

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        return Placement("p0", "d0", 0)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        return placement


def test_what_was_prefilled_stays_where_it_is() -> None:
    router = SafeRouter(Elastic(), DEPLOYMENT)
    done = router.on_prefill_done(request(), Placement("p0", None, 100), FLEET, 0.0, IDS)
    assert done == Placement("p0", "d1", 100, "moved")


def test_what_a_router_may_have_goes_through() -> None:
    policy = Elastic()
    router = SafeRouter(policy, DEPLOYMENT)
    router.on_ended(request(), Outcome(Ending.FAILED))
    assert (router.hears_outcomes, router.moves_roles) == (True, True)
    assert policy.outcomes == [Outcome(Ending.FAILED)]
    assert router.pools == (3, 1)
    assert router.take_role_moves() == (RoleMove("p0", Role.DECODE),)


def test_why_a_role_moves_is_one_short_line() -> None:
    policy = Elastic()
    policy.moves = (RoleMove("p0", Role.DECODE, "\x1b[2J\n" + "x" * 10**6), RoleMove("p1", "decode", Trap()))  # type: ignore[arg-type]
    first, second = SafeRouter(policy, DEPLOYMENT).take_role_moves()
    assert first.reason == f"?[2J {'x' * (MOST_TEXT - 6)}…"
    assert second == RoleMove("p1", Role.DECODE, "a Trap that cannot be shown")


def test_what_a_router_does_not_have_is_empty() -> None:
    router = SafeRouter(Plain(), DEPLOYMENT)
    router.on_ended(request(), Outcome(Ending.FAILED))
    assert (router.hears_outcomes, router.moves_roles, router.pools, router.take_role_moves()) == (
        False,
        False,
        None,
        (),
    )


def test_pools_and_moves_that_are_none_are_faults() -> None:
    policy = Elastic()
    router = SafeRouter(policy, DEPLOYMENT)
    policy.pools, policy.moves = (1,), (RoleMove("p1", Role.DECODE), "p0", RoleMove("p0", "both"))  # type: ignore[arg-type]
    assert router.pools is None
    assert router.take_role_moves() == (RoleMove("p1", Role.DECODE),)
    assert router.faults == {Fault.POLICY_ERROR: 1, Fault.UNSAFE_ANSWER: 1}


class Notes:
    """A journal that remembers."""

    def __init__(self) -> None:
        self.decisions: list[Decision[Any]] = []
        self.seen: list[Any] = []
        self.faults: list[tuple[Kind, Fault]] = []

    def skips(self, kind: Kind, step_s: float) -> bool:
        return False  # it keeps every decision

    def decided(self, decision: Decision[Any], seen: Any) -> None:
        self.decisions.append(decision)
        self.seen.append(seen)

    def fault(self, kind: Kind, fault: Fault, why: str, error: Exception | None = None) -> None:
        self.faults.append((kind, fault))


@pytest.mark.parametrize(
    ("policy", "fault"),
    [(Plain(), None), (Script([ValueError()]), Fault.POLICY_ERROR), (Script([3]), Fault.UNSAFE_ANSWER)],
)
def test_the_journal_hears_every_decision_with_its_fault(policy: Router, fault: Fault | None) -> None:
    journal = Notes()
    router = SafeRouter(policy, DEPLOYMENT, journal=journal, clock=iter(range(0, 10**9, 10**6)).__next__)
    placement = router.on_arrival(request("a"), FLEET, 7.0, IDS)
    (decision,) = journal.decisions
    assert (decision.kind, decision.answer, decision.fault, decision.step_s) == (Kind.ROUTER, placement, fault, 0.001)
    assert journal.seen == [{"request": request("a"), "workers": FLEET, "now_s": 7.0}]
    assert journal.faults == ([] if fault is None else [(Kind.ROUTER, fault)])


def test_a_fault_is_logged_with_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(Kind.ROUTER)
    routers = [SafeRouter(Script([KeyError("x")]), DEPLOYMENT, tally=tally) for _ in range(2)]  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "pdplugins.router"):
        for turn in range(LOG_EVERY):
            routers[turn % 2].on_arrival(request(), FLEET, 0.0, IDS)
    assert [(r.getMessage(), r.exc_info is not None) for r in caplog.records] == [
        ("policy_error (1 so far): Script raised KeyError: 'x'", True),
        (f"policy_error ({LOG_EVERY} so far): Script raised KeyError: 'x'", False),
    ]
    assert routers[0].faults == routers[1].faults == {Fault.POLICY_ERROR: LOG_EVERY}


class PlanningScript(Script):
    """Python 3.12 and later look for the method itself where they ask whether a router plans ahead."""

    def plan_ahead(self, *seen: object) -> None:
        self.answer()


def test_a_router_that_fails_between_requests_is_counted() -> None:
    router = SafeRouter(PlanningScript([ValueError("no")]), DEPLOYMENT)  # type: ignore[arg-type]
    assert router.plans_ahead
    router.plan_ahead(FLEET, 0.0)
    assert router.faults == {Fault.POLICY_ERROR: 1}


class Fails:
    """A router that raises, and has a simpler one in place of itself."""

    def __init__(self, fallback: object) -> None:
        self.fallback = fallback

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        raise ValueError("no")

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        raise ValueError("no")


@pytest.mark.parametrize(("answer", "first"), [(Placement("d1", "d1", 5), "d1"), (Placement("gone", "d1", 5), None)])
def test_a_router_that_raises_is_replaced_by_its_own_fallback(answer: Placement, first: str | None) -> None:
    router = SafeRouter(Fails(Script([answer])), DEPLOYMENT)
    placed = router.on_arrival(request(), FLEET, 0.0, IDS)
    assert placed.first == (first or SafeRouter(Fails(None), DEPLOYMENT).on_arrival(request(), FLEET, 0.0, IDS).first)
    assert router.faults[Fault.POLICY_ERROR] == 1
