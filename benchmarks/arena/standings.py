"""Where a planner stands: against the front of fixed pools, against Dynamo's planners, and below the ceiling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import planners_report
from planners_report import point

Row = dict[str, Any]


@dataclass(frozen=True)
class Front:
    """The strictest front through some runs: every mixture of two of them in time is on it or below.

    It begins at nothing for nothing, so that each number of GPU-hours has a rival.
    """

    costs: Sequence[float]
    attainments: Sequence[float]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Front:
        """Return the upper concave hull of the runs."""
        nothing = {"metrics": {"slo_attainment": 0.0, "gpu_hours": 0.0}}
        attainments, costs = zip(*map(point, planners_report.front([nothing, *rows])), strict=True)
        return cls(costs, attainments)

    def at(self, gpu_hours: float) -> float:
        """Return the attainment in percent that these GPU-hours buy."""
        return float(np.interp(gpu_hours, self.costs, self.attainments))

    def price(self, attainment: float) -> float:
        """Return the GPU-hours that this attainment costs; NaN where no run reaches it."""
        if attainment > self.attainments[-1]:
            return math.nan
        return float(np.interp(attainment, self.attainments, self.costs))


@dataclass(frozen=True)
class Standing:
    """One run of a scaler in one cell."""

    attainment: float
    gpu_hours: float
    front: float
    """Attainment of fixed pools at these GPU-hours, in percent."""
    price: float
    """GPU-hours of fixed pools at this attainment; NaN where none reaches it."""

    @property
    def above(self) -> float:
        """Points above the front of fixed pools."""
        return self.attainment - self.front

    @property
    def saved(self) -> float:
        """Share of the GPU-hours of fixed pools that is saved at equal attainment; NaN where no pool reaches it."""
        return 1 - self.gpu_hours / self.price

    @classmethod
    def of(cls, row: Row, fixed: Front) -> Standing:
        """Hold one run against the front."""
        attainment, gpu_hours = point(row)
        return cls(attainment, gpu_hours, fixed.at(gpu_hours), fixed.price(attainment))


def of_group(rows: Sequence[Row], group: str) -> list[Row]:
    """Return the runs of one group."""
    return [row for row in rows if row["group"] == group]


def score(rows: Sequence[Row], row: Row) -> float:
    """Return the points of `row` above the front of the fixed pools among `rows`."""
    return Standing.of(row, Front.of(of_group(rows, "fixed"))).above


def best(scores: Mapping[str, Sequence[float]]) -> str:
    """Return the label with the highest mean score. All have a score in each cell."""
    return max(scores, key=lambda label: sum(scores[label]) / len(scores[label]))


def gain(attainment: float, gpu_hours: float, fixed: Front, ceiling: Front) -> float:
    """Return the share of the ceiling's saving over fixed pools that a run gets, at the attainment of the run.

    NaN where fixed pools or the ceiling do not reach that attainment, or the ceiling saves less than a hundredth.
    """
    most = fixed.price(attainment) - ceiling.price(attainment)
    return (fixed.price(attainment) - gpu_hours) / most if most > 0.01 * fixed.price(attainment) else math.nan
