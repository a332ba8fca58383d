#!/usr/bin/env python3
"""DOPD's planner on traffic that nobody tuned on: fixed pools, Dynamo's planners and a clairvoyant scaler beside it.

    python benchmarks/arena/arena.py --traces DIR --publish              run what is not there yet, write the page
    python benchmarks/arena/arena.py --half tuned --host sim --only ramp --set hold_s=60

It goes on where it was stopped, also after `--minutes`: each cell keeps its runs in a file of its own. It shows
attainment at GPU-hours, and the points above or below the front of fixed pools.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import manifest
import pages
from rich.progress import track
from rivals import STOCK
from standings import Front, Standing, best, gain, of_group, score
from traffic import FAMILIES, SEEDS, SHOWN, TUNED, Workload, of_half
from trials import PLACES, Cell, OutOfTimeError, Row, trials

from pdplugins.errors import PdpluginsError
from pdplugins.settings import parse_setting

Stock = Sequence[tuple[str, Mapping[str, Any]]]
ROUTERS = ("round_robin", "kv_router")


def cells(options: argparse.Namespace, half: str) -> list[Cell]:
    """Return the cells that the options ask for."""
    until = time.monotonic() + 60 * options.minutes
    return [
        Cell(workload, seed, place, router, options.host, options.traces, until)
        for router in options.routers
        for place in options.places
        for workload in _asked(options.only, half)
        for seed in workload.seeds[: options.seeds]
    ]


def _asked(only: Sequence[str], half: str) -> list[Workload]:
    every = of_half(TUNED if half == TUNED else SHOWN)
    return [workload for workload in every if not only or workload.family in only]


def examined(cell: Cell, stock: Stock, groups: Sequence[str], dopd: Mapping[str, Any]) -> list[Row] | str | None:
    """Return all runs of a cell; None where the time was over first, a message where it cannot run."""
    try:
        return [cell.run(trial) for trial in trials(cell, stock, dopd) if not groups or trial.group in groups]
    except OutOfTimeError:
        return None
    except PdpluginsError as error:
        return f"{cell.name}: {error}"


def run_all(todo: Sequence[Cell], options: argparse.Namespace, stock: Stock) -> list[tuple[Cell, list[Row]]]:
    """Run cells side by side. Raises OutOfTimeError where one was not finished, PdpluginsError where one cannot run."""
    do = partial(examined, stock=stock, groups=options.groups, dopd=options.settings)
    with ProcessPoolExecutor(options.jobs) as pool:
        shown = track(pool.map(do, todo), total=len(todo), disable=not sys.stderr.isatty())
        found = list(zip(todo, shown, strict=True))
    for _, rows in found:
        if isinstance(rows, str):
            raise PdpluginsError(rows)
    if any(rows is None for _, rows in found):
        raise OutOfTimeError
    return [(cell, rows) for cell, rows in found if isinstance(rows, list)]


def chosen(options: argparse.Namespace) -> tuple[str, Mapping[str, Any]]:
    """Return the stock planner that was best on the tuning half, at the first place and router, with its first seed."""
    given = argparse.Namespace(**{**vars(options), "only": [], "seeds": 1, "groups": ["fixed", "stock"]})
    given.places, given.routers, given.host = ["30 s"], ["round_robin"], "replay"
    scores: dict[str, list[float]] = {}
    for _, rows in run_all(cells(given, TUNED), given, STOCK):
        for row, (name, settings) in zip(of_group(rows, "stock"), STOCK, strict=True):
            scores.setdefault(json.dumps([name, settings]), []).append(score(rows, row))
    name, settings = json.loads(best(scores))
    return name, settings


def last_chosen() -> tuple[str, Mapping[str, Any]]:
    """Return the setting of Dynamo's planner that was chosen last. Raises PdpluginsError where its code has changed."""
    manifest.check_only("arena-reporting", *manifest.DOPD)
    name, settings = manifest.read("arena-reporting")["stock"]
    return name, settings


def cell(folder: str) -> dict[str, list[Row]]:
    """Return a published row, computed again; ``equality.py`` calls it."""
    one = Cell(Workload("steady", SHOWN), SEEDS[SHOWN][0], "30 s", "round_robin", "replay", Path(folder))
    name, settings = manifest.read("arena-reporting")["stock"]
    return {"arena-reporting": [pages.line(summary(one, [one.run(it) for it in trials(one, [(name, settings)], {})]))]}


def told(cell: Cell, rows: Sequence[Row]) -> Iterator[str]:
    """Yield what a terminal shows of one cell."""
    fixed, ceiling = Front.of(of_group(rows, "fixed")), Front.of(of_group(rows, "clairvoyant"))
    yield cell.name
    for row in rows:
        if row["group"] in ("dopd", "stock"):
            it = Standing.of(row, fixed)
            share = gain(it.attainment, it.gpu_hours, fixed, ceiling)
            yield (
                f"  {row['label'][:60]:60s} {it.attainment:5.1f} % @ {it.gpu_hours:5.2f}  {it.above:+6.1f} points, "
                f"{it.saved:+4.0%} saved, {share:.0%} of the ceiling's saving"
            )


def summary(cell: Cell, rows: Sequence[Row]) -> Row:
    """Return one row of the result: what everybody gets in a cell."""
    fixed, ceiling = Front.of(of_group(rows, "fixed")), Front.of(of_group(rows, "clairvoyant"))
    own = Standing.of(of_group(rows, "dopd")[0], fixed)
    rivals = [(Standing.of(row, fixed), row["label"]) for row in of_group(rows, "stock")]
    stock = max(rivals, key=lambda it: it[0].above, default=None)
    row: Row = {
        "family": cell.workload.family, "seed": cell.seed, "place": cell.place, "router": cell.router,
        "attainment": own.attainment, "gpu_hours": own.gpu_hours, "front": own.front, "front_gpu_hours": own.price,
        "above": own.above, "saved": own.saved, "ceiling": ceiling.at(own.gpu_hours),
        "ceiling_gpu_hours": ceiling.price(own.attainment),
        "gain": gain(own.attainment, own.gpu_hours, fixed, ceiling),
    }  # fmt: skip
    if stock is not None:
        row |= {"stock": stock[1], "stock_attainment": stock[0].attainment, "stock_gpu_hours": stock[0].gpu_hours,
                "stock_above": stock[0].above}  # fmt: skip
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=os.environ.get("TRACES"), help="folder that holds the traces")
    parser.add_argument("--half", choices=(TUNED, SHOWN), default=SHOWN, help="what to run (shown)")
    parser.add_argument("--only", nargs="+", default=[], choices=FAMILIES, metavar="FAMILY", help="these families")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES), help="these deployments")
    parser.add_argument(
        "--routers", nargs="+", choices=ROUTERS, default=list(ROUTERS), help="these routers of Dynamo's"
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS[SHOWN]), help="the first so many")
    parser.add_argument("--host", choices=("replay", "sim"), default="replay", help="Dynamo's replay, or our simulator")
    parser.add_argument("--groups", nargs="+", default=[], help="only fixed, stock, dopd, clairvoyant")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of dopd")
    parser.add_argument("--chosen-before", action="store_true", help="Dynamo's planner with the setting chosen last")
    parser.add_argument("--publish", action="store_true", help="write the result and the page")
    parser.add_argument("--keep", action="store_true", help="with what was published of other cells")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then; go on when called again")
    options = parser.parse_args()
    options.traces = options.traces and Path(options.traces).resolve()
    if options.publish and (options.half != SHOWN or options.host != "replay" or options.groups or options.set):
        parser.error("--publish: only the whole shown half in Dynamo's replay, with DOPD as shipped, is published")
    if options.keep and not (options.publish and options.chosen_before):
        parser.error("--keep: needs --publish, and --chosen-before, so that all cells have the same rival")
    settings = [parse_setting(text) for text in options.set]
    options.settings = {".".join(it.path): it.value for it in settings}
    return options


def main() -> int:
    """Run what is not there yet; return 75 (try again) where the time was over first."""
    options = arguments()
    rivals = options.host == "replay" and (not options.groups or "stock" in options.groups)
    try:
        stock = STOCK
        if rivals and options.half == SHOWN:
            stock = [last_chosen() if options.chosen_before else chosen(options)]
        if options.keep:
            manifest.check_only("arena-reporting")
        found = run_all(cells(options, options.half), options, stock)
    except OutOfTimeError:
        print("stopped: the time is over; call it again to go on")
        return 75
    except PdpluginsError as error:
        print(f"arena.py: {error}", file=sys.stderr)
        return 2
    for cell, rows in found:
        print("\n".join(told(cell, rows)))
    if options.publish:
        rows = [summary(cell, rows) for cell, rows in found]
        pages.publish(rows, stock[0], manifest.read("arena-reporting") if options.keep else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
