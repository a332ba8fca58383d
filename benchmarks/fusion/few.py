"""What the studies on a few cells of fusion's matrix share: the cells, their capacity, and a run of several seeds."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import manifest
import search
from cells import SHOWN, Cell, Config
from matrix import RESULT
from search import Memory, OutOfTimeError, Seen, Trial
from systems import stock
from tables import FUSION

from pdplugins.errors import PdpluginsError

FEW = (
    ("h100", "conversation", "middle"),
    ("a100", "code", "strict"),
    ("h800", "agents", "middle"),
    ("h100", "mixed", "strict"),
    ("a100", "mooncake", "middle"),
    ("h800", "conversation", "strict"),
)
"""Each profile twice, each workload, and two of the three TPOT objectives."""


@dataclass(frozen=True)
class Yard:
    """One cell with the stock configurations that the matrix tuned for it, and its capacity with each seed."""

    cell: Cell
    stock: dict[str, Config]
    capacities: list[float]
    memory: Memory

    def seen(self, config: Config, policies: Sequence[str]) -> list[Seen]:
        """Run a system with each seed."""
        return [search.seen(trial, capacity, seed) for trial, capacity, seed in self._trials(config, policies)]

    def at_capacity(self, config: Config, policies: Sequence[str]) -> float:
        """Return the mean attainment of a system at the capacity of each seed, as `seen` has it."""
        runs = (search.up_to(*trial, most=1.0)[-1] for trial in self._trials(config, policies))
        return fmean(run.attainment for run in runs)

    def _trials(self, config: Config, policies: Sequence[str]) -> Iterator[tuple[Trial, float, int]]:
        for seed, capacity in zip(SHOWN, self.capacities, strict=False):
            yield Trial(self.cell, config, self.cell.lasts_s(capacity), self.memory, tuple(policies)), capacity, seed


def yards(folder: Path, seeds: int, memory: Memory) -> list[Yard]:
    """Return the few cells. Raises PdpluginsError where the matrix is older than the code of its stock systems."""
    manifest.check_only(RESULT, FUSION)
    last = {row["cell"]: row for row in manifest.read(RESULT)["cells"]}
    found = []
    for names in FEW:
        cell = Cell(*names, folder)
        row = last[cell.name]
        tuned = {name: tried[row["systems"][name]["setting"]] for name, tried in stock(cell).items()}
        found.append(Yard(cell, tuned, row["capacities"][:seeds], memory))
    return found


def mean(runs: Sequence[Seen], share: float, key: str = "attainment") -> float:
    """Return the mean of a figure over the seeds."""
    return fmean(getattr(seen.points[search.SHARES.index(share)], key) for seen in runs)


def highest(runs: Sequence[Seen]) -> float:
    """Return the mean highest rate, as a share of the capacity."""
    return fmean(seen.highest for seen in runs)


def study(about: str | None, publish: Callable[[list[Yard], int], None]) -> int:
    """Run a study from the command line; return 75 (try again) where the time was over first."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder that holds the traces")
    parser.add_argument("--seeds", type=int, default=len(SHOWN), help="so many of these")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then; go on when called again")
    options = parser.parse_args()
    memory = Memory(search.MEMORY, time.monotonic() + 60 * options.minutes)
    try:
        publish(yards(options.traces.resolve(), options.seeds, memory), options.seeds)
    except OutOfTimeError:
        print("stopped: the time is over; call it again to go on")
        return 75
    except PdpluginsError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 2
    return 0
