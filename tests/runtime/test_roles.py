"""The role authority: who may change what, what happens on conflict, and what holds whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pdplugins.runtime.roles import RoleAuthority
from pdplugins.runtime.roster import Life, Roster
from pdplugins.types import Capabilities, Role, RoleChange, RoleMove, ScalePlan, Stage

P, D = Role.PREFILL, Role.DECODE
ENDS = {Stage.DONE, Stage.ROLLED_BACK, Stage.LOST}


class Host:
    """Workers that do what a test says, and the books that a host keeps by itself."""

    def __init__(
        self,
        *,
        budget: int = 8,
        gpus: tuple[int, int] = (1, 1),
        any_role: bool = False,
        fixed: bool = False,
        **how: Any,
    ) -> None:
        self.roster = Roster(dict(zip((P, D), gpus, strict=True)), budget, any_role=any_role)
        self.roles = RoleAuthority(self, self.roster, changer=None if fixed else self, **how)
        self.refuses = False
        """Whether the machine starts no worker."""
        self.at_once = False
        """Whether a drain, a change and a stop are over before the call returns."""
        self.running: dict[str, tuple[Role, int]] = {}
        self.serving: set[str] = set()
        self.overdue_: list[str] = []
        self.heard: list[RoleChange] = []
        self.roles.tell(self, self.fault)

    def on_role_change(self, change: RoleChange) -> None:
        self.heard.append(change)

    def fault(self, error: Exception) -> None:
        raise error

    def begin(self, prefill: int, decode: int, capabilities: Capabilities | None = None) -> None:
        """Have workers that serve, without a plan."""
        for role, count in ((P, prefill), (D, decode)):
            for _ in range(count):
                self.start(role)
        for worker in self.running:
            if capabilities is not None:
                self.roster.members[worker].capabilities = capabilities
            self.serve(worker)

    def serve(self, worker: str) -> None:
        self.serving.add(worker)
        self.roles.ready(worker)

    def end(self, worker: str, *, replace: bool = False) -> None:
        del self.running[worker]
        self.serving.discard(worker)
        self.roles.gone(worker, replace=replace)

    # what the authority asks for

    def start(self, role: Role) -> bool:
        if self.refuses:
            return False
        name = f"{role[0]}{len(self.names)}"
        self.names.append(name)
        self.running[name] = role, self.roster.gpus[role]
        self.roles.add(name, role, self.roster.gpus[role])
        return True

    def stop(self, worker: str) -> None:
        if self.at_once:
            self.end(worker)

    def drain(self, worker: str) -> None:
        self.serving.discard(worker)
        if self.at_once:
            self.roles.drained(worker)

    def overdue(self, worker: str) -> None:
        assert self.roster.members[worker].life is Life.DRAINING
        self.overdue_.append(worker)

    def work(self, worker: str) -> float:
        return 0.0

    def relabel(self, worker: str, role: Role) -> None:
        self.running[worker] = role, self.running[worker][1]

    def change(self, worker: str, role: Role) -> None:
        self.relabel(worker, role)
        if self.at_once:
            self.serve(worker)

    def undrain(self, worker: str) -> None:
        self.serving.add(worker)
        self.relabel(worker, self.roster.members[worker].role)

    # what tests ask

    @property
    def names(self) -> list[str]:
        """Names of all workers so far."""
        return self.__dict__.setdefault("_names", [])

    def stages(self) -> list[Stage]:
        return [change.stage for change in self.heard]

    def roles_of(self) -> dict[str, Role]:
        return {name: member.role for name, member in self.roster.members.items()}

    def plan(self, prefill: int, decode: int, now_s: float = 0.0) -> bool:
        return self.roles.propose_pools(ScalePlan(prefill, decode, "plan"), "planner", now_s)

    def move(self, worker: str, role: Role, by: str = "power", now_s: float = 0.0) -> None:
        self.roles.propose_moves([RoleMove(worker, role, "hot")], by, now_s)


# --- a change of role ------------------------------------------------------------------------------------------------


def test_a_worker_drains_changes_and_serves_in_its_new_role() -> None:
    host = Host()
    host.begin(2, 1)
    host.move("p1", D)
    assert host.serving == {"p0", "d2"}
    assert host.roster.pool(P).draining == 1
    host.roles.drained("p1")
    assert (host.roster.pool(P).coming, host.roster.pool(D).starting) == (1, 1)
    host.serve("p1")
    assert host.roster.pool(D).ready == 2
    assert host.heard == [RoleChange("p1", P, D, stage, "power", "hot") for stage in (Stage.BEGUN, Stage.DONE)]


def test_a_label_changes_at_once() -> None:
    host = Host(label=True)
    host.begin(2, 1)
    host.move("p1", D, "router")
    assert host.serving == {"p0", "p1", "d2"}
    assert host.running["p1"][0] is D
    assert host.stages() == [Stage.BEGUN, Stage.DONE]


def test_a_worker_that_does_not_drain_in_time_has_its_old_role_again() -> None:
    host = Host(drain_s=30)
    host.begin(2, 1)
    host.move("p1", D, now_s=10)
    host.roles.tick(39.9)
    assert host.serving == {"p0", "d2"}
    host.roles.tick(40.0)
    assert host.serving == {"p0", "p1", "d2"}
    assert host.heard[-1] == RoleChange("p1", P, D, Stage.ROLLED_BACK, "power", "p1 did not drain within 30 s")
    host.roles.drained("p1")  # too late
    host.roles.tick(100.0)
    assert host.roster.members["p1"].life is Life.READY
    assert host.stages() == [Stage.BEGUN, Stage.ROLLED_BACK]


def test_a_worker_that_has_drained_in_time_is_not_rolled_back() -> None:
    host = Host(drain_s=30)
    host.begin(2, 1)
    host.move("p1", D)
    host.roles.drained("p1")
    host.roles.tick(31)
    host.serve("p1")
    assert host.stages() == [Stage.BEGUN, Stage.DONE]


def test_a_change_that_fails_is_rolled_back() -> None:
    host = Host()
    host.begin(2, 1)
    host.move("p1", D)
    host.roles.drained("p1")
    host.roles.failed("p1", "/pd_role_switch: 500")
    assert (host.serving, host.running["p1"][0]) == ({"p0", "p1", "d2"}, P)
    assert (host.heard[-1].stage, host.heard[-1].reason) == (Stage.ROLLED_BACK, "/pd_role_switch: 500")


def test_a_deadline_ends_with_the_change_that_it_was_for() -> None:
    host = Host(drain_s=30)
    host.begin(2, 1)
    host.move("p1", D)
    host.roles.failed("p1", "it would not")
    host.roles.tick(31)
    assert (host.overdue_, host.stages()) == ([], [Stage.BEGUN, Stage.ROLLED_BACK])


def test_a_worker_that_changes_and_is_no_longer_wanted_is_lost_to_its_change() -> None:
    host = Host()
    host.begin(2, 1)
    host.move("p1", D)
    host.roles.drained("p1")
    host.plan(1, 1)
    assert host.stages() == [Stage.BEGUN, Stage.LOST]
    assert host.serving == {"p0", "d2"}


def test_a_worker_that_is_to_go_and_does_not_drain_is_left_to_the_host() -> None:
    host = Host(drain_s=30)
    host.begin(2, 1)
    host.plan(1, 1)
    for now_s in (29, 31, 62):
        host.roles.tick(now_s)
    assert host.overdue_ == ["p0"]
    assert host.roster.members["p0"].life is Life.DRAINING


def test_a_worker_that_dies_in_a_change_is_lost_to_it() -> None:
    host = Host()
    host.begin(2, 1)
    host.move("p1", D)
    host.end("p1")
    assert host.stages() == [Stage.BEGUN, Stage.LOST]


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [True, False])
def test_the_last_worker_of_a_phase_keeps_its_role(label: bool) -> None:
    host = Host(label=label)
    host.begin(1, 2)
    host.move("p0", D)
    assert host.roles_of()["p0"] is P
    assert host.stages() == [Stage.REFUSED]
    assert host.heard[0].before is host.heard[0].role.PREFILL


@pytest.mark.parametrize("stage", ["starting", "draining", "changing"])
def test_a_worker_in_transition_takes_no_move(stage: str) -> None:
    host = Host()
    host.begin(2, 2)
    worker = "p1"
    if stage == "starting":
        worker = "p4"
        host.start(P)
    else:
        host.move(worker, D)
        if stage == "changing":
            host.roles.drained(worker)
    host.heard.clear()
    host.move(worker, D if stage == "starting" else P)
    assert [(change.stage, change.reason) for change in host.heard] == [(Stage.REFUSED, f"{worker} is {stage}")]


def test_a_phase_that_a_worker_cannot_do_is_no_role_for_it() -> None:
    host = Host(label=True)
    host.begin(2, 1, Capabilities(phases=frozenset({P})))
    host.move("p1", D)
    assert host.stages() == [Stage.REFUSED]


def test_workers_with_fixed_roles_refuse_every_move_and_are_scaled_all_the_same() -> None:
    host = Host(fixed=True)
    host.begin(2, 1)
    host.move("p1", D)
    assert host.stages() == [Stage.REFUSED]
    host.plan(1, 2)
    assert [m.life for m in host.roster.members.values()] == [Life.DRAINING, Life.READY, Life.READY, Life.STARTING]
    assert set(host.stages()) == {Stage.REFUSED}


def test_nobody_drains_for_a_router() -> None:
    """It places by its own labels at once. Where roles are no labels its moves are counted, and no more."""
    host = Host()
    host.begin(2, 2)
    host.move("p1", D, "router")
    assert (host.heard, host.roles.counts) == ([], {("router", Stage.REFUSED): 1})
    assert host.roster.members["p1"].life is Life.READY


def test_a_role_that_a_worker_has_and_a_worker_that_nobody_knows_change_nothing() -> None:
    host = Host()
    host.begin(1, 1)
    host.move("p0", P)
    host.move("p9", D)
    assert host.heard == []
    assert host.roles.counts == {("power", Stage.REFUSED): 1}


# --- zero workers of a role ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [True, False])
def test_a_role_may_have_no_worker_where_the_others_do_its_phase(label: bool) -> None:
    host = Host(label=label, any_role=True)
    host.at_once = True
    host.begin(1, 1)
    host.plan(0, 2)
    assert list(host.roles_of().values()) == [D, D]
    host.plan(0, 1)
    host.plan(0, 0)
    assert len(host.serving) == 1  # somebody has to do both phases


def test_the_last_worker_that_can_do_a_phase_stays_whatever_its_role() -> None:
    host = Host(any_role=True, label=True)
    host.begin(1, 2)
    for worker in ("d1", "d2"):
        host.roster.members[worker].capabilities = Capabilities(phases=frozenset({D}))
    host.plan(0, 3)
    host.plan(0, 1)
    assert (host.serving, host.roles_of()["p0"]) == ({"p0"}, D)
    assert host.plan(0, 0) is False


# --- pools and the budget --------------------------------------------------------------------------------------------


def test_a_plan_moves_workers_first_and_starts_and_stops_the_rest() -> None:
    host = Host()
    host.begin(4, 1)
    host.plan(1, 3)
    lives = [member.life for member in host.roster.members.values()]
    assert lives == [Life.DRAINING, Life.DRAINING, Life.DRAINING, Life.READY, Life.READY]
    assert [member.becomes for member in host.roster.members.values()] == [D, D, None, None, None]


def test_a_plan_that_is_repeated_while_a_worker_drains_starts_no_other_one() -> None:
    host = Host()
    host.begin(2, 4)
    for _ in range(3):
        host.plan(3, 3)
    assert len(host.running) == 6
    assert [member.becomes for member in host.roster.members.values()].count(P) == 1


def test_workers_of_another_size_are_stopped_and_started_within_the_budget() -> None:
    host = Host(budget=5, gpus=(1, 2))
    host.begin(3, 1)
    host.plan(1, 2)
    assert host.roster.waiting == [D]
    host.end("p0")
    assert host.roster.waiting == [D]
    host.end("p1")
    assert (host.roster.waiting, host.roster.gpus_held) == ([], 5)


def test_who_was_wanted_first_starts_first_and_is_given_up_last() -> None:
    host = Host(budget=2)
    host.begin(1, 1)
    host.plan(2, 2)
    assert host.roster.waiting == [P, D]
    host.plan(2, 1)
    assert host.roster.waiting == [P]
    assert host.serving == {"p0", "d1"}


def test_a_replacement_goes_before_what_was_wanted_earlier() -> None:
    host = Host(budget=4, gpus=(1, 2))
    host.begin(2, 1)
    host.plan(2, 2)
    host.end("p0", replace=True)
    assert host.roster.waiting == [D]
    assert host.roster.pool(P).starting == 1


def test_a_start_that_the_machine_refuses_is_tried_on_the_next_tick() -> None:
    host = Host()
    host.refuses = True
    host.plan(1, 1)
    assert (host.running, host.roster.waiting) == ({}, [P, D])
    host.refuses = False
    host.roles.tick(1.0)
    assert [role for role, _ in host.running.values()] == [P, D]


def test_a_listener_that_raises_stops_nothing() -> None:
    class Broken:
        def on_role_change(self, change: RoleChange) -> None:
            raise ValueError(change.worker)

    host, faults = Host(label=True), list[Exception]()
    host.roles.tell(Broken(), faults.append)
    host.roles.tell(host, host.fault)  # told after it
    host.begin(2, 1)
    host.move("p1", D)
    assert host.roles_of()["p1"] is D
    assert len(host.heard) == 4
    assert [str(error) for error in faults] == ["p1", "p1"]


# --- whatever happens ------------------------------------------------------------------------------------------------


class AnyHistory(RuleBasedStateMachine):
    """Proposals of all three sources, events and failures of workers, in any order and at any time."""

    @initialize(
        pools=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        gpus=st.sampled_from([(1, 1), (1, 2), (2, 1)]),
        spare=st.integers(0, 4),
        any_role=st.booleans(),
        label=st.booleans(),
        fixed=st.booleans(),
        drain_s=st.sampled_from([None, 5.0]),
        at_once=st.booleans(),
    )
    def begin(self, pools: tuple[int, int], gpus: tuple[int, int], spare: int, at_once: bool, **how: Any) -> None:
        budget = sum(count * size for count, size in zip(pools, gpus, strict=True)) + spare
        self.host = Host(budget=budget, gpus=gpus, **how)
        self.host.begin(*pools)
        self.host.at_once = at_once
        self.now_s = 0.0
        self.deaths = False
        """Whether workers that a phase needs may have died."""
        self.drain_s: float | None = how["drain_s"]
        self.begun: dict[str, float] = {}

    def members(self, *lives: Life) -> Iterator[str]:
        return (name for name, member in self.host.roster.members.items() if member.life in lives)

    def pick(self, index: int, *lives: Life) -> str | None:
        names = list(self.members(*lives))
        return names[index % len(names)] if names else None

    @rule(prefill=st.integers(-1, 5), decode=st.integers(-1, 5))
    def planner(self, prefill: int, decode: int) -> None:
        self.host.plan(prefill, decode, self.now_s)

    @rule(
        by=st.sampled_from(["planner", "router", "power"]),
        moves=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(Role)), max_size=4),
    )
    def proposes(self, by: str, moves: list[tuple[int, Role]]) -> None:
        names = [*self.host.names, "nobody"]
        wanted = [RoleMove(names[index % len(names)], role) for index, role in moves]
        self.host.roles.propose_moves(wanted, by, self.now_s)

    @rule(index=st.integers(0, 9))
    def serves(self, index: int) -> None:
        if (name := self.pick(index, Life.STARTING, Life.CHANGING)) is not None:
            self.host.serve(name)

    @rule(index=st.integers(0, 9))
    def drained(self, index: int) -> None:
        if (name := self.pick(index, *Life)) is not None:  # also one that does not drain: it is late news
            self.host.roles.drained(name)

    @rule(index=st.integers(0, 9))
    def change_fails(self, index: int) -> None:
        if (name := self.pick(index, *Life)) is not None:
            self.host.roles.failed(name, "it would not")

    @rule(index=st.integers(0, 9))
    def goes(self, index: int) -> None:
        if (name := self.pick(index, Life.DRAINING)) is not None:
            self.host.end(name)

    @rule(index=st.integers(0, 9), replace=st.booleans())
    def dies(self, index: int, replace: bool) -> None:
        if (name := self.pick(index, *Life)) is not None:
            self.deaths = True
            self.host.end(name, replace=replace)

    @rule(refuses=st.booleans())
    def machine(self, refuses: bool) -> None:
        self.host.refuses = refuses

    @rule(step_s=st.floats(0, 8))
    def time(self, step_s: float) -> None:
        self.now_s += step_s
        self.host.roles.tick(self.now_s)

    @precondition(lambda self: hasattr(self, "host"))
    @invariant()
    def the_budget_holds(self) -> None:
        host = self.host
        assert host.roster.gpus_held == sum(tp for _, tp in host.running.values()) <= host.roster.gpu_budget

    @precondition(lambda self: hasattr(self, "host") and not self.deaths)
    @invariant()
    def each_phase_has_a_worker(self) -> None:
        roster = self.host.roster
        ready = [member for member in roster.members.values() if member.life is Life.READY]
        assert all(any(roster.can_serve(member, phase, member.role) for member in ready) for phase in Role)

    @precondition(lambda self: hasattr(self, "host"))
    @invariant()
    def hosts_and_books_agree(self) -> None:
        host = self.host
        assert host.running.keys() == host.roster.members.keys()
        assert host.serving == set(self.members(Life.READY))
        for name, member in host.roster.members.items():
            assert host.running[name][0] is member.next_role

    @precondition(lambda self: hasattr(self, "host"))
    @invariant()
    def histories_are_consistent(self) -> None:
        """A worker has one change at a time; what begins ends once; and a role changes only as told."""
        under_way: dict[str, RoleChange] = {}
        roles: dict[str, Role] = {}
        for change in self.host.heard:
            roles.setdefault(change.worker, change.before)
            assert change.before is roles[change.worker]
            if change.stage is Stage.BEGUN:
                assert change.worker not in under_way
                assert change.role is not change.before
                under_way[change.worker] = change
            elif change.stage in ENDS:
                begun = under_way.pop(change.worker)
                assert (begun.role, begun.by) == (change.role, change.by)
                if change.stage is Stage.DONE:
                    roles[change.worker] = change.role
        members = self.host.roster.members
        assert under_way.keys() == {name for name, member in members.items() if member.becomes is not None}
        assert all(members[name].role is role for name, role in roles.items() if name in members)
        for name in under_way.keys() - self.begun.keys():
            self.begun[name] = self.now_s
        self.begun = {name: at_s for name, at_s in self.begun.items() if name in under_way}

    @precondition(lambda self: hasattr(self, "host"))
    @invariant()
    def no_drain_outlasts_its_deadline(self) -> None:
        if self.drain_s is not None:
            late = [name for name, at_s in self.begun.items() if self.now_s > at_s + self.drain_s]
            assert not set(late) & set(self.members(Life.DRAINING))

    def teardown(self) -> None:
        """Once every drain is over or too late, and every worker serves, no change is left under way."""
        if not hasattr(self, "host"):
            return
        host = self.host
        host.roles.tick(self.now_s + 10)
        for name in list(self.members(Life.DRAINING)):
            assert self.drain_s is None or host.roster.members[name].becomes is None
            host.roles.drained(name)
        for name in list(self.members(Life.CHANGING)):
            host.serve(name)
        self.histories_are_consistent()
        assert not self.begun


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
