"""Large pools: a decision looks at a few workers, and each gets its turn."""

from __future__ import annotations

from collections.abc import Sequence

from pdplugins.contracts.workers import WorkerView


class Turns:
    """Takes groups of workers in turn, so that a decision costs the same in a pool of any size.

    :param most: workers of a group.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._next = 0

    def of(self, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        """Return the workers to look at now: all of a small pool."""
        if len(workers) <= self._most:
            return workers
        begin = self._next % len(workers)
        self._next = begin + self._most
        group = workers[begin : begin + self._most]
        return [*group, *workers[: self._most - len(group)]]
