"""In a deadlock over KV cache, reservations are given up, the youngest first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.hosts.sglang.deadlock import REASON, SHARE, DeadlockWatch
from pdplugins.hosts.sglang.roles import EngineRole
from pdplugins.hosts.sglang.scope import Scopes

LIMIT_S = 10.0


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Reservation:
    """One for a prompt of so many tokens, which another server prefills."""

    rid: str
    tokens: int
    reasons: list[str] = field(default_factory=list)
    aborted: bool = False

    def __post_init__(self) -> None:
        self.req = SimpleNamespace(rid=self.rid, seqlen=self.tokens)
        manager = SimpleNamespace(record_failure=lambda room, why: self.reasons.append(why))
        self.kv_receiver = SimpleNamespace(abort=self.abort, kv_mgr=manager, bootstrap_room=7)

    def abort(self) -> None:
        self.aborted = True


def request(tokens: int) -> Any:
    return SimpleNamespace(seqlen=tokens, prefix_len=0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scheduler() -> Any:
    return SimpleNamespace(
        waiting_queue=[],
        chunked_req=None,
        disagg_decode_prealloc_queue=SimpleNamespace(
            retracted_queue=[], kv_manager=SimpleNamespace(waiting_timeout=LIMIT_S / SHARE)
        ),
        disagg_decode_transfer_queue=SimpleNamespace(
            queue=[Reservation("old", 200), Reservation("young", 200)], pop_transferred=lambda: []
        ),
    )


def look(scheduler: Any, clock: Clock) -> Callable[..., list[str]]:
    """Look at one step, some seconds later; return whose reservations were given up so far."""
    scopes = Scopes(scheduler, {role: {"waiting_queue": []} for role in EngineRole}, EngineRole.DECODE)
    watch = DeadlockWatch(clock)

    def step(after_s: float, *, ran: bool = False, **waiting: int) -> list[str]:
        clock.now_s += after_s
        for role in (EngineRole.LOCAL, EngineRole.PREFILL):
            tokens = waiting.get(role.value)
            scopes._parked[role]["waiting_queue"] = [] if tokens is None else [request(tokens)]
        watch.look(scheduler, scopes, ran=ran)
        return [one.rid for one in scheduler.disagg_decode_transfer_queue.queue if one.aborted]

    return step


@pytest.mark.parametrize("role", ["local", "prefill"])
def test_the_youngest_are_given_up_until_the_prompt_fits(scheduler: Any, clock: Clock, role: str) -> None:
    step = look(scheduler, clock)
    assert step(0, **{role: 150}) == []
    assert step(LIMIT_S - 1, **{role: 150}) == []
    assert step(1, **{role: 150}) == ["young"]
    assert scheduler.disagg_decode_transfer_queue.queue[1].reasons == [REASON]


def test_a_long_prompt_takes_several_reservations(scheduler: Any, clock: Clock) -> None:
    step = look(scheduler, clock)
    step(0, prefill=201)
    assert step(LIMIT_S, prefill=201) == ["old", "young"]


def test_a_prompt_in_the_middle_of_its_chunks_waits_too(scheduler: Any, clock: Clock) -> None:
    scheduler.chunked_req = request(100)
    step = look(scheduler, clock)
    step(0)
    assert step(LIMIT_S) == ["young"]


def test_an_engine_that_runs_is_in_no_deadlock(scheduler: Any, clock: Clock) -> None:
    step = look(scheduler, clock)
    for _ in range(5):
        step(0, prefill=150)
        assert step(LIMIT_S - 1, prefill=150) == []
        step(0, prefill=150, ran=True)


def test_a_server_that_only_waits_for_others_gives_nothing_up(scheduler: Any, clock: Clock) -> None:
    step = look(scheduler, clock)
    step(0)
    assert step(10 * LIMIT_S) == []


def test_arrived_transfers_run_though_a_retracted_request_waits_for_kv_cache(scheduler: Any, clock: Clock) -> None:
    """SGLang does not look at them until every retracted request is back."""
    arrived = request(100)
    scheduler.disagg_decode_prealloc_queue.retracted_queue = [request(300)]
    scheduler.disagg_decode_transfer_queue.pop_transferred = lambda: [arrived]
    look(scheduler, clock)(0)
    assert scheduler.waiting_queue == [arrived]
