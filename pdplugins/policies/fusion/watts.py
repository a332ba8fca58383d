"""The programme within a budget of watts: each power cap of the profile is one more choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pdplugins.contracts.perf import PowerTable
from pdplugins.policies.fusion.composition import Frontier
from pdplugins.policies.rapid.controller import Caps


@dataclass(frozen=True, slots=True)
class Powered:
    """What workers can do within a budget of watts: each kind of worker has one cap, the best that fits together."""

    by_cap: Mapping[float, Frontier]
    """By cap: what workers with it can do."""
    tp: int
    """GPUs of a worker."""
    budget_w: float

    def at(self, prefill_only: int, mixed: int) -> tuple[float, Caps | None]:
        """Return the rate of such workers under the best caps, and those; 0 and None where no caps fit."""
        best: tuple[float, Caps | None] = 0.0, None
        for mixed_w, does in self.by_cap.items():
            left_w = self.budget_w / self.tp - mixed * mixed_w
            fits = [cap_w for cap_w in self.by_cap if prefill_only * cap_w <= left_w]
            if left_w < 0 or not fits:
                continue
            prefill_w = max(fits)
            rate = replace(does, prefill=self.by_cap[prefill_w].prefill).rate(prefill_only, mixed)
            if best[1] is None or rate > best[0]:
                best = rate, Caps(prefill_w, mixed_w)
        return best

    def rate(self, prefill_only: int, mixed: int) -> float:
        """Return the requests a second that such workers serve at most."""
        return self.at(prefill_only, mixed)[0]

    def step_s(self, workers: int) -> float:
        """Return the mean seconds of a step with which workers that all do both serve the most; inf where none may."""
        caps = self.at(0, workers)[1]
        return math.inf if caps is None else self.by_cap[caps.decode_w].step_s(workers)

    def best(self, workers: int, gain: float = 0.0) -> int:
        """Return the smallest number of prefill-only workers whose rate is at most `gain` below the best one."""
        rates = [self.rate(count, workers - count) for count in range(workers)]
        return next(count for count, rate in enumerate(rates) if rate * (1 + gain) >= max(rates))


def powered(table: PowerTable, under: Callable[[float, float], Frontier], tp: int, budget_w: float) -> Powered:
    """Return the programme with every cap of `table`.

    :param under: what workers do whose prefill and decode take so many times as long.
    """
    rows = zip(table.cap_w, table.prefill_slow, table.decode_slow, strict=True)
    return Powered({cap_w: under(prefill, decode) for cap_w, prefill, decode in rows}, tp, budget_w)
