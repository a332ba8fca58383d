#!/usr/bin/env python3
"""Fusion's matrix up to its capacity once more, with runs that are longer: chance decides less there.

    python benchmarks/fusion/longer.py --traces DIR [--only h100 middle] [--minutes 4]

Beside fusion run the systems that were best at a rate in the matrix, with their settings there. The capacity is found
anew, as a longer run sees other requests. It goes on where it was stopped; `--only` shows a part and publishes nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import manifest
import search
import tables
from cells import SHOWN, Cell, Config
from experiment import publish
from matrix import RESULT, cells, last_of
from search import Memory, OutOfTimeError, Trial
from systems import STOCK, systems
from tables import FUSION, LOST, Row

from pdplugins.errors import PdpluginsError

TIMES = 3.0
"""How many times as long as in the matrix a run is."""
SHARES = (0.5, 0.8, 1.0)
RIVALS = 3
"""Systems beside fusion at each rate: those that were best there in the matrix."""
NEAR = 0.85
"""Share of the matrix's capacity at which the search for the new one begins."""
NAME = "fusion-longer"


@dataclass(frozen=True)
class Longer:
    """One cell of the matrix with longer runs."""

    cell: Cell
    last: Row
    """What the matrix says of it."""
    tried: dict[str, dict[str, Config]]
    memory: Memory

    def row(self) -> Row:
        """Return the row of the table. Raises OutOfTimeError."""
        capacities = [self.capacity(seed) for seed in range(len(SHOWN))]
        found: Row = {"cell": self.cell.name, "capacity, req/s": fmean(capacities)}
        leads = {}
        for share in SHARES:
            ours = self.at(FUSION, share, capacities)
            theirs = {name: self.at(name, share, capacities) for name in self.rivals(share)}
            best = max(theirs, key=lambda name: theirs[name])
            leads[share] = lead = 100 * (ours - theirs[best])
            found |= {f"fusion at {share:g}": ours, f"lead at {share:g}": lead, f"best other at {share:g}": best}
        there = min(leads, key=lambda share: leads[share])
        return found | {"least lead, points": leads[there], "there": there, "capacities": capacities}

    def rivals(self, share: float) -> list[str]:
        """Return the systems that were best at a rate in the matrix."""
        index = search.SHARES.index(share)
        others = {name: it["attainment"][index] for name, it in self.last["systems"].items() if name != FUSION}
        return sorted(others, key=lambda name: -others[name])[:RIVALS]

    def capacity(self, number: int) -> float:
        """Return the highest rate that the best stock configuration of the matrix serves to 90 %, with a seed."""
        best = max(STOCK, key=lambda name: fmean(self.last["systems"][name]["highest"]))
        trial = self._trial(best, number)
        return search.climbed(
            lambda rate: trial.reaches(rate, SHOWN[number]), 0.0, 2 * NEAR * self.last["capacities"][number]
        )

    def at(self, name: str, share: float, capacities: Sequence[float]) -> float:
        """Return the mean attainment of a system at a share of the capacity of each seed."""
        return fmean(
            self._trial(name, number).at(share * capacity, SHOWN[number]).attainment
            for number, capacity in enumerate(capacities)
        )

    def _trial(self, name: str, number: int) -> Trial:
        config = self.tried[name][self.last["systems"][name]["setting"]]
        duration_s = TIMES * self.cell.lasts_s(self.last["capacities"][number])
        return Trial(self.cell, config, duration_s, self.memory, search.policies(name))


def longer(folder: Path, only: Sequence[str], memory: Memory) -> Iterator[Longer]:
    """Yield the cells. Raises PdpluginsError where the matrix is older than the code of the others in it."""
    manifest.check_only(RESULT, FUSION)
    for one in cells(folder, only):
        yield Longer(one, last_of(one), systems(one), memory)


def summary(rows: Sequence[Row]) -> Row:
    """Return what all cells say together."""
    least = [row["least lead, points"] for row in rows]
    return {
        "cells": len(rows),
        "lost": sum(lead < -100 * LOST for lead in least),
        "least lead, points": min(least),
        "mean lead": {f"{share:g}": fmean(row[f"lead at {share:g}"] for row in rows) for share in SHARES},
    }


def show(rows: Sequence[Row]) -> None:
    """Write the result."""
    publish(
        "fusion", "longer", [{key: row[key] for key in row if key != "capacities"} for row in rows],
        title="Fusion in every cell up to the capacity, with longer runs", seed=SHOWN[0], published="none.",
        notes=(
            f"Cells, seeds and settings are those of the matrix; a run is {TIMES:g} times as long. The capacity is "
            "found anew with the stock configuration that was best in the matrix.",
            f"The others at each rate: the {RIVALS} systems that were best there in the matrix.",
        ),
        more={"summary": summary(rows), "capacities": {row["cell"]: row["capacities"] for row in rows}},
    )  # fmt: skip


def cell(folder: str) -> dict[str, list[tables.Row]]:
    """Return a part of some rows, computed again at the published capacities: benchmarks/equality.py."""
    capacities, rows = manifest.read(NAME)["capacities"], []
    for one in longer(Path(folder).resolve(), ("h100", "middle"), Memory()):
        at = {f"fusion at {share:g}": one.at(FUSION, share, capacities[one.cell.name]) for share in SHARES}
        rows.append({"cell": one.cell.name, **at})
    return {NAME: rows}


def main() -> int:
    """Run what is not there yet; return 75 (try again) where the time was over first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder that holds the traces")
    parser.add_argument("--only", nargs="+", default=[], help="words of the names of the cells; nothing is published")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then; go on when called again")
    options = parser.parse_args()
    memory, rows = Memory(search.MEMORY, time.monotonic() + 60 * options.minutes), []
    try:
        for one in longer(options.traces.resolve(), options.only, memory):
            rows.append(one.row())
            print(rows[-1], flush=True)
    except OutOfTimeError:
        print("stopped: the time is over; call it again to go on")
        return 75
    except PdpluginsError as error:
        print(f"longer.py: {error}", file=sys.stderr)
        return 2
    if not options.only:
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
