"""The tables of fusion's matrix: each a list of rows, computed from what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median
from typing import Any

from cells import Cell
from search import BELOW, SHARES, Seen
from systems import STOCK

Row = dict[str, Any]
FUSION = "fusion"
FIGURES = ("attainment", "by_tokens", "ttft_p99_s", "ttft_worst_s", "watts")
"""Of `search.Run`: those that are kept of every system."""
LOST = 0.005
"""Attainment by which fusion may be below the best of all others before a cell counts as lost."""
BEYOND = (2.0, 3.0)
"""Shares of the capacity that are overload."""


@dataclass(frozen=True)
class Found:
    """Everything about one cell."""

    cell: Cell
    capacities: list[float]
    """Of each seed, in requests a second: the highest rate of the best stock configuration."""
    settings: dict[str, str]
    shown: dict[str, list[Seen]]
    """By system; one for each seed."""
    bounds: list[list[float]]
    """Of the first seeds: the best attainment that any policy could have at each of `BELOW`."""

    @property
    def capacity(self) -> float:
        """Return the mean capacity."""
        return fmean(self.capacities)

    @property
    def others(self) -> list[str]:
        """Return every system but fusion."""
        return [name for name in self.shown if name != FUSION]

    def mean(self, system: str, share: float, key: str) -> float:
        """Return the mean of a figure of `search.Run` over the seeds."""
        index = SHARES.index(share)
        return fmean(getattr(seen.points[index], key) for seen in self.shown[system])

    def attainment(self, system: str, share: float) -> float:
        """Return the mean attainment over the seeds."""
        return self.mean(system, share, "attainment")

    def highest(self, system: str) -> float:
        """Return the mean highest rate over the seeds, as a share of the capacity."""
        return fmean(seen.highest for seen in self.shown[system])

    def gain(self) -> float:
        """Return fusion's highest rate over that of the best stock configuration."""
        return self.highest(FUSION) / max(self.highest(name) for name in STOCK)

    def lead(self, share: float) -> float:
        """Return by how much fusion attains more than the best of all others; negative where it attains less."""
        return self.attainment(FUSION, share) - max(self.attainment(name, share) for name in self.others)

    def least_lead(self) -> tuple[float, float]:
        """Return the smallest lead, and the share where it is."""
        return min((self.lead(share), share) for share in SHARES)

    def kept(self, system: str, share: float) -> float:
        """Return the goodput at a share of the capacity over the system's largest one up to there."""
        goodput = {it: it * self.attainment(system, it) for it in SHARES if it <= share}
        return goodput[share] / max(*goodput.values(), 1e-9)

    def regret(self) -> float | None:
        """Return the mean share of the clairvoyant bound that fusion misses below capacity; None without a bound."""
        regrets = [
            1 - seen.points[SHARES.index(share)].whole / bound
            for seen, bounds in zip(self.shown[FUSION], self.bounds, strict=False)
            for share, bound in zip(BELOW, bounds, strict=False)
        ]
        return fmean(regrets) if regrets else None

    def best_stock(self) -> str:
        """Return the stock configuration with the highest rate."""
        return max(STOCK, key=self.highest)


def usable(found: Sequence[Found]) -> list[Found]:
    """Return the cells in which some stock configuration serves 90 % at some rate with every seed."""
    return [one for one in found if all(one.capacities)]


def rates(found: Sequence[Found]) -> list[Row]:
    """Return one row for each cell: how fusion stands against the best of the others."""
    rows = []
    for one in usable(found):
        slo, (lead, at) = one.cell.objectives(), one.least_lead()
        rows.append(
            {
                "cell": one.cell.name,
                "TTFT, s; TPOT, ms": f"{slo['ttft_s']:g}; {1e3 * slo['tpot_s']:g}",
                "capacity, req/s": one.capacity,
                "best stock": f"{one.best_stock()} {one.settings[one.best_stock()]}".strip(),
                "fusion's highest rate over it": one.gain(),
                "least of the seeds": _least_gain(one),
                **{f"fusion at {share:g}": one.attainment(FUSION, share) for share in (1.0, 1.5, 3.0)},
                **{f"lead at {share:g}": 100 * one.lead(share) for share in (1.0, 1.5, 3.0)},
                "least lead, points": 100 * lead,
                "there": at,
                "goodput at 2, of its peak till there": one.kept(FUSION, 2.0),
                "goodput at 3, of its peak till there": one.kept(FUSION, 3.0),
                "regret below 1": one.regret(),
            }
        )
    return rows


def _least_gain(one: Found) -> float:
    seeds = range(len(one.capacities))
    return min(one.shown[FUSION][seed].highest / max(one.shown[it][seed].highest for it in STOCK) for seed in seeds)


def price(found: Sequence[Found]) -> list[Row]:
    """Return one row for each cell: what fusion's order costs those that wait, and what all draw."""
    rows = []
    for one in usable(found):
        stock, row = one.best_stock(), Row(cell=one.cell.name)
        for title, key, share in (
            ("P99 TTFT at 0.8, s", "ttft_p99_s", 0.8),
            ("P99 TTFT at 1.5, s", "ttft_p99_s", 1.5),
            ("worst TTFT at 1.5, s", "ttft_worst_s", 1.5),
            ("by tokens at 1", "by_tokens", 1.0),
            ("by tokens at 1.5", "by_tokens", 1.5),
            ("W at 0.8", "watts", 0.8),
        ):
            for whose, system in (("", FUSION), ("best stock's ", stock)):
                row[whose + title] = one.mean(system, share, key) or None
        rows.append(row)
    return rows


def overview(found: Sequence[Found]) -> list[Row]:
    """Return one row for each system: means over all cells."""
    cells = usable(found)
    rows = []
    for system in dict.fromkeys(name for one in cells for name in one.shown):
        having = [one for one in cells if system in one.shown]
        over = [one.highest(system) / one.highest(one.best_stock()) for one in having]
        rows.append(
            {
                "system": system,
                "cells": len(having),
                "highest rate over the best stock, geometric mean": geometric_mean([max(it, 1e-3) for it in over]),
                "least": min(over),
                "most": max(over),
                **{f"at {share:g}": fmean(one.attainment(system, share) for one in having) for share in SHARES},
                **{
                    f"least goodput at {share:g}, of its peak till there": min(
                        one.kept(system, share) for one in having
                    )
                    for share in BEYOND
                },
            }
        )
    return rows


def summary(found: Sequence[Found]) -> Row:
    """Return what the demands on fusion ask for."""
    cells = usable(found)
    gains, leads = [one.gain() for one in cells], [one.least_lead()[0] for one in cells]
    regrets = [regret for one in cells if (regret := one.regret()) is not None]
    return {
        "cells": len(cells),
        "left out": [one.cell.name for one in found if one not in cells],
        "gain": geometric_mean(gains),
        "least gain": min(gains),
        "cells with a gain below 1": sum(gain < 1 for gain in gains),
        "lost": sum(lead < -LOST for lead in leads),
        "least lead, points": 100 * min(leads),
        "goodput falls below 90 % at 2": _below(cells, 2.0),
        "goodput falls below 90 % at 3": _below(cells, 3.0),
        "median regret": median(regrets) if regrets else None,
    }


def _below(cells: Sequence[Found], share: float) -> int:
    return sum(one.kept(FUSION, share) < 0.9 for one in cells)


def details(found: Sequence[Found]) -> list[Row]:
    """Return every figure of every system, the mean of all seeds, to four digits."""
    digits: Callable[[float], float] = lambda value: float(f"{value:.4g}")  # noqa: E731
    return [
        {
            "cell": one.cell.name,
            **one.cell.objectives(),
            "capacities": one.capacities,
            "bounds": one.bounds,
            "systems": {
                name: {
                    "setting": one.settings[name],
                    "highest": [digits(seen.highest) for seen in seen_of],
                    **{key: [digits(one.mean(name, share, key)) for share in SHARES] for key in FIGURES},
                }
                for name, seen_of in one.shown.items()
                if seen_of
            },
        }
        for one in found
    ]
