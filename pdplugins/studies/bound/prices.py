"""Prices of a GPU-second over time. Any prices give a valid bound (docs/bound.md, Theorems 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pdplugins.studies.bound.demand import Demand
from pdplugins.studies.bound.steps import Array

MOST_BUCKETS = 300


@dataclass(frozen=True)
class Buckets:
    """The time of a trace in equal buckets, and the buckets that the windows of each request overlap."""

    count: int
    length_s: float
    prefill: tuple[Array, Array]
    """First and last bucket of the window of each prompt."""
    decode: tuple[Array, Array]

    def cost(self, demand: Demand, price: Array) -> Array:
        """Return the least that each request pays: all its work at the lowest price in its window."""
        cheapest = RangeMinimum(price)
        return np.asarray(demand.prefill * cheapest(*self.prefill) + demand.decode * cheapest(*self.decode))


def buckets_of(demand: Demand, most: int = MOST_BUCKETS) -> Buckets:
    """Cut the time of `demand` into buckets no shorter than two thirds of the shortest window of a prompt."""
    end_s = float(demand.last_by_s.max(initial=0.0))
    window_s = float((demand.first_by_s - demand.arrival_s).min(initial=1.0))
    count = max(min(most, int(1.5 * end_s / window_s)), 1)
    length_s = max(end_s / count, 1e-9)

    def index(at_s: Array) -> Array:
        return np.asarray(np.clip((at_s / length_s).astype(int), 0, count - 1))

    return Buckets(
        count,
        length_s,
        (index(demand.arrival_s), index(demand.first_by_s)),
        (index(demand.decode_from_s), index(demand.last_by_s)),
    )


class RangeMinimum:
    """The minimum of any range of values, looked up in a table of all ranges whose length is a power of two."""

    def __init__(self, values: Array) -> None:
        self._levels = [values]
        step = 1
        while 2 * step <= len(values):
            last = self._levels[-1]
            self._levels.append(np.minimum(last[: len(last) - step], last[step:]))
            step *= 2

    def __call__(self, first: Array, last: Array) -> Array:
        """Return the smallest value of each range from `first` to `last`, both included."""
        level = np.log2(last - first + 1).astype(int)
        found = np.empty(len(first))
        for power, values in enumerate(self._levels):
            here = level == power
            found[here] = np.minimum(values[first[here]], values[last[here] - (1 << power) + 1])
        return found


@dataclass(frozen=True)
class Fleet:
    """The constraints on any scaler."""

    floor: int
    """Fewest GPUs at any time: one worker of each role."""
    startup_s: float


def served_bound(demand: Demand, buckets: Buckets, gpus: int, price: Array) -> float:
    """Return the bound that `price` (requests per GPU-second) gives: docs/bound.md, Theorem 1."""
    spare = np.maximum(1 - buckets.cost(demand, price), 0).sum()
    return float(spare + gpus * buckets.length_s * price.sum())


def held_bound(demand: Demand, buckets: Buckets, fleet: Fleet, served: int, price: Array, ramp: Array) -> float:
    """Return the bound that prices give: docs/bound.md, Theorem 2.

    :param price: GPU-seconds per GPU-second of each bucket, at least 0.
    :param ramp: price of a start at each edge of the buckets, in seconds; clipped to its limits here.
    """
    ramp = np.clip(ramp, 0.0, fleet.startup_s)
    ramp[0] = 0.0  # workers at the start of the run need no start-up time
    steepest = np.diff(ramp).max() / buckets.length_s
    left = np.maximum(1 - np.diff(ramp) / buckets.length_s / max(steepest, 1.0), 0.0)
    price = np.clip(price, 0.0, left)
    cost = buckets.cost(demand, price)
    cheapest = float(np.partition(cost, served - 1)[:served].sum()) if 0 < served <= len(cost) else 0.0
    edges = np.arange(buckets.count) * buckets.length_s
    needed_s = np.clip(demand.last_arrival_s - edges, 0.0, buckets.length_s)
    return cheapest + float(fleet.floor * ((left - price) * needed_s).sum())
