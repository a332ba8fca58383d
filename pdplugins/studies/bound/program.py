"""Good prices: the shadow prices of a linear program over groups of requests.

The bound holds for any prices, so neither the groups nor the solver need to be exact.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, vstack

from pdplugins.studies.bound.demand import Demand
from pdplugins.studies.bound.prices import Buckets, Fleet
from pdplugins.studies.bound.steps import Array

CLASSES = 8
"""Number of groups, by work, of the requests that arrive in one bucket."""


class Program:
    """A flow problem: the work of groups of requests flows into buckets.

    Its variables are the served requests of each group, and the GPU-seconds of each flow from the prompts or outputs of
    a group into a bucket of their window. For `held_prices` they also are the GPUs held in each bucket, and those that
    start before it.
    """

    def __init__(self, demand: Demand, buckets: Buckets) -> None:
        self._count, self._length_s = buckets.count, buckets.length_s
        work = demand.prefill + demand.decode
        rank = np.argsort(np.argsort(work, kind="stable"), kind="stable")
        _, group = np.unique(buckets.prefill[0] * CLASSES + rank * CLASSES // len(work), return_inverse=True)
        self._size = np.bincount(group).astype(float)
        self._groups = len(self._size)

        def mean(values: Array) -> Array:
            return np.asarray(np.bincount(group, values) / self._size)

        owners, into = [], []
        for first, last in (buckets.prefill, buckets.decode):
            start, stop = (np.rint(mean(edge)).astype(int) for edge in (first, last))
            counts = stop - start + 1
            owners.append(np.repeat(np.arange(self._groups), counts))
            into.append(np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - start, counts))
        self._works = np.concatenate((mean(demand.prefill), mean(demand.decode)))
        self._row = np.concatenate((owners[0], owners[1] + self._groups))
        self._bucket = np.concatenate(into)
        self._flows = len(self._row)

    def served_prices(self, gpus: int) -> Array:
        """Return the worth in requests of one more GPU-second in each bucket, when the most requests are served."""
        flow = self._groups + np.arange(self._flows)
        wide = self._groups + self._flows
        capacity = _matrix(np.ones(self._flows), self._bucket, flow, (self._count, wide))
        value = np.concatenate((-np.ones(self._groups), np.zeros(self._flows)))
        upper = np.concatenate((self._size, np.full(self._flows, np.inf)))
        limit = np.concatenate((np.zeros(2 * self._groups), np.full(self._count, gpus * self._length_s)))
        shadow = _solve(value, [self._need(wide), capacity], limit, np.zeros(wide), upper)
        return shadow[2 * self._groups :]

    def held_prices(self, fleet: Fleet, served: int, last_arrival_s: float) -> tuple[Array, Array]:
        """Return the worth of a GPU-second in each bucket, and of a start at each edge, for the fewest held GPUs."""
        count, length_s = self._count, self._length_s
        inner, flow = np.arange(count - 1), self._groups + np.arange(self._flows)
        gpu = self._groups + self._flows + np.arange(count)
        start = gpu[-1] + 1 + inner
        wide = self._groups + self._flows + 2 * count - 1
        capacity = _matrix(
            np.concatenate((np.ones(self._flows), np.full(count, -length_s))),
            np.concatenate((self._bucket, np.arange(count))),
            np.concatenate((flow, gpu)),
            (count, wide),
        )
        ramp = _matrix(
            np.repeat([1.0, -1.0, -1.0], count - 1),
            np.tile(inner, 3),
            np.concatenate((gpu[1:], gpu[:-1], start)),
            (count - 1, wide),
        )
        group = np.arange(self._groups)
        enough = _matrix(-np.ones(self._groups), np.zeros(self._groups, dtype=int), group, (1, wide))
        value = np.zeros(wide)
        value[gpu], value[start] = length_s, fleet.startup_s
        lower, upper = np.zeros(wide), np.full(wide, np.inf)
        lower[gpu[np.arange(count) * length_s < last_arrival_s]] = fleet.floor
        upper[: self._groups] = self._size
        limit = np.zeros(2 * self._groups + 2 * count)
        limit[-1] = -served
        shadow = _solve(value, [self._need(wide), capacity, ramp, enough], limit, lower, upper)
        price, starts = np.split(shadow[2 * self._groups : -1], [count])
        return price, np.concatenate(([0.0], starts, [0.0]))

    def _need(self, wide: int) -> coo_array:
        """Return the rows that make the flows of a group carry the work of its served requests."""
        group = np.arange(self._groups)
        return _matrix(
            np.concatenate((self._works, -np.ones(self._flows))),
            np.concatenate((np.arange(2 * self._groups), self._row)),
            np.concatenate((group, group, self._groups + np.arange(self._flows))),
            (2 * self._groups, wide),
        )


def _matrix(values: Array, row: Array, column: Array, shape: tuple[int, int]) -> coo_array:
    return coo_array((values, (row, column)), shape=shape)


def _solve(value: Array, parts: list[coo_array], limit: Array, lower: Array, upper: Array) -> Array:
    """Return the shadow prices of the rows of a linear program, at least 0, from however far the solver got."""
    matrix = vstack(parts).tocsc()
    bounds = np.column_stack((lower, upper))
    found = linprog(value, A_ub=matrix, b_ub=limit, bounds=bounds, method="highs-ipm", options={"time_limit": 60.0})
    if found.x is None:
        return np.zeros(len(limit))
    return np.asarray(np.maximum(-found.ineqlin.marginals, 0.0))
