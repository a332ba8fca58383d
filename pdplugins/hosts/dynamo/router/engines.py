"""What the router has to know of a kind of engine: where its workers register, and what they can do."""

from __future__ import annotations

from dataclasses import dataclass

from pdplugins.contracts.workers import ANYTHING, Capabilities, Role
from pdplugins.hosts.dynamo.router.places import NAMESPACE, Place, first, other


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One kind of engine."""

    name: str
    hands_over: bool
    """Whether a worker that prefills says in the end where the KV cache is, so that who decodes may be decided then.
    Others move the KV cache while both work, and must know each other before they begin."""
    two_endpoints: bool
    """Whether a worker that does both phases registers for each of them; else it does so for its role only."""
    splits: bool
    """Whether a worker that does both phases goes on at any token from a KV cache that another one computed."""

    def places(self, *, both: bool, namespace: str = NAMESPACE) -> tuple[Place, ...]:
        """Return where workers register that keep their role, or that do `both` phases."""
        makers = (first, other) if both and self.two_endpoints else (first,)
        return tuple(place(role, namespace) for place in makers for role in Role)

    def capabilities(self, phase: Role, *, both: bool) -> Capabilities:
        """Return what a worker can do that registers for `phase`, and perhaps does `both`."""
        if not both:
            return Capabilities(frozenset({phase}), alone=False, splits=False)
        return ANYTHING if self.splits else Capabilities(splits=False)


MOCKER = EngineKind("mocker", hands_over=True, two_endpoints=True, splits=False)
"""Dynamo's mocker engine."""
SGLANG = EngineKind("sglang", hands_over=False, two_endpoints=False, splits=True)
"""Workers of ``dynamo.sglang``; those that do both phases have our plugin."""
KINDS = {kind.name: kind for kind in (MOCKER, SGLANG)}
