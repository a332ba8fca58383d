"""Whatever a flow policy does, the safe one loses no request, keeps the queue bounded, and never deadlocks."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.contracts.kinds import Kind
from pdplugins.policies.stock.flow import FcfsSettings, FirstComeFirstServed
from pdplugins.runtime.decision import Decision, Fault
from pdplugins.runtime.flow import MOST_HOLD_S, MOST_RETRY_S, SafeFlow
from pdplugins.types import Ending, FlowDecision, Go, Hold, Outcome, Refuse, Request, Waiting, WorkerView
from tests.runtime.hostile import FLEET, Panic, Script, errors, junk, numbers, request

MOST = 4
NAMES = ("a", "b", "c", "d", "e", "f")

ids: st.SearchStrategy[Any] = st.sampled_from(NAMES) | junk
answers = st.builds(Go, ids) | st.builds(Refuse, ids, numbers | junk, junk) | st.builds(Hold, numbers | junk) | errors
steps = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from(NAMES)),
    st.tuples(st.just("leave"), st.sampled_from(NAMES)),
    st.tuples(st.just("end"), st.sampled_from(NAMES)),
    st.tuples(st.just("ask"), st.booleans()),
)


def waiting(name: str, since_s: float = 0.0) -> Waiting:
    return Waiting(request(name), since_s, since_s + 2.0)


class Host:
    """A host that asks as the contract says, and checks every answer."""

    def __init__(self, flow: Any, most_waiting: int = MOST) -> None:
        self.safe = SafeFlow(flow, most_waiting=most_waiting)
        self.most_waiting = most_waiting
        self.waiting: list[str] = []
        self.in_service: list[str] = []
        self.refused: list[str] = []
        self.now_s = 0.0

    def arrive(self, name: str) -> None:
        refusal = self.safe.arrived(waiting(name, self.now_s), self.now_s)
        if name in self.waiting or len(self.waiting) == self.most_waiting:
            assert refusal is not None
            assert refusal.request_id == name
        else:
            assert refusal is None
            self.waiting.append(name)

    def leave(self, name: str) -> None:
        self.safe.left(name)
        if name in self.waiting:
            self.waiting.remove(name)

    def end(self, name: str) -> None:
        self.safe.ended(request(name), Outcome(Ending.FINISHED, 1))
        if name in self.in_service:
            self.in_service.remove(name)

    def ask(self, ready: bool = True) -> FlowDecision:
        """Ask until the answer is Hold."""
        workers = FLEET if ready else ()
        for _ in range(len(self.waiting) + 1):
            decision = self.safe.next(workers, self.now_s, len(self.in_service))
            if isinstance(decision, Hold):
                deadlocked = bool(self.waiting) and ready and not self.in_service and decision.until_s is None
                assert not deadlocked
                if decision.until_s is not None:
                    assert self.now_s < decision.until_s <= self.now_s + MOST_HOLD_S
                return decision
            assert decision.request_id in self.waiting
            self.waiting.remove(decision.request_id)
            if isinstance(decision, Go):
                assert ready
                self.in_service.append(decision.request_id)
            else:
                assert 1.0 <= decision.retry_after_s <= MOST_RETRY_S
                self.refused.append(decision.request_id)
        raise AssertionError("more answers than requests")


@pytest.mark.moderate
@given(script=st.lists(answers | junk, min_size=1, max_size=8), stream=st.lists(steps, max_size=30))
def test_any_policy_loses_nothing(script: list[Any], stream: list[tuple[str, Any]]) -> None:
    """After each step the queue is what the host knows; at the end a policy that fails leaves nothing behind."""
    policy = Script(script)
    host = Host(policy)
    for step, argument in stream:
        host.now_s += 1.0
        getattr(host, step)(argument)
        assert len(host.safe) == len(host.waiting)
    policy._answers = [RuntimeError("broken for good")]
    host.ask()
    assert host.waiting == []


@given(stream=st.lists(steps, max_size=30))
def test_a_policy_that_always_fails_is_first_come_first_served(stream: list[tuple[str, Any]]) -> None:
    host = Host(Script([RuntimeError("no")]))
    for step, argument in stream:
        before = list(host.waiting)
        went_on = len(host.in_service)
        getattr(host, step)(argument)
        if (step, argument) == ("ask", True):
            assert host.in_service[went_on:] == before


class Answers:
    """A flow policy that takes in what comes, and gives the next of a list of answers."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.arrived: list[str] = []
        self.left: list[str] = []
        self.ended: list[tuple[str, Outcome]] = []

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        self.arrived.append(waiting.request.id)

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def on_left(self, request_id: str) -> None:
        self.left.append(request_id)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        self.ended.append((request.id, outcome))


def asked(*answers: Any, in_service: int = 1, now_s: float = 10.0) -> tuple[FlowDecision, SafeFlow, Answers]:
    """Ask once where `a` and `b` wait."""
    policy = Answers(*answers)
    flow = SafeFlow(policy, most_waiting=MOST)
    for name in ("a", "b"):
        assert flow.arrived(waiting(name), 0.0) is None
    return flow.next(FLEET, now_s, in_service), flow, policy


@pytest.mark.parametrize(
    "answer", [Go("b"), Refuse("b", 30.0, "later"), Hold(), Hold(11.0)], ids=["go", "refuse", "hold", "hold until"]
)
def test_a_good_answer_is_followed(answer: FlowDecision) -> None:
    decision, flow, policy = asked(answer)
    assert decision == answer
    assert not flow.faults
    assert policy.left == []
    assert len(flow) == (2 if isinstance(answer, Hold) else 1)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (ValueError("no"), Fault.POLICY_ERROR),
        (None, Fault.UNSAFE_ANSWER),
        (Go("nobody"), Fault.UNSAFE_ANSWER),
        (Go(["a"]), Fault.UNSAFE_ANSWER),  # type: ignore[arg-type]
        (Refuse("nobody", 3.0), Fault.UNSAFE_ANSWER),
    ],
)
def test_what_cannot_be_followed_is_first_come_first_served_for_that_step(answer: Any, fault: Fault) -> None:
    decision, flow, policy = asked(answer, Go("b"))
    assert decision == Go("a")
    assert flow.faults == {fault: 1}
    assert policy.left == ["a"], "the policy must forget what went on without it"
    assert flow.next(FLEET, 11.0, 2) == Go("b")


def test_a_request_goes_on_once() -> None:
    decision, flow, _ = asked(Go("a"), Go("a"))
    assert decision == Go("a")
    assert flow.next(FLEET, 11.0, 1) == Go("b")
    assert flow.faults == {Fault.UNSAFE_ANSWER: 1}


def test_a_deadlock_is_broken() -> None:
    decision, flow, _ = asked(Hold(), in_service=0)
    assert decision == Go("a")
    assert flow.faults == {Fault.UNSAFE_ANSWER: 1}


def test_who_names_a_time_may_hold_an_idle_fleet() -> None:
    decision, flow, _ = asked(Hold(12.0), in_service=0)
    assert decision == Hold(12.0)
    assert not flow.faults


@pytest.mark.parametrize("until_s", [10.0, -1.0, math.inf, math.nan])
def test_a_time_that_is_none_to_come_is_a_fault(until_s: float) -> None:
    decision, flow, _ = asked(Hold(until_s))
    assert decision == Hold()
    assert flow.faults == {Fault.UNSAFE_ANSWER: 1}
    assert asked(Hold(until_s), in_service=0)[0] == Go("a")


def test_a_host_neither_spins_nor_waits_for_ever() -> None:
    assert asked(Hold(math.nextafter(10.0, 11.0)))[0] == Hold(10.001)
    assert asked(Hold(1e300))[0] == Hold(10.0 + MOST_HOLD_S)


@pytest.mark.parametrize(("said_s", "told_s"), [(-5.0, 1.0), (0.2, 1.0), (60, 60.0), (1e9, 3600.0)])
def test_what_a_refused_client_is_told_is_bounded(said_s: float, told_s: float) -> None:
    decision, flow, _ = asked(Refuse("a", said_s))
    assert decision == Refuse("a", told_s)
    assert not flow.faults


@pytest.mark.parametrize("said", [math.nan, None, "soon"])
def test_a_time_to_retry_that_is_no_number_is_a_fault(said: Any) -> None:
    """The policy has forgotten the request, so it must not stay here."""
    decision, flow, _ = asked(Refuse("a", said))
    assert decision == Refuse("a", 1.0)
    assert flow.faults == {Fault.UNSAFE_ANSWER: 1}


def test_the_queue_is_bounded_whatever_the_policy_does() -> None:
    policy = Answers()
    flow = SafeFlow(policy, most_waiting=2)
    refusals = [flow.arrived(waiting(name), 0.0) for name in ("a", "b", "c")]
    assert refusals == [None, None, Refuse("c", 1.0, "2 requests wait already")]
    assert (policy.arrived, len(flow)) == (["a", "b"], 2)


def test_two_requests_of_one_id_cannot_wait() -> None:
    flow = SafeFlow(Answers(), most_waiting=2)
    assert flow.arrived(waiting("a"), 0.0) is None
    assert isinstance(flow.arrived(waiting("a"), 0.0), Refuse)
    assert len(flow) == 1


def test_nothing_goes_on_where_no_worker_takes_work_and_nothing_is_lost() -> None:
    policy = Answers(Go("b"), Go("a"))
    flow = SafeFlow(policy, most_waiting=MOST)
    for name in ("a", "b"):
        flow.arrived(waiting(name), 0.0)
    assert flow.next((), 1.0, 0) == Hold()
    assert flow.faults == {Fault.UNSAFE_ANSWER: 1}
    assert [flow.next(FLEET, 2.0, 0), flow.next(FLEET, 2.0, 1), flow.next(FLEET, 2.0, 2)] == [Go("b"), Go("a"), Hold()]


def test_a_client_that_leaves_is_forgotten_once() -> None:
    policy = Answers()
    flow = SafeFlow(policy, most_waiting=MOST)
    flow.arrived(waiting("a"), 0.0)
    flow.left("a")
    flow.left("a")
    assert (policy.left, len(flow)) == (["a"], 0)
    assert flow.next(FLEET, 1.0, 0) == Hold(), "an empty queue holds, and nobody is asked"


def test_a_method_that_a_policy_lacks_is_a_fault_of_it() -> None:
    flow = SafeFlow(object(), most_waiting=MOST)  # type: ignore[arg-type]
    flow.arrived(waiting("a"), 0.0)
    flow.arrived(waiting("b"), 0.0)
    flow.left("a")
    assert flow.next(FLEET, 1.0, 0) == Go("b")
    assert flow.faults == {Fault.POLICY_ERROR: 4}, "two arrivals, one that left, and one that went on"


def test_outcomes_are_told() -> None:
    policy = Answers()
    SafeFlow(policy, most_waiting=MOST).ended(request("a"), Outcome(Ending.CANCELLED))
    assert policy.ended == [("a", Outcome(Ending.CANCELLED))]


class Notes:
    """A journal that remembers."""

    def __init__(self) -> None:
        self.decisions: list[tuple[Decision[Any], Any]] = []

    def skips(self, kind: Kind, step_s: float) -> bool:
        return False  # it keeps every decision

    def decided(self, decision: Decision[Any], seen: Any) -> None:
        self.decisions.append((decision, seen))

    def fault(self, kind: Kind, fault: Fault, why: str, error: Exception | None = None) -> None:
        pass


def test_the_journal_hears_every_decision() -> None:
    journal = Notes()
    flow = SafeFlow(Answers(Hold(), 3), most_waiting=1, journal=journal)
    flow.arrived(waiting("a"), 0.0)
    flow.arrived(waiting("b"), 0.0)
    flow.next(FLEET, 1.0, 2)
    flow.next(FLEET, 2.0, 2)
    assert [(d.kind, d.answer, d.fault) for d, _ in journal.decisions] == [
        (Kind.FLOW, Refuse("b", 1.0, "1 requests wait already"), None),
        (Kind.FLOW, Hold(), None),
        (Kind.FLOW, Go("a"), Fault.UNSAFE_ANSWER),
    ]
    assert journal.decisions[1][1] == {
        "waiting": 1,
        "head": waiting("a"),
        "workers": FLEET,
        "now_s": 1.0,
        "in_service": 2,
    }


@pytest.mark.moderate
@given(stream=st.lists(steps, max_size=40), per_worker=st.none() | st.integers(1, 2))
def test_the_stock_policy_needs_no_help(stream: list[tuple[str, Any]], per_worker: int | None) -> None:
    settings = FcfsSettings(per_worker=per_worker)
    host = Host(FirstComeFirstServed(settings, None), most_waiting=3)  # type: ignore[arg-type]
    for step, argument in stream:
        if step == "arrive" and argument in host.in_service:
            continue  # ids are of one request at a time
        host.now_s += 1.0
        getattr(host, step)(argument)
    assert not host.safe.faults


@pytest.mark.parametrize(("error", "goes_on"), [(Panic(), True), (KeyboardInterrupt(), False), (SystemExit(), False)])
def test_only_what_ends_the_process_goes_through(error: BaseException, goes_on: bool) -> None:
    """A gateway asks in one task: with it the queue would stop."""

    class Panics:
        def on_arrival(self, waiting: Waiting, now_s: float) -> None:
            pass

        def next(self, *_: Any) -> FlowDecision:
            raise error

    flow = SafeFlow(Panics(), most_waiting=MOST)  # type: ignore[arg-type]
    flow.arrived(waiting("a"), 0.0)
    if goes_on:
        assert flow.next(FLEET, 0.0, 0) == Go("a")
        assert flow.faults[Fault.POLICY_ERROR]
    else:
        with pytest.raises(type(error)):
            flow.next(FLEET, 0.0, 0)
