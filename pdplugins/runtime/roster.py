"""The workers that one host runs: their roles, where each is in its life, and the GPUs that they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pdplugins.contracts.workers import ANYTHING, Capabilities, Pool, Role


class Life(StrEnum):
    """The stages of the life of a worker."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Takes no new work. When it is done it goes, or changes its role."""
    CHANGING = "changing"
    """Has drained, and changes its role."""
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Member:
    """One worker. Only `Roster` and `pdplugins.runtime.roles.RoleAuthority` write to it."""

    id: str
    role: Role
    tp: int
    """GPUs that it holds until it is gone."""
    capabilities: Capabilities = ANYTHING
    life: Life = Life.STARTING
    becomes: Role | None = None
    """Role that it takes once it has drained; None while no change is under way."""
    by: str = ""
    """Who proposed the change that is under way."""
    reason: str = ""
    due_s: float | None = None
    """When its drain is too late; None without a deadline."""

    @property
    def next_role(self) -> Role:
        """Role that it counts for: the new one as soon as it has drained."""
        return self.becomes if self.becomes is not None and self.life is Life.CHANGING else self.role


class Roster:
    """All workers that are not gone, oldest first, and the starts that wait for GPUs.

    :param gpus: GPUs of a worker that is started for each role.
    :param gpu_budget: GPUs that all workers may hold together, draining ones included.
    :param any_role: whether a worker is given work of both phases, whatever its role, as its capabilities allow.
    """

    def __init__(self, gpus: Mapping[Role, int], gpu_budget: int, *, any_role: bool = False) -> None:
        self.gpus = gpus
        self.gpu_budget = gpu_budget
        self.any_role = any_role
        self.gpus_held = 0
        self.members: dict[str, Member] = {}
        self.waiting: list[Role] = []
        """Roles of workers that are wanted and have not started, in the order in which they were wanted."""

    def add(self, member: Member) -> None:
        """Take in a worker that holds its GPUs from now on."""
        if member.id in self.members:
            raise ValueError(f"there is a worker {member.id} already")
        self.members[member.id] = member
        self.gpus_held += member.tp

    def remove(self, worker: str) -> Member | None:
        """Take out a worker that has given its GPUs back; None when it is not known."""
        if (member := self.members.pop(worker, None)) is not None:
            member.life = Life.GONE
            self.gpus_held -= member.tp
        return member

    def of(self, role: Role, *lives: Life) -> list[Member]:
        """Return the workers of `role` in any of `lives`, oldest first. One that changes counts for its next role."""
        return [member for member in self.members.values() if member.life in lives and member.next_role is role]

    def coming(self, role: Role) -> int:
        """Return how many workers of `role` there will be: those that serve, start, change to it, or wait for GPUs."""
        return len(self.of(role, Life.READY, Life.STARTING, Life.CHANGING)) + self.waiting.count(role)

    def expected(self, role: Role) -> int:
        """Return `coming`, and those that still drain before they change to `role`."""
        draining = (member for member in self.members.values() if member.life is Life.DRAINING)
        return self.coming(role) + sum(member.becomes is role for member in draining)

    def pool(self, role: Role) -> Pool:
        """Return what a planner sees of `role`, without loads. What waits for GPUs counts as starting."""
        ready = len(self.of(role, Life.READY))
        return Pool(ready, self.coming(role) - ready, len(self.of(role, Life.DRAINING)))

    def fits(self, role: Role) -> bool:
        """Tell whether one more worker of `role` would stay within the GPU budget."""
        return self.gpus_held + self.gpus[role] <= self.gpu_budget

    def can_serve(self, member: Member, phase: Role, role: Role) -> bool:
        """Tell whether `member` gets work of `phase` when its role is `role`."""
        return role is phase or (self.any_role and phase in member.capabilities.phases)

    def can_spare(self, member: Member, becomes: Role | None = None) -> bool:
        """Tell whether other ready workers serve every phase that `member` serves now.

        :param becomes: role in which `member` serves on, without a pause; None when it takes no new work.
        """
        for phase in Role:
            served = self.can_serve(member, phase, member.role)
            if served and not (becomes is not None and self.can_serve(member, phase, becomes)):
                others = (other for other in self.members.values() if other.life is Life.READY and other is not member)
                if not any(self.can_serve(other, phase, other.role) for other in others):
                    return False
        return True
