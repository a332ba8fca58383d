"""Counts the wall time and faults of policies, separately from the simulation itself."""

from __future__ import annotations

from collections import Counter

from pdplugins.contracts.kinds import Kind
from pdplugins.runtime.decision import Fault, Journal
from pdplugins.runtime.faults import Tally


class PolicyClock:
    """Wall time and faults of each kind of policy, as the wrappers in `pdplugins.runtime` count them."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._tallies = {kind: Tally(kind, journal) for kind in Kind}

    def tally(self, kind: Kind) -> Tally:
        """Return where the safe policies of `kind` count."""
        return self._tallies[kind]

    def adopt(self, tally: Tally) -> None:
        """Count with what a safe policy, which was there before, counts by itself."""
        self._tallies[tally.kind] = tally

    def fault(self, kind: str, why: BaseException | str) -> None:
        """Count one call of a policy that no such wrapper makes, and that gave no usable answer."""
        self._tallies[Kind(kind)].fault(Fault.POLICY_ERROR, str(why))

    @property
    def seconds(self) -> dict[str, float]:
        """Wall seconds by kind of policy; kinds that took no time are left out."""
        return {kind.value: tally.ns / 1e9 for kind, tally in self._tallies.items() if tally.ns}

    @property
    def faults(self) -> Counter[str]:
        """Faults by kind of policy; kinds without faults are left out."""
        return Counter({kind.value: n for kind, tally in self._tallies.items() if (n := sum(tally.faults.values()))})
