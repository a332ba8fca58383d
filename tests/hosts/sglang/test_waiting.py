"""A thread that polls for transfers looks less often the longer it waits, and a scheduler sees a request at once."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.hosts.sglang import nixl, waiting
from pdplugins.hosts.sglang.waiting import LONGEST_S, SHARE, Clock
from tests.hosts.sglang.small_scheduler import Scheduler, build, decode, host, local

__all__ = ["host"]

LEAST_S = 0.0002
LOOK_S = 0.0005
"""What a look at all queues takes."""


class World:
    """Time that pauses move on, and a socket: on it a request comes at `comes_s`."""

    def __init__(self, comes_s: float = float("inf")) -> None:
        self.now_s = 0.0
        self.comes_s = comes_s
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds

    def poll(self, milliseconds: int) -> None:
        self.sleep(max(min(milliseconds / 1000, self.comes_s - self.now_s), 0))


def wait(world: World, clock: Clock, until_s: float) -> None:
    """Look again and again."""
    while world.now_s < until_s:
        world.now_s += LOOK_S
        clock.sleep_until_request(world)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(waiting, "time", world)
    return world


@pytest.fixture
def clock(world: World) -> Clock:
    return Clock(LEAST_S, world.monotonic)


def test_a_long_wait_takes_few_looks(world: World, clock: Clock) -> None:
    """With the shortest pause alone they would take five sevenths of a core."""
    wait(world, clock, 10)
    assert len(world.pauses) * LOOK_S < 10 / 10
    assert world.pauses[-1] == LONGEST_S


@given(st.lists(st.floats(0, 20), min_size=2, max_size=9).map(sorted), st.sampled_from([0.0001, LEAST_S, 0.002, 0.05]))
def test_what_comes_is_seen_late_by_a_small_share_of_the_wait_at_most(looks_s: list[float], least_s: float) -> None:
    world = World()
    clock = Clock(least_s, world.monotonic)
    for world.now_s in looks_s:
        pause_s = clock.due_s()
        waited_s = world.now_s - looks_s[0]
        assert least_s <= pause_s <= max(least_s, SHARE * waited_s)
        assert pause_s <= max(least_s, LONGEST_S)


def test_a_request_ends_a_pause(world: World, clock: Clock) -> None:
    wait(world, clock, 2)
    world.comes_s = world.now_s + 0.003
    clock.sleep_until_request(world)
    assert world.now_s == world.comes_s


def test_a_thread_that_has_had_something_to_do_looks_often_again(world: World, clock: Clock) -> None:
    wait(world, clock, 10)
    clock.begin()
    assert clock.due_s() == LEAST_S


def test_each_thread_has_a_wait_of_its_own(world: World, clock: Clock) -> None:
    wait(world, clock, 10)
    due_s: list[float] = []
    other = threading.Thread(target=lambda: due_s.append(clock.due_s()))
    other.start()
    other.join()
    assert (due_s[0], clock.due_s()) == (LEAST_S, LONGEST_S)


def test_a_transfer_thread_begins_anew_with_each_chunk(world: World, clock: Clock) -> None:
    for _ in range(2):
        assert nixl.next_chunk(clock)(lambda queue: queue.pop(), ["chunk"]) == "chunk"
        clock.sleep(0)
        assert world.pauses[-1] == LEAST_S
        while world.pauses[-1] < LONGEST_S:
            clock.sleep(0)


def test_without_a_pause_nothing_pauses(world: World) -> None:
    clock = Clock(0, world.monotonic)
    clock.sleep_until_request(world)
    world.now_s += 10
    clock.sleep_until_request(world)
    clock.sleep(0)
    assert world.pauses == [0, 0, 0]


@pytest.mark.parametrize("what", ["a request", "a step"])
def test_the_wait_of_a_scheduler_ends_with(what: str, world: World, clock: Clock) -> None:
    scheduler: Any = build()
    scheduler.dual._clock = clock
    scheduler.ipc_channels = SimpleNamespace(recv_from_tokenizer=world)

    def look() -> None:
        assert scheduler.step() is None
        assert scheduler.dual.wait(lambda _: "SGLang's own", scheduler) == "SGLang's own"

    look()
    while world.pauses[-1] < LONGEST_S:
        look()
    if what == "a request":
        scheduler.dual.receive(lambda *_: None, scheduler, decode("d"))
    else:
        scheduler.dual.enqueue(Scheduler.enqueue, scheduler, local("l"))
        assert scheduler.step() is not None
        scheduler.last_batch = None  # it has ended
    look()
    assert world.pauses[-1] == LEAST_S
