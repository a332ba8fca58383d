"""The fleet: what happens to workers when they come, go, die, hang, or find no room."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from pdplugins.hosts.dynamo.local.fleet import Fleet
from pdplugins.hosts.dynamo.local.metrics import FleetMetrics
from pdplugins.processes.process import Process
from pdplugins.runtime.roster import Life
from pdplugins.types import Role

GPUS = {Role.PREFILL: 1, Role.DECODE: 2}


class FakeProcess:
    """A process that does what the test says."""

    def __init__(self, role: Role, name: str, on_exit: Callable[[Any], None]) -> None:
        self.role = role
        self.name = name
        self.pid = 1
        self.log = Path("worker.log")
        self.fate = "exited"
        self.terminated = False
        self.killed = False
        self._on_exit = on_exit

    def terminate(self) -> None:
        self.terminated = True

    def kill(self) -> None:
        self.killed = True

    def last_words(self) -> str:
        return "out of cheese"

    def end(self) -> None:
        self._on_exit(self)


class World:
    """A fleet, the machine it runs on, and Dynamo's discovery, all in the test's hands."""

    def __init__(self, gpu_budget: int = 8) -> None:
        self.now_s = 0.0
        self.refuse = False
        self.running: list[FakeProcess] = []
        self.registered: dict[str, str] = {}
        self.removed: list[str] = []
        self.registry = CollectorRegistry()
        self.fleet = Fleet(
            cast(Callable[..., Process], self.launch),
            self,
            gpus=GPUS,
            gpu_budget=gpu_budget,
            metrics=FleetMetrics(self.registry),
            clock=lambda: self.now_s,
        )

    def launch(self, role: Role, name: str, on_exit: Callable[[Any], None]) -> FakeProcess:
        if self.refuse:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.running.append(FakeProcess(role, name, on_exit))
        return self.running[-1]

    def serving(self) -> dict[str, str]:
        return dict(self.registered)

    def remove(self, instance: str) -> None:
        self.removed.append(instance)
        self.registered = {name: i for name, i in self.registered.items() if i != instance}

    def register_all(self) -> None:
        self.registered.update({p.name: f"id-{p.name}" for p in self.running})
        self.fleet.step()

    def end(self, name: str) -> None:
        process = next(p for p in self.running if p.name == name)
        self.running.remove(process)
        process.end()

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.fleet.step()

    def names(self) -> list[str]:
        return [p.name for p in self.running]

    def events(self, event: str, role: str = "prefill") -> float:
        labels = {"role": role, "event": event}
        return self.registry.get_sample_value("pdplugins_local_worker_events_total", labels) or 0.0


@pytest.fixture
def world() -> World:
    world = World()
    world.fleet.want(Role.PREFILL, 2)
    world.fleet.want(Role.DECODE, 1)
    return world


def test_a_worker_is_ready_once_it_is_registered(world: World) -> None:
    """Running is not serving."""
    assert world.fleet.count(Role.PREFILL, Life.STARTING) == 2
    assert not world.fleet.settled
    world.register_all()
    assert world.fleet.count(Role.PREFILL, Life.READY) == 2
    assert world.fleet.settled


def test_a_worker_that_serves_and_then_hangs_is_killed_and_replaced(world: World) -> None:
    """It runs, but its registration is gone, and stays away for a while."""
    world.register_all()
    hung = world.running[0]
    instance = world.registered.pop("prefill-1")
    world.pass_time(4)
    world.registered["prefill-1"] = instance
    world.pass_time(4)
    del world.registered["prefill-1"]
    world.pass_time(4)
    assert not hung.killed
    world.pass_time(2)
    assert (hung.killed, world.events("hung")) == (True, 1)
    world.pass_time(2)
    assert world.events("hung") == 1
    world.end("prefill-1")
    assert world.names() == ["prefill-2", "decode-1", "prefill-3"]
    assert world.events("died") == 0


def test_a_worker_that_was_told_to_stop_may_take_its_registration_back(world: World) -> None:
    world.register_all()
    world.fleet.want(Role.PREFILL, 1)
    world.registered.pop("prefill-2")
    world.pass_time(60)
    assert [process.killed for process in world.running] == [False] * 3


def test_a_worker_that_is_never_ready_is_given_up_and_tried_again(world: World) -> None:
    """It is killed, counted and replaced after a pause that grows; those that serve are left alone."""
    world.registered = {"prefill-1": "a", "decode-1": "b"}
    world.pass_time(61)
    hung = world.running[1]
    assert (hung.name, hung.killed) == ("prefill-2", True)
    assert world.events("never_ready") == 1
    world.end("prefill-2")
    assert world.names() == ["prefill-1", "decode-1"]
    assert world.events("died") == 0
    world.pass_time(1.1)
    assert world.names() == ["prefill-1", "decode-1", "prefill-3"]
    world.pass_time(61)
    world.end("prefill-3")
    world.pass_time(1.1)
    assert "prefill-4" not in world.names()
    world.pass_time(1)
    assert "prefill-4" in world.names()
    assert not any(p.killed or p.terminated for p in world.running)


def test_a_machine_that_refuses_processes_keeps_what_it_has(world: World) -> None:
    """A failed start is counted and tried again later; serving goes on, and nothing raises."""
    world.register_all()
    world.refuse = True
    world.fleet.want(Role.PREFILL, 4)
    assert world.fleet.count(Role.PREFILL, Life.READY) == 2
    assert world.events("not_started") == 1
    world.pass_time(0.5)
    assert world.events("not_started") == 1
    world.refuse = False
    world.pass_time(0.6)
    assert world.fleet.count(Role.PREFILL, Life.STARTING) == 2


def test_a_full_machine_keeps_the_last_workers_and_says_so_once(world: World) -> None:
    """Above the GPU budget nothing starts until something has ended, also not while it drains."""
    world.fleet.want(Role.PREFILL, 4)
    world.fleet.want(Role.DECODE, 2)
    world.register_all()
    assert world.fleet.gpus_held == 8
    world.fleet.want(Role.DECODE, 3)
    world.pass_time(1)
    assert world.events("no_gpu", "decode") == 1
    world.fleet.want(Role.PREFILL, 2)
    world.pass_time(1)
    assert world.fleet.count(Role.DECODE, Life.STARTING) == 0
    for name in ("prefill-3", "prefill-4"):
        world.end(name)
    assert world.fleet.count(Role.DECODE, Life.STARTING) == 1
    assert world.fleet.gpus_held == 8


def test_a_dead_worker_is_replaced_at_once_and_gets_no_more_requests(world: World) -> None:
    """Its registration goes before anybody is sent to a closed port."""
    world.register_all()
    world.end("decode-1")
    assert world.removed == ["id-decode-1"]
    assert world.names() == ["prefill-1", "prefill-2", "decode-2"]
    assert world.events("died", "decode") == 1


def test_a_worker_that_dies_before_it_serves_is_not_restarted_in_a_rush(world: World) -> None:
    """A worker that cannot start would otherwise be started hundreds of times per second."""
    for _ in range(20):
        for process in [p for p in world.running if p.role is Role.DECODE]:
            world.end(process.name)
        world.pass_time(0.2)
    assert world.events("started", "decode") <= 4


def test_scaling_down_drains_the_youngest_and_spares_the_rest(world: World) -> None:
    """Workers that do not serve yet go first, then the youngest; they are asked, not killed."""
    world.register_all()
    world.pass_time(10)
    world.fleet.want(Role.PREFILL, 3)
    world.fleet.want(Role.PREFILL, 1)
    assert [(p.name, p.terminated) for p in world.running if p.role is Role.PREFILL] == [
        ("prefill-1", False),
        ("prefill-2", True),
        ("prefill-3", True),
    ]
    assert world.fleet.count(Role.PREFILL, Life.DRAINING) == 2
    world.end("prefill-2")
    assert world.events("stopped") == 1
    assert world.events("died") == 0


def test_a_drain_that_never_ends_is_ended(world: World) -> None:
    """After its time limit a draining worker is killed; its requests go on elsewhere."""
    world.register_all()
    world.fleet.want(Role.PREFILL, 1)
    world.pass_time(299)
    assert not world.running[1].killed
    world.pass_time(2)
    assert world.running[1].killed
    assert world.events("not_drained") == 1


def test_a_replacement_does_not_wait_behind_a_worker_that_does_not_fit(world: World) -> None:
    """A role keeps its workers while the other one waits for GPUs that take long to come free."""
    world.fleet.want(Role.PREFILL, 4)
    world.fleet.want(Role.DECODE, 2)
    world.register_all()
    world.fleet.want(Role.PREFILL, 2)
    world.fleet.want(Role.DECODE, 3)
    world.end("prefill-1")
    assert world.fleet.count(Role.PREFILL, Life.STARTING) == 1
    world.end("prefill-3")
    world.end("prefill-4")
    assert world.fleet.count(Role.DECODE, Life.STARTING) == 1


def test_at_least_one_worker_of_each_role_is_always_wanted(world: World) -> None:
    """Whatever a planner says, no pool goes to zero."""
    world.fleet.want(Role.PREFILL, 0)
    assert world.fleet.wanted(Role.PREFILL) == 1


def test_gpu_hours_run_from_start_to_end_of_each_process(world: World) -> None:
    """Two prefill workers of 1 GPU and one decode worker of 2 for half an hour, draining included."""
    world.register_all()
    world.pass_time(1800)
    assert world.fleet.gpu_hours == pytest.approx(2.0)
    world.fleet.want(Role.PREFILL, 1)
    world.pass_time(360)
    assert world.fleet.gpu_hours == pytest.approx(2.4)
    world.end("prefill-2")
    world.pass_time(3600)
    assert world.fleet.gpu_hours == pytest.approx(2.4 + 3.0)


def test_a_closed_fleet_starts_nothing(world: World) -> None:
    """While everything stops, an ended worker is not replaced."""
    world.register_all()
    assert len(world.fleet.close()) == 3
    world.end("decode-1")
    world.fleet.step()
    assert "decode-2" not in world.names()


ACTIONS = st.one_of(
    st.tuples(st.just("want"), st.sampled_from(Role), st.integers(-1, 9)),
    st.tuples(st.just("end"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("register"), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.floats(0, 400), st.just(0)),
    st.tuples(st.just("refuse"), st.booleans(), st.just(0)),
)


@pytest.mark.moderate
@given(st.lists(ACTIONS, max_size=40), st.integers(3, 12))
@settings(max_examples=150)
def test_whatever_happens_the_gpu_budget_holds(actions: list[tuple[str, Any, int]], budget: int) -> None:
    """No order of wishes, deaths, delays and refusals starts more than fits, or raises."""
    world = World(budget)
    for action, what, count in actions:
        if action == "want":
            world.fleet.want(what, count)
        elif action == "end" and world.running:
            world.end(world.names()[what % len(world.running)])
        elif action == "register":
            world.register_all()
        elif action == "wait":
            world.pass_time(what)
        elif action == "refuse":
            world.refuse = what
        assert world.fleet.gpus_held == sum(GPUS[p.role] for p in world.running) <= budget
        for role in Role:
            active = world.fleet.count(role, Life.STARTING) + world.fleet.count(role, Life.READY)
            assert active <= max(world.fleet.wanted(role), 0)


@pytest.mark.parametrize("refuse", [True, False])
def test_hundreds_of_failed_starts_end_nothing(world: World, refuse: bool) -> None:
    """Half a day of them: the pause must not double for ever, as a float does not."""
    world.register_all()
    world.refuse = refuse
    world.fleet.want(Role.PREFILL, 3)
    for _ in range(1100):
        world.pass_time(31.0)
        if not refuse:
            world.end(world.names()[-1])
    assert world.fleet.count(Role.PREFILL, Life.READY) == 2
    world.refuse = False
    world.pass_time(31.0)
    world.register_all()
    assert world.fleet.count(Role.PREFILL, Life.READY) == 3
