"""Changes of workers' roles. Planner, router and power controller propose; the host's one authority applies.

`pdplugins.runtime.roles` is that authority. It drains a worker before its role changes where the engine needs that,
gives a drain a deadline, rolls back what did not succeed, keeps the GPU budget, and tells its listeners.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from pdplugins.contracts.workers import Role


@dataclass(frozen=True, slots=True)
class RoleMove:
    """A proposal: one worker changes its role."""

    worker: str
    role: Role
    reason: str = ""


class Stage(StrEnum):
    """How far a change has come."""

    BEGUN = "begun"
    """The worker takes no new work of its old role, and finishes what it has. One of the next three stages follows."""
    DONE = "done"
    """The worker has its new role. Where roles are labels this follows at once."""
    ROLLED_BACK = "rolled_back"
    """It did not drain within its deadline, or failed: it has its old role again."""
    LOST = "lost"
    """The worker died, or was stopped because fewer are wanted."""
    REFUSED = "refused"
    """Nothing changed: a phase would be left without a worker, or this worker is changing or cannot change."""


@dataclass(frozen=True, slots=True)
class RoleChange:
    """What became of one proposal."""

    worker: str
    before: Role
    role: Role
    stage: Stage
    by: str
    """Who proposed it: ``planner``, ``router`` or ``power``."""
    reason: str = ""
    """Why it was proposed; of a change that was rolled back, lost or refused, why that."""


@runtime_checkable
class MovesRoles(Protocol):
    """A router that moves workers between roles. Hosts ask for its moves after each of its decisions."""

    def take_role_moves(self) -> tuple[RoleMove, ...]:
        """Return the moves proposed since the last call, in order; each is returned once."""
        ...


@runtime_checkable
class HearsRoles(Protocol):
    """A planner, router or power controller that wants to know what became of its moves and of the others'."""

    def on_role_change(self, change: RoleChange) -> None:
        """Take note of one change. The next view shows it too."""
        ...
