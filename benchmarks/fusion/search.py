"""Runs that are kept, the choice of settings, and the search for the highest rate.

A run is kept in ``results/.cells/fusion.jsonl`` under a hash of its config, its requests and the code that it runs. A
script that was stopped goes on where it was, and a change of one policy repeats the runs of that policy alone.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import fingerprint
import manifest
import numpy as np
from cells import TUNED, Cell, Config, Trace
from measure import run
from systems import POLICIES, STOCK

from pdplugins import metrics
from pdplugins.config import parse
from pdplugins.studies.bound.api import bound_of
from pdplugins.types import Slo

TARGET = 0.9
"""Attainment of the highest rate."""
SHARES = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
"""Rates at which everything is run, as shares of the capacity."""
BELOW = (0.8,)
"""Rates below capacity, at which regret is computed."""
HALVINGS = 3
"""Of the space between two of these rates, in search of the highest rate."""
CLIMB = 1.3
WORTH = 1.02
"""A setting is better where it reaches a rate higher by this factor."""
HOPELESS = 0.15
"""A system below this attainment is not run at higher rates: its last run stands there too, which favours it."""
LOWEST = 1 / 64
"""Share of the guessed capacity below which no setting is looked for."""
MEMORY = manifest.RESULTS / ".cells" / "fusion.jsonl"


class Run(NamedTuple):
    """What the clients got of one run, and what it drew."""

    attainment: float
    whole: float
    """Attainment with what came at the beginning."""
    by_tokens: float
    """Share of the prompt and output tokens that belong to requests inside both SLOs."""
    ttft_p99_s: float
    ttft_worst_s: float
    watts: float
    """Mean draw of all GPUs."""


class OutOfTimeError(Exception):
    """The time that the script may take is over."""


@dataclass
class Memory:
    """Runs that were made, by a hash of all that they depend on."""

    file: Path | None = None
    until: float = float("inf")
    """Time of the monotonic clock from which no run begins."""
    known: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            for line in self.file.read_text(encoding="utf-8").splitlines():
                self.known.update(json.loads(line))

    def of(self, key: object, compute: Callable[[], Sequence[float]]) -> list[float]:
        """Return the figures of a run, remembered or computed. Raises OutOfTimeError."""
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
        if name not in self.known:
            if time.monotonic() > self.until:
                raise OutOfTimeError
            self.known[name] = [float(f"{value:.5g}") for value in compute()]
            if self.file is not None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({name: self.known[name]}) + "\n")
        return self.known[name]


@cache
def code(parts: tuple[str, ...], profile: str) -> str:
    """Return one fingerprint of the simulator, the traffic, some policies, a profile, and what is computed of a run."""
    simulated = ("contracts", "perf", "runtime", "simulator", "workloads")
    files = {path for part in (*simulated, *parts) for path in manifest.files_of(part)}
    here = {Path(__file__).with_name(name) for name in ("cells.py", "search.py", "stale.py")}
    return fingerprint.of(
        {*files, *here, manifest.HERE / "measure.py", manifest.ROOT / "profiles" / f"{profile}.json"}, manifest.ROOT
    )


def digest(trace: Trace) -> str:
    """Return one fingerprint of the requests: the files that they come from may be others."""
    return hashlib.sha256(repr(trace).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Trial:
    """A system with its settings on one cell, for a fixed time at any rate."""

    cell: Cell
    config: Config
    duration_s: float
    memory: Memory
    policies: tuple[str, ...] = ("stock",)

    def at(self, rate: float, seed: int) -> Run:
        """Return the run at a rate."""
        rate = float(f"{rate:.6g}")
        trace = self.cell.traffic(rate, self.duration_s, seed)
        window_s = (self.cell.settles_s(), self.duration_s)
        key = [self.config, code(self.policies, self.cell.on.profile), digest(trace), window_s]
        return Run(*self.memory.of(key, lambda: measured(self.config, trace, window_s)))

    def reaches(self, rate: float, seed: int) -> bool:
        """Tell whether it serves this rate."""
        return self.at(rate, seed).attainment >= TARGET


def measured(config: Config, trace: Trace, window_s: tuple[float, float]) -> Run:
    """Return the figures of one run, of what arrives in a window of it."""
    result, outcome = run(config, trace)
    begin_s, end_s = window_s
    records = [record for record in outcome.records if begin_s <= record.arrival_s <= end_s] or outcome.records
    never = float("inf")
    ttft_s = np.array([never if r.error or r.ttft_s is None else r.ttft_s for r in records])
    tpot_s = np.array([never if r.error or r.tpot_s is None else r.tpot_s for r in records])
    good = metrics.inside(ttft_s, tpot_s, Slo(**config["slo"]))
    answered_s = ttft_s[np.isfinite(ttft_s)]
    tokens = np.array([record.isl_tokens + record.osl_tokens for record in records])
    return Run(
        attainment=float(good.mean()),
        whole=result.metrics.slo_attainment or 0.0,
        by_tokens=float(tokens[good].sum() / tokens.sum()),
        ttft_p99_s=float(np.percentile(answered_s, 99)) if answered_s.size else 0.0,
        ttft_worst_s=float(answered_s.max(initial=0.0)),
        watts=(outcome.energy_j or 0.0) / outcome.duration_s,
    )


@dataclass(frozen=True)
class Tuned:
    """The settings of a system that serve the highest rate of the traffic for tuning."""

    setting: str
    config: Config
    rate: float


def tuned(cell: Cell, system: str, candidates: Mapping[str, Config], memory: Memory) -> Tuned:
    """Return the best settings. A setting that does not reach the best rate so far costs one run."""
    best = Tuned(*next(iter(candidates.items())), 0.0)
    if len(candidates) == 1 and system not in STOCK:
        return best
    guess = cell.guess()
    for setting, config in candidates.items():
        trial = Trial(cell, config, cell.lasts_s(guess), memory, policies(system))
        found = climbed(lambda rate, trial=trial: trial.reaches(rate, TUNED), best.rate * WORTH, guess, 2)
        if found > best.rate:
            best = Tuned(setting, config, found)
    return best


def climbed(reaches: Callable[[float], bool], least: float, guess: float, halvings: int = HALVINGS) -> float:
    """Return about the highest rate that is reached; 0 where `least` is not, or nothing above a tiny one."""
    rate = least or guess / 2
    while not reaches(rate):
        if least or rate / 2 < guess * LOWEST:
            return 0.0
        rate /= 2
    while reaches(rate * CLIMB):
        rate *= CLIMB
    low, high = rate, rate * CLIMB
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if reaches(middle) else (low, middle)
    return low


def policies(system: str) -> tuple[str, ...]:
    """Return the parts of the code that a system runs beside the simulator."""
    return POLICIES.get(system, ("stock",))


@dataclass(frozen=True)
class Seen:
    """What one system does on one cell with one seed."""

    points: tuple[Run, ...]
    """At each of `SHARES`."""
    highest: float
    """Highest rate with `TARGET` attainment, as a share of the capacity."""


def seen(trial: Trial, capacity: float, seed: int) -> Seen:
    """Run one system at all rates, and find the highest one that it serves."""
    points = up_to(trial, capacity, seed)
    return Seen(tuple(points), _highest(trial, capacity, seed, points))


def up_to(trial: Trial, capacity: float, seed: int, most: float = SHARES[-1]) -> list[Run]:
    """Return a system's runs at the rates up to `most`, a share of the capacity."""
    points: list[Run] = []
    for share in (share for share in SHARES if share <= most):
        hopeless = "fusion" not in trial.policies and points and points[-1].attainment < HOPELESS
        points.append(points[-1] if hopeless else trial.at(share * capacity, seed))
    return points


def _highest(trial: Trial, capacity: float, seed: int, points: Sequence[Run]) -> float:
    """Halve the space between the last share that is served and the next one; the rest is a line."""
    runs = [(0.0, 1.0), *zip(SHARES, (point.attainment for point in points), strict=True)]
    misses = next((index for index, (_, attainment) in enumerate(runs) if attainment < TARGET), None)
    if misses is None:
        return runs[-1][0]
    (low, above), (high, below) = runs[misses - 1], runs[misses]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        attainment = trial.at(middle * capacity, seed).attainment
        if attainment >= TARGET:
            low, above = middle, attainment
        else:
            high, below = middle, attainment
    return low + (high - low) * (above - TARGET) / max(above - below, 1e-9)


def capacity(cell: Cell, stock: Mapping[str, Tuned], seed: int, memory: Memory) -> float:
    """Return the highest rate of the stock configurations on the traffic of a seed; 0 where none serves any."""
    best = 0.0
    for name, setting in sorted(stock.items(), key=lambda item: -item[1].rate):
        if setting.rate:
            trial = Trial(cell, setting.config, cell.lasts_s(setting.rate), memory, policies(name))
            reached = climbed(lambda rate, trial=trial: trial.reaches(rate, seed), best * WORTH, cell.guess())
            best = max(best, reached)
    return best


def bounds(cell: Cell, capacity: float, seed: int, memory: Memory) -> list[float]:
    """Return what no policy can beat at the rates below capacity; nothing for sessions, where the bound is loose."""
    config, duration_s = cell.config(), cell.lasts_s(capacity)

    def at(rate: float) -> float:
        trace = cell.traffic(rate, duration_s, seed)
        key = ["bound", config, code(("bound",), cell.on.profile), digest(trace)]
        return memory.of(key, lambda: [bound_of(parse(config), trace).slo_attainment])[0]

    return [] if cell.sessions else [at(float(f"{share * capacity:.6g}")) for share in BELOW]
