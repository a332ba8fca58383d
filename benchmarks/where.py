#!/usr/bin/env python3
"""Where does disaggregation win, by model, SLO and load? Writes the result and the map of where.md.

    python benchmarks/where.py --traces DIR [--only b200 strict] [--minutes 4]
    python benchmarks/where.py --traces DIR --fusion-alone

Each place is a model on four workers, a workload and a TPOT objective, as in fusion's matrix (`fusion/cells.py` says
how traffic and objectives are made). The three stock systems have the best of their settings on the first half of the
trace. On the second half, each one's highest rate is found, and every system runs at three shares of the best of them.
It goes on where it was stopped, also after ``--minutes``. The result is written when all places are done, or with
``--so-far``, which names those that are not. After a change of fusion, `--fusion-alone` runs nothing else: all others
stay as they are in the last result, while their code is the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("fusion")))

import manifest
import search
import where_map
from cells import SHOWN, Cell, Hardware
from measure import command
from search import Memory, OutOfTimeError, Trial
from systems import STOCK, fusion, systems
from tables import FUSION
from where_map import LOADS, Row

from pdplugins.errors import PdpluginsError
from pdplugins.provenance import record

MODELS = {
    it.profile: it
    for it in (
        Hardware("h100/llama-3.1-70b-fp8", 2, 4),
        Hardware("a100/qwen2.5-14b", 1, 4),
        Hardware("h800/llama-3.1-8b", 1, 4),
        Hardware("h200/deepseek-r1", 8, 4),
        Hardware("h100/gpt-oss-120b", 2, 4),
        Hardware("h100/qwen3-235b-a22b-fp8", 4, 4),
        Hardware("b200/deepseek-r1-nvfp4", 4, 4),
    )
}
DENSE = ("h100/llama-3.1-70b-fp8", "a100/qwen2.5-14b", "h800/llama-3.1-8b")
WORKLOADS = ("conversation", "code")
OBJECTIVES = ("strict", "middle", "loose")
PLUGINS = ("fusion", "arrow", "dynaserve", "ampd", "dopd")
SEED = SHOWN[0]
RESULT = "where"
MEMORY = manifest.RESULTS / ".cells" / "where.jsonl"


class Place(Cell):
    """A cell on one of `MODELS`."""

    @property
    def on(self) -> Hardware:
        """Return the hardware."""
        return MODELS[self.hardware]


def places(folder: Path, only: Sequence[str] = ()) -> list[Place]:
    """Return the places whose name has all of `only` in it, or all."""
    every = [Place(model, load, slo, folder) for slo in OBJECTIVES for load in WORKLOADS for model in MODELS]
    return [place for place in every if all(word in place.name for word in only)]


def examined(place: Place, memory: Memory) -> Row:
    """Run everything in one place. Its capacity is 0 where no stock system serves 90 % at any rate."""
    tried = systems(place)
    tuned = {name: search.tuned(place, name, tried[name], memory) for name in STOCK}
    highest = {name: _highest(place, name, one, memory) for name, one in tuned.items()}
    capacity = max(highest.values())
    slo, on = place.objectives(), place.on
    row: Row = {
        "model": place.hardware, "tp": on.tp, "experts": place.hardware not in DENSE, "workload": place.workload,
        "slo": place.slo, **slo, "capacity_rps": capacity, "highest_rps": highest,
    }  # fmt: skip
    if not capacity:
        return row
    chosen = {name: (one.setting, one.config) for name, one in tuned.items()}
    chosen |= {name: next(iter(tried[name].items())) for name in PLUGINS}
    duration_s = place.lasts_s(capacity)
    attainment = {
        name: [
            Trial(place, config, duration_s, memory, search.policies(name)).at(load * capacity, SEED).attainment
            for load in LOADS
        ]
        for name, (_, config) in chosen.items()
    }
    settings = {name: setting for name, (setting, _) in chosen.items()}
    return {**row, "settings": settings, "attainment": attainment, **where_map.verdicts(highest, attainment)}


def with_fusion(place: Place, memory: Memory) -> Row:
    """Run fusion in one place. The others are as in the last result; all run in a place that is not there."""
    names = {"model": place.hardware, "workload": place.workload, "slo": place.slo}
    row: Row | None = next((row for row in manifest.read(RESULT)["rows"] if names.items() <= row.items()), None)
    if row is None:
        return examined(place, memory)
    trial = Trial(place, fusion(place), place.lasts_s(row["capacity_rps"]), memory, search.policies(FUSION))
    points = [trial.at(load * row["capacity_rps"], SEED).attainment for load in LOADS]
    attainment = {**row["attainment"], FUSION: points}
    return {**row, "attainment": attainment, **where_map.verdicts(row["highest_rps"], attainment)}


def _highest(place: Place, name: str, one: search.Tuned, memory: Memory) -> float:
    """Return the highest rate that a tuned system serves on the half that is shown; the search begins a bit below."""
    if not one.rate:
        return 0.0
    trial = Trial(place, one.config, place.lasts_s(one.rate), memory, search.policies(name))
    return float(f"{search.climbed(lambda rate: trial.reaches(rate, SEED), 0.0, 1.6 * one.rate):.4g}")


def told(row: Row) -> Iterator[str]:
    """Yield what a terminal shows of one place."""
    yield (
        f"{row['model']} {row['workload']} {row['slo']}: {row['ttft_s']:g} s, {1e3 * row['tpot_s']:g} ms; "
        + ", ".join(f"{name} {rate:.4g}" for name, rate in row["highest_rps"].items())
    )
    for name, points in row.get("attainment", {}).items():
        yield f"  {name:28s} {row['settings'][name]:22s} {' '.join(f'{point:.3f}' for point in points)}"


def result(rows: Sequence[Row], not_run: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return what the result file holds."""
    served = [row for row in rows if row["capacity_rps"]]
    return {
        **record("simulated", seed=SEED, command=command()),
        "loads": list(LOADS),
        "rows": served,
        "left_out": [f"{row['model']} {row['workload']} {row['slo']}" for row in rows if not row["capacity_rps"]],
        "not_run": list(not_run),
        "summary": where_map.summary(served),
    }


def cell(folder: str) -> dict[str, list[Row]]:
    """Return one row, computed again: benchmarks/equality.py."""
    row = examined(Place(DENSE[0], "conversation", "strict", Path(folder).resolve()), Memory())
    return {RESULT: [{key: row[key] for key in ("model", "workload", "slo", "capacity_rps", "split_gain")}]}


def main() -> int:
    """Run what is not there yet; return 75 (try again) where the time was over first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder that holds the traces")
    parser.add_argument("--only", nargs="+", default=[], help="parts of the names of the places; nothing is published")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then; go on when called again")
    parser.add_argument("--fusion-alone", action="store_true", help="take the others from the last result")
    parser.add_argument("--so-far", action="store_true", help="publish what is done, and name the places that are not")
    options = parser.parse_args()
    memory = Memory(MEMORY, time.monotonic() + 60 * options.minutes)
    rows, not_run = [], []
    try:
        if options.fusion_alone:
            manifest.check_only(RESULT, FUSION)
        for place in places(options.traces.resolve(), options.only):
            try:
                rows.append((with_fusion if options.fusion_alone else examined)(place, memory))
            except OutOfTimeError:
                not_run.append(place.name)
            else:
                print("\n".join(told(rows[-1])), flush=True)
    except PdpluginsError as error:
        print(f"where.py: {error}", file=sys.stderr)
        return 2
    if rows and not options.only and (options.so_far or not not_run):
        manifest.write(RESULT, result(rows, not_run))
        where_map.draw(rows)
    if not_run:
        print(f"the time is over, {len(not_run)} places are left; call it again to go on")
    return 75 if not_run else 0


if __name__ == "__main__":
    sys.exit(main())
