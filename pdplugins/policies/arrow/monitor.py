"""The instance monitor (Section 5.2): reads the loads that instances report, a few instances at each call."""

from __future__ import annotations

from pdplugins.policies.arrow.instance import Instance
from pdplugins.policies.arrow.pools import DP, PD, D, P, Pools

AT_ONCE = 8
"""Instances that one call reads, in turn. A decision costs the same in a larger fleet, but sees older loads there."""


class Monitor:
    """Updates `pools` with the loads that instances report, and ends transitions that are complete."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._next = 0
        self.instances: tuple[Instance, ...] = ()

    def watch(self, now_s: float) -> None:
        """Read the next instances, or all of them where there are few."""
        instances = self.instances
        count = len(instances)
        for _ in range(min(AT_ONCE, count)):
            self._next = (self._next + 1) % count
            instance = instances[self._next]
            instance.observe(now_s)
            self._pools.update(instance)
            self.settle(instance)

    def settle(self, instance: Instance) -> None:
        """Give `instance` its new role once the last request of the old phase is done (Figure 5, black edges)."""
        if instance.pool is PD and not instance.prefills:
            self._pools.move(instance, D)
        elif instance.pool is DP and not instance.decodes:
            self._pools.move(instance, P)
