"""The one authority over roles: planner, router and power controller propose, `RoleAuthority` applies.

It does no I/O and reads no clock. A host tells it what happens to its workers, passes the time, and does what it asks
for through `Actuator`. Every step is complete in the books before a host is called, so a host may call back at once.

Who wins when proposals conflict: the first. A worker in transition takes no other move. A pool plan counts what is
under way; it moves ready workers first, and starts and stops the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import ScalePlan
from pdplugins.contracts.roles import HearsRoles, RoleChange, RoleMove, Stage
from pdplugins.contracts.workers import ANYTHING, Capabilities, Role
from pdplugins.runtime.faults import STOPS
from pdplugins.runtime.roster import Life, Member, Roster

CLOCK_ERROR_S = 1e-9
"""Tolerance of a deadline: hosts count time in ticks of their own, and a timer may round down."""

OTHER = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


class Actuator(Protocol):
    """What a host does to its workers. It reports back with `RoleAuthority.add`, `ready`, `drained` and `gone`."""

    def start(self, role: Role) -> bool:
        """Start a worker and `add` it. False when the host cannot now: it is asked again on the next tick."""
        ...

    def stop(self, worker: str) -> None:
        """End a worker without work: it had not begun to serve, or it has drained. Report when it is `gone`."""
        ...

    def drain(self, worker: str) -> None:
        """Give a worker no new work. Report when it has `drained`, or is `gone` by itself."""
        ...

    def overdue(self, worker: str) -> None:
        """A worker that is to go has not drained within the deadline. Kill it, or wait on; this is told once."""
        ...

    def work(self, worker: str) -> float:
        """Return how much the worker has to do, in any unit. Of ready workers the one with the least goes first."""
        ...


class Changer(Protocol):
    """What a host needs besides `Actuator` when its workers can change their role."""

    def relabel(self, worker: str, role: Role) -> None:
        """Give a worker another role at once, as engines allow that serve both phases."""
        ...

    def change(self, worker: str, role: Role) -> None:
        """Change the role of a worker that has drained. Report when it is `ready`, or that it `failed`."""
        ...

    def undrain(self, worker: str) -> None:
        """Give a worker new work of its old role again: the change was rolled back."""
        ...


class RoleAuthority:
    """Applies proposals to the workers of one host. Not for use by two threads at once.

    :param changer: changes roles; None where workers keep the role that they were started with.
    :param label: a role is a label that changes at once; else a worker drains before it changes.
    :param drain_s: seconds within which a worker must drain; None for as long as it takes. A change of role is then
        rolled back; what becomes of a worker that is to go is the host's choice.
    """

    def __init__(
        self,
        actuator: Actuator,
        roster: Roster,
        *,
        changer: Changer | None = None,
        label: bool = False,
        drain_s: float | None = None,
    ) -> None:
        self._actuator = actuator
        self._changer = changer
        self._label = label
        self._drain_s = drain_s
        self._listeners: list[tuple[HearsRoles, Callable[[BaseException], None]]] = []
        self.roster = roster
        self.counts: Counter[tuple[str, Stage]] = Counter()
        """Number of role changes, by proposer and by the stage that they reached."""

    def tell(self, listener: HearsRoles, fault: Callable[[BaseException], None]) -> None:
        """Tell `listener` of every change from now on. What it raises goes to `fault`."""
        self._listeners.append((listener, fault))

    # --- proposals -------------------------------------------------------------------------------------------------

    def propose_pools(self, plan: ScalePlan, by: str, now_s: float) -> bool:
        """Bring the pools to `plan`: give up starts, move ready workers, stop and start the rest.

        The last worker that can serve a phase stays. Returns whether anything had to change and could.
        """
        wanted = {Role.PREFILL: plan.prefill, Role.DECODE: plan.decode}
        more = {role: max(count, 0) - self.roster.expected(role) for role, count in wanted.items()}
        before = dict(more)
        for role in Role:
            while more[role] < 0 and self._forgo(role):
                more[role] += 1
            while more[role] < 0 and (member := self._least_needed(role, more[OTHER[role]] > 0)) is not None:
                other = OTHER[role]
                if more[other] > 0 and self._may_move(member, other):
                    more[other] -= 1
                    self._move(member, other, by, plan.reason, now_s)
                else:
                    self._remove(member, now_s)
                more[role] += 1
        done = more != before or any(count > 0 for count in more.values())
        for role, count in more.items():
            for _ in range(count):
                self.roster.waiting.append(role)
        self._start_waiting()
        return done

    def propose_moves(self, moves: Iterable[RoleMove], by: str, now_s: float) -> None:
        """Change the roles of single workers, in order. One that has its role already is left alone."""
        for move in moves:
            member = self.roster.members.get(move.worker)
            if member is None or (by == Kind.ROUTER and not self._label):
                self.counts[by, Stage.REFUSED] += 1
                continue
            if member.becomes is None and member.role is move.role:
                continue
            why = self._refusal(member, move.role)
            if why is None:
                self._move(member, move.role, by, move.reason, now_s)
            else:
                self._note(member, member.role, move.role, Stage.REFUSED, by, why)

    # --- what happens to workers -----------------------------------------------------------------------------------

    def add(self, worker: str, role: Role, tp: int, capabilities: Capabilities = ANYTHING) -> Member:
        """Take in a worker that starts, on `tp` GPUs. Raises ValueError when its name is taken."""
        member = Member(worker, role, tp, capabilities)
        self.roster.add(member)
        return member

    def ready(self, worker: str) -> None:
        """A worker serves: it has started, or has changed its role."""
        member = self.roster.members.get(worker)
        if member is None or member.life not in (Life.STARTING, Life.CHANGING):
            return
        member.life = Life.READY
        if member.becomes is not None:
            before, member.role, member.becomes = member.role, member.becomes, None
            self._note(member, before, member.role, Stage.DONE, member.by, member.reason)

    def drained(self, worker: str) -> None:
        """A draining worker has no work left."""
        member = self.roster.members.get(worker)
        if member is None or member.life is not Life.DRAINING:
            return
        member.due_s = None
        if member.becomes is None:
            self._actuator.stop(worker)
        elif self._changer is not None:
            member.life = Life.CHANGING
            self._changer.change(worker, member.becomes)

    def failed(self, worker: str, why: str) -> None:
        """A worker could not change its role; it has its old one."""
        member = self.roster.members.get(worker)
        if member is not None and member.becomes is not None:
            self._roll_back(member, why)

    def gone(self, worker: str, *, replace: bool = False) -> None:
        """A worker has ended, asked for or not, and its GPUs are free.

        :param replace: start another one in its place, before any that was wanted earlier.
        """
        member = self.roster.members.get(worker)
        if member is None:
            return
        role, becomes = member.next_role, member.becomes
        self.roster.remove(worker)
        self._lost(member, becomes, f"{worker} is gone")
        if replace:
            self.roster.waiting.insert(0, role)
        self._start_waiting()

    def tick(self, now_s: float) -> None:
        """See to drains that are too late, and to starts that the host could not do before."""
        for member in list(self.roster.members.values()):
            if member.due_s is None or member.due_s > now_s + CLOCK_ERROR_S:
                continue
            member.due_s = None
            if member.becomes is not None:
                self._roll_back(member, f"{member.id} did not drain within {self._drain_s:g} s")
            else:
                self._actuator.overdue(member.id)
        self._start_waiting()

    # --- how it is done --------------------------------------------------------------------------------------------

    def _refusal(self, member: Member, role: Role) -> str | None:
        """Return why `member` may not take `role` now; None when it may."""
        if self._changer is None:
            return "workers keep their roles here"
        if member.life is not Life.READY:
            return f"{member.id} is {member.life}"
        if role not in member.capabilities.phases:
            return f"{member.id} cannot serve {role}"
        if not self.roster.can_spare(member, role if self._label else None):
            return f"{member.id} is the last one ready that serves its phase"
        return None

    def _may_move(self, member: Member, role: Role) -> bool:
        return member.tp == self.roster.gpus[role] and self._refusal(member, role) is None

    def _forgo(self, role: Role) -> bool:
        """Cancel the latest start of `role` that waits for GPUs. False when none waits."""
        waiting = self.roster.waiting
        places = [place for place, wanted in enumerate(waiting) if wanted is role]
        if places:
            del waiting[places[-1]]
            self._start_waiting()
        return bool(places)

    def _least_needed(self, role: Role, may_move: bool) -> Member | None:
        """Return the youngest worker that starts, else the one with the least work that may go; None without one."""
        if starting := self.roster.of(role, Life.STARTING):
            return starting[-1]
        candidates = self.roster.of(role, Life.READY, Life.CHANGING)
        candidates.sort(key=lambda member: self._actuator.work(member.id))
        return next((member for member in candidates if self._may_go(member, may_move)), None)

    def _may_go(self, member: Member, may_move: bool) -> bool:
        return (
            member.life is Life.CHANGING
            or self.roster.can_spare(member)
            or (may_move and self._may_move(member, OTHER[member.role]))
        )

    def _move(self, member: Member, role: Role, by: str, reason: str, now_s: float) -> None:
        before = member.role
        if self._label and self._changer is not None:
            member.role = role
            self._note(member, before, role, Stage.BEGUN, by, reason)
            self._note(member, before, role, Stage.DONE, by, reason)
            self._changer.relabel(member.id, role)
            return
        member.becomes, member.by, member.reason = role, by, reason
        self._drain(member, now_s)
        self._note(member, before, role, Stage.BEGUN, by, reason)
        self._actuator.drain(member.id)

    def _remove(self, member: Member, now_s: float) -> None:
        ready = member.life is Life.READY
        becomes, member.becomes = member.becomes, None
        self._drain(member, now_s)
        self._lost(member, becomes, f"{member.id} is no longer wanted")
        if ready:
            self._actuator.drain(member.id)
        else:
            self._actuator.stop(member.id)

    def _drain(self, member: Member, now_s: float) -> None:
        member.life = Life.DRAINING
        member.due_s = None if self._drain_s is None else now_s + self._drain_s

    def _roll_back(self, member: Member, why: str) -> None:
        becomes, member.becomes = member.becomes, None
        member.life, member.due_s = Life.READY, None
        if becomes is not None and self._changer is not None:
            self._note(member, member.role, becomes, Stage.ROLLED_BACK, member.by, why)
            self._changer.undrain(member.id)

    def _lost(self, member: Member, becomes: Role | None, why: str) -> None:
        if becomes is not None:
            self._note(member, member.role, becomes, Stage.LOST, member.by, why)

    def _start_waiting(self) -> None:
        """Start what fits, first come first served. Only a start that the host refused lets later ones pass."""
        waiting, place = self.roster.waiting, 0
        while place < len(waiting) and self.roster.fits(waiting[place]):
            role = waiting.pop(place)
            if not self._actuator.start(role):
                waiting.insert(place, role)
                place += 1

    def _note(self, member: Member, before: Role, role: Role, stage: Stage, by: str, reason: str) -> None:
        self.counts[by, stage] += 1
        change = RoleChange(member.id, before, role, stage, by, reason)
        for listener, fault in self._listeners:
            try:
                listener.on_role_change(change)
            except BaseException as error:  # whatever a policy does, the change goes on
                if isinstance(error, STOPS):
                    raise
                fault(error)
