"""Changes of workers' roles. Planner, router and power controller propose them, and one authority applies them.

`pdplugins.runtime.roles` is that authority. Where the engine needs it, it drains a worker before its role changes. It
sets a deadline for the drain, rolls back changes that fail, keeps the GPU budget, and tells its listeners.
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
    """The worker takes no new work of its old role, and finishes its requests. One of the next three stages follows."""
    DONE = "done"
    """The worker has its new role. Where roles are labels, this follows at once."""
    ROLLED_BACK = "rolled_back"
    """The worker has its old role again, because it failed or did not drain within its deadline."""
    LOST = "lost"
    """The worker died, or was stopped because fewer workers are wanted."""
    REFUSED = "refused"
    """Nothing changed: a phase would have no worker left, or the worker already changes or cannot change its role."""


@dataclass(frozen=True, slots=True)
class RoleChange:
    """One stage of a proposed change."""

    worker: str
    before: Role
    role: Role
    stage: Stage
    by: str
    """Who proposed it: ``planner``, ``router`` or ``power``."""
    reason: str = ""
    """Why it was proposed. For a change that was rolled back, lost or refused: why that happened."""


@runtime_checkable
class MovesRoles(Protocol):
    """A router that moves workers between roles. Hosts take its moves after each of its decisions."""

    def take_role_moves(self) -> tuple[RoleMove, ...]:
        """Return the moves proposed since the last call, in order. Each is returned only once."""
        ...


@runtime_checkable
class HearsRoles(Protocol):
    """A planner, router or power controller that hears about every role change, its own and others'."""

    def on_role_change(self, change: RoleChange) -> None:
        """Take note of one change. The next view shows it too."""
        ...
