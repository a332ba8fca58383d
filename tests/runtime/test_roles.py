"""The role authority: who may change what, and what happens on conflict."""

from __future__ import annotations

import pytest

from pdplugins.runtime.roster import Life
from pdplugins.types import Capabilities, RoleChange, Stage
from tests.runtime.hostile import Panic
from tests.runtime.role_host import D, Host, P

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


@pytest.mark.parametrize("kind", [ValueError, Panic])
def test_a_listener_that_raises_stops_nothing(kind: type[BaseException]) -> None:
    class Broken:
        def on_role_change(self, change: RoleChange) -> None:
            raise kind(change.worker)

    host, faults = Host(label=True), list[BaseException]()
    host.roles.tell(Broken(), faults.append)
    host.roles.tell(host, host.fault)  # told after it
    host.begin(2, 1)
    host.move("p1", D)
    assert host.roles_of()["p1"] is D
    assert len(host.heard) == 4
    assert [str(error) for error in faults] == ["p1", "p1"]
