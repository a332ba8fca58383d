"""First come first served: order kept, nothing lost or doubled, and nobody waits while there is a place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.stock.flow import FcfsSettings, FirstComeFirstServed
from pdplugins.types import (
    Capabilities,
    Ending,
    Go,
    HearsOutcomes,
    Hold,
    Outcome,
    Refuse,
    Request,
    Role,
    Waiting,
    WorkerLoad,
)

DONE = Outcome(Ending.FINISHED, 5)


@dataclass
class Worker:
    id: str = "p0"
    role: Role = Role.PREFILL
    free_kv_tokens: int | None = None
    capabilities: Capabilities | None = None
    kv_capacity_tokens: int = 1000
    load: WorkerLoad = field(default_factory=lambda: WorkerLoad("p0"))
    tp: int | None = 1
    cached_blocks: frozenset[int] = frozenset()


FLEET = (Worker("p0"), Worker("d0", Role.DECODE))


def fcfs(**settings: Any) -> FirstComeFirstServed:
    return FirstComeFirstServed(FcfsSettings(**settings), None)  # type: ignore[arg-type]


def waiting(name: str, since_s: float = 0.0, prompt_tokens: int = 100) -> Waiting:
    return Waiting(Request(name, since_s, prompt_tokens), since_s, since_s + 2.0)


def ask_all(policy: FirstComeFirstServed, workers: tuple[Worker, ...] = FLEET, now_s: float = 0.0) -> list[Any]:
    """Ask until it holds; return all answers."""
    answers: list[Any] = []
    while not answers or not isinstance(answers[-1], Hold):
        answers.append(policy.next(workers, now_s))
    return answers


def test_by_default_nothing_ever_waits() -> None:
    policy = fcfs()
    for number in range(100):
        policy.on_arrival(waiting(f"r{number}"), 0.0)
        assert ask_all(policy) == [Go(f"r{number}"), Hold()]


def test_it_hears_outcomes() -> None:
    assert isinstance(fcfs(), HearsOutcomes)


def test_a_limit_holds_until_somebody_ends() -> None:
    policy = fcfs(per_worker=1)
    for name in "abcd":
        policy.on_arrival(waiting(name), 0.0)
    assert ask_all(policy) == [Go("a"), Go("b"), Hold()]
    policy.on_ended(waiting("b").request, DONE)
    assert ask_all(policy) == [Go("c"), Hold()]
    assert ask_all(policy, (*FLEET, Worker("p1"))) == [Go("d"), Hold()]


def test_one_that_starts_anew_is_counted_once() -> None:
    policy = fcfs(per_worker=1)
    policy.on_arrival(waiting("a"), 0.0)
    assert ask_all(policy, FLEET[:1]) == [Go("a"), Hold()]
    policy.on_arrival(waiting("a"), 5.0)  # its worker died
    assert ask_all(policy, FLEET[:1]) == [Go("a"), Hold()]


def test_what_waited_too_long_is_refused_and_the_time_is_known_before() -> None:
    policy = fcfs(per_worker=1, max_wait_s=3.0)
    for name, since_s in (("a", 0.0), ("b", 1.0), ("c", 1.5)):
        policy.on_arrival(waiting(name, since_s), since_s)
    assert ask_all(policy, FLEET[:1], 1.5) == [Go("a"), Hold(4.0)]
    assert ask_all(policy, FLEET[:1], 4.0) == [Refuse("b", 3.0, "waited 3.0 s for a worker"), Hold(4.5)]
    policy.on_ended(waiting("a").request, DONE)
    assert ask_all(policy, FLEET[:1], 4.4) == [Go("c"), Hold()]


def test_without_workers_it_holds() -> None:
    policy = fcfs()
    policy.on_arrival(waiting("a"), 0.0)
    assert ask_all(policy, ()) == [Hold()]


def test_the_head_waits_for_free_kv_tokens_and_nobody_overtakes_it() -> None:
    policy = fcfs(free_kv=True)
    policy.on_arrival(waiting("first"), 0.0)
    full = (Worker("p0", free_kv_tokens=99),)
    assert ask_all(policy, full) == [Go("first"), Hold()], "nothing is in service, so no more will become free"
    policy.on_arrival(waiting("long", prompt_tokens=100), 0.0)
    policy.on_arrival(waiting("short", prompt_tokens=10), 0.0)
    assert ask_all(policy, full) == [Hold()]
    assert ask_all(policy, (Worker("p0", free_kv_tokens=100),)) == [Go("long"), Go("short"), Hold()]


@pytest.mark.parametrize(
    ("worker", "goes"),
    [
        (Worker(free_kv_tokens=None), True),  # the host does not say
        (Worker(load=WorkerLoad("p0", decode_tokens=950.0)), False),  # 50 of 1,000 tokens are left
        (Worker(load=WorkerLoad("p0", decode_tokens=900.0)), True),
        (Worker(free_kv_tokens=50), False),
        (Worker(free_kv_tokens=50, kv_capacity_tokens=60), True),  # it never fits: the host must answer
        (Worker(role=Role.DECODE, free_kv_tokens=500), False),
        (Worker(role=Role.DECODE, free_kv_tokens=500, capabilities=Capabilities()), True),
        (Worker(free_kv_tokens=500, capabilities=Capabilities(frozenset({Role.DECODE}), alone=False)), False),
        (Worker(free_kv_tokens=500, capabilities=Capabilities(phases=frozenset())), True),  # a unified server
    ],
)
def test_a_worker_counts_that_can_prefill_and_has_the_tokens_as_far_as_it_says(worker: Worker, goes: bool) -> None:
    policy = fcfs(free_kv=True)
    policy.on_arrival(waiting("served"), 0.0)
    assert ask_all(policy) == [Go("served"), Hold()]
    policy.on_arrival(waiting("next"), 0.0)
    answer = policy.next((worker, Worker("full", free_kv_tokens=0)), 0.0)
    assert answer == (Go("next") if goes else Hold())


def loaded(role: Role, **load: float) -> Worker:
    return Worker(role.value, role, load=WorkerLoad(role.value, **load))


@pytest.mark.parametrize(
    ("settings", "worker", "goes"),
    [
        ({"prefill_tokens": 500}, loaded(Role.PREFILL, queued_tokens=300, prefill_tokens=199), True),
        ({"prefill_tokens": 500}, loaded(Role.PREFILL, queued_tokens=300, prefill_tokens=200), False),
        ({"prefill_tokens": 500}, loaded(Role.PREFILL, queued_tokens=500), False),  # the host does not say the step
        ({"prefill_tokens": 500}, loaded(Role.DECODE, queued_tokens=9000), True),  # nobody prefills
        ({"decode_requests": 8}, loaded(Role.DECODE, decode_requests=7), True),
        ({"decode_requests": 8}, loaded(Role.DECODE, decode_requests=8), False),
        ({"decode_requests": 8}, loaded(Role.DECODE), True),  # the host does not say
        ({"prefill_tokens": 500, "decode_requests": 8}, loaded(Role.DECODE, decode_requests=8), False),
    ],
)
def test_the_load_by_phase_limits_what_goes_on(settings: dict[str, int], worker: Worker, goes: bool) -> None:
    policy = fcfs(**settings)
    policy.on_arrival(waiting("served"), 0.0)
    assert ask_all(policy, (worker,)) == [Go("served"), Hold()], "nothing is in service, so no load will become less"
    policy.on_arrival(waiting("next"), 0.0)
    assert policy.next((worker,), 0.0) == (Go("next") if goes else Hold())
    policy.on_ended(waiting("served").request, DONE)
    if not goes:
        assert policy.next((worker,), 0.0) == Go("next")


def test_where_nobody_can_prefill_the_host_must_answer() -> None:
    policy = fcfs(free_kv=True)
    policy.on_arrival(waiting("a"), 0.0)
    policy.on_arrival(waiting("b"), 0.0)
    assert ask_all(policy, (Worker("d0", Role.DECODE, free_kv_tokens=0),)) == [Go("a"), Go("b"), Hold()]


steps = st.one_of(
    st.just(("arrive", 0)),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("leave"), st.integers(0, 5)),
    st.tuples(st.just("ask"), st.integers(0, 3)),
    st.tuples(st.just("later"), st.integers(1, 5)),
)


@given(
    stream=st.lists(steps, max_size=60),
    per_worker=st.none() | st.integers(1, 3),
    max_wait_s=st.none() | st.integers(1, 10),
)
def test_order_is_kept_nothing_is_lost_and_nobody_waits_beside_a_place(
    stream: list[tuple[str, int]], per_worker: int | None, max_wait_s: int | None
) -> None:
    policy = fcfs(per_worker=per_worker, max_wait_s=max_wait_s)
    queue: list[Waiting] = []
    served: list[Request] = []
    now_s, count = 0.0, 0
    for step, number in stream:
        if step == "arrive":
            queue.append(waiting(f"r{count}", now_s))
            policy.on_arrival(queue[-1], now_s)
            count += 1
        elif step == "end" and served:
            policy.on_ended(served.pop(number % len(served)), DONE)
        elif step == "leave" and queue:
            policy.on_left(queue.pop(number % len(queue)).request.id)
        elif step == "later":
            now_s += number
        elif step == "ask":
            workers = tuple(Worker(f"p{index}") for index in range(number))
            for answer in ask_all(policy, workers, now_s):
                overdue = bool(queue) and max_wait_s is not None and now_s - queue[0].since_s >= max_wait_s
                if isinstance(answer, Hold):
                    full = per_worker is not None and len(served) >= per_worker * number
                    assert not queue or not workers or full
                    assert answer.until_s == (queue[0].since_s + max_wait_s if queue and max_wait_s else None)
                else:
                    head = queue.pop(0).request
                    assert answer.request_id == head.id
                    assert isinstance(answer, Refuse) == overdue
                    if isinstance(answer, Go):
                        served.append(head)
