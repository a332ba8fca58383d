"""Where the workers of one stack take requests: the endpoints of Dynamo that a worker of each role serves."""

from __future__ import annotations

from dataclasses import dataclass

from pdplugins.contracts.workers import Role

NAMESPACE = "dynamo"
"""Of the workers, the planner, and the frontend where it routes requests itself."""
FRONT = "front"
"""Namespace of the frontend that knows the router only, and no worker."""
ROUTER = f"{FRONT}.router.generate"
STATE = f"{FRONT}.router.state"
"""Where the router says what it knows of its workers."""
COMPONENTS = {Role.PREFILL: "prefill", Role.DECODE: "backend"}
"""Component of the workers of each role, as Dynamo's planner and frontend expect it."""
SECOND = "second"
"""Component where a worker that does both phases serves the other one: the planner counts each worker once."""


@dataclass(frozen=True, slots=True)
class Place:
    """One endpoint."""

    component: str
    """Its namespace and component."""
    name: str
    """Two endpoints of one process must have different names."""
    phase: Role
    role: Role | None
    """Role of the workers that register there; None where they serve the other phase."""

    @property
    def path(self) -> str:
        """The endpoint as Dynamo writes it."""
        return f"{self.component}.{self.name}"


def first(role: Role, namespace: str = NAMESPACE) -> Place:
    """Return where a worker serves the phase of its role."""
    return Place(f"{namespace}.{COMPONENTS[role]}", "generate", role, role)


def other(phase: Role, namespace: str = NAMESPACE) -> Place:
    """Return where workers serve `phase` that is not that of their role."""
    return Place(f"{namespace}.{SECOND}", phase.value, phase, None)
