"""The four elastic pools (Section 5.2) and the transitions between them (Figure 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from pdplugins.contracts.workers import Role
from pdplugins.policies.arrow.instance import Instance, PoolName

P, D, PD, DP = PoolName.P, PoolName.D, PoolName.PD, PoolName.DP

TRANSITIONS: Mapping[PoolName, frozenset[PoolName]] = MappingProxyType(
    {P: frozenset({PD, D}), D: frozenset({DP, P}), PD: frozenset({D, DP, P}), DP: frozenset({P, PD, D})}
)
"""Figure 5. P->D to D and D->P to P also happen without a decision, when the last request of the old phase is done."""

PREFILL_POOLS, DECODE_POOLS = (P, DP), (D, PD)
"""Pools whose instances get new prefill requests, and pools whose instances get new decode requests."""


class Least:
    """A heap of the instances of one pool, with the least key first. Operations take logarithmic time.

    A changed key is pushed again. The old entry is skipped when it reaches the top, or removed when there are many.
    """

    def __init__(self) -> None:
        self._keys: dict[Instance, float] = {}
        self._heap: list[tuple[float, int, Instance]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._keys)

    def put(self, instance: Instance, key: float) -> None:
        """Add `instance`, or change its key."""
        if self._keys.get(instance) == key:
            return
        self._keys[instance] = key
        heappush(self._heap, (key, instance.serial, instance))
        if len(self._heap) > 4 * len(self._keys) + 16:
            self._heap = [(key, instance.serial, instance) for instance, key in self._keys.items()]
            heapify(self._heap)

    def discard(self, instance: Instance) -> None:
        """Remove `instance`."""
        self._keys.pop(instance, None)

    def first(self, role: Role | None = None) -> Instance | None:
        """Return the instance with the least key, of those that can serve `role`; None when there is none."""
        heap = self._heap
        while heap and self._keys.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        least = heap[0][2] if heap else None
        if role is None or least is None or least.can_serve(role):
            return least
        able = [instance for instance in self._keys if instance.can_serve(role)]
        return min(able, key=lambda instance: (self._keys[instance], instance.serial), default=None)


class DecodeLoad:
    """Totals over the instances of the decode pools."""

    def __init__(self) -> None:
        self.instances = 0.0
        self._speed = self._full_speed = self._intervals_s = self._reporting = 0.0

    @property
    def share(self) -> float:
        """What decode delivers, as a share of what it delivers at Max Running Tokens.

        Unlike tokens, this grows in proportion to the requests that come: at most loads a step with half of the tokens
        takes more than half of the time.
        """
        return self._speed / self._full_speed if self.instances else 0.0

    @property
    def interval_s(self) -> float:
        """Average token generation interval over the instances of D that report one; 0 when none does.

        P->D instances do not count: their steps still have chunks of prefill (Section 5.5, case 2).
        """
        return self._intervals_s / self._reporting if self._reporting >= 1 else 0.0

    def count(self, instance: Instance) -> None:
        """Count `instance` with its present load, which replaces its earlier count."""
        interval_s = instance.interval_s if instance.pool is D else None
        reporting = 0.0 if interval_s is None else 1.0
        counted = *instance.speeds, interval_s or 0.0, reporting
        if counted != instance.counted:
            self.drop(instance)
            instance.counted = counted
            self._add(1.0, *counted)

    def drop(self, instance: Instance) -> None:
        """Remove `instance` from the totals."""
        if instance.counted is not None:
            self._add(-1.0, *instance.counted)
            instance.counted = None

    def _add(self, sign: float, *values: float) -> None:
        speed, full_speed, interval_s, reporting = values
        self.instances += sign
        self._speed += sign * speed
        self._full_speed += sign * full_speed
        self._reporting += sign * reporting
        self._intervals_s = self._intervals_s + sign * interval_s if self._reporting >= 1 else 0.0


class Pools:
    """Which instance is in which pool. An instance is in exactly one."""

    def __init__(self) -> None:
        self._pools = {name: Least() for name in PoolName}
        self.load = DecodeLoad()

    def __getitem__(self, name: PoolName) -> Least:
        return self._pools[name]

    def size(self, names: tuple[PoolName, ...]) -> int:
        """Return the number of instances in the pools `names`."""
        return sum(len(self._pools[name]) for name in names)

    def add(self, instance: Instance) -> None:
        """Add a new instance to the pool that it names."""
        self.update(instance)

    def remove(self, instance: Instance) -> None:
        """Remove an instance."""
        self._pools[instance.pool].discard(instance)
        self.load.drop(instance)

    def move(self, instance: Instance, to: PoolName) -> None:
        """Move `instance` along one edge of Figure 5."""
        if to not in TRANSITIONS[instance.pool]:
            raise ValueError(f"Figure 5 has no transition from {instance.pool} to {to}")
        self._pools[instance.pool].discard(instance)
        self.load.drop(instance)
        instance.pool = to
        self.update(instance)

    def update(self, instance: Instance) -> None:
        """Sort `instance` into its pool again by its present load: its prefill queue, or its running tokens."""
        if instance.pool in PREFILL_POOLS:
            self._pools[instance.pool].put(instance, instance.free_at_s)
        else:
            self._pools[instance.pool].put(instance, instance.running_tokens)
            self.load.count(instance)
