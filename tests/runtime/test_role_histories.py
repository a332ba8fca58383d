"""The role authority: what holds whatever happens to workers, and whatever is proposed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pdplugins.runtime.roster import Life
from pdplugins.types import Role, RoleChange, RoleMove, Stage
from tests.runtime.role_host import Host

ENDS = {Stage.DONE, Stage.ROLLED_BACK, Stage.LOST}


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
