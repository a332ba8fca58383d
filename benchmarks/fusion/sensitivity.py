#!/usr/bin/env python3
"""Fusion deceived, on a few cells of its matrix, against co-located least-loaded with its best chunk.

python benchmarks/fusion/sensitivity.py --traces DIR [--seeds 1] [--minutes 4]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from statistics import fmean

import stale
from cells import SHOWN, Config
from experiment import publish
from few import Yard, mean, study, yards
from search import MEMORY, SHARES, Memory
from systems import STOCK, fusion
from tables import Row

from pdplugins.files import write_whole
from pdplugins.resources import data_dir

WRONG = 0.3
"""By what share the profile is wrong."""
SLOW = 2.0
PRIOR_TOKENS = 4096
"""A wrong guess of the output length, before any is known."""
SHOWN_AT = (0.8, 1.0, 1.5)
BOTH = ("fusion", "stock")
"""Packages whose code a run of fusion depends on."""


def scaled(profile: str, factor: float) -> str:
    """Return the path of a profile whose times are multiplied by `factor`."""
    data = json.loads((data_dir("profiles") / f"{profile}.json").read_text(encoding="utf-8"))
    for phase in ("prefill", "decode"):
        data["scale"][phase] *= factor
    path = MEMORY.parent / f"{profile.replace('/', '-')}-{factor:g}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(data))
    return str(path)


def believes(config: Config, factor: float) -> Config:
    """Return a config whose policies take steps for `factor` times as long as they are."""
    true = config["deployment"]["profile"]
    changed = deepcopy(config)
    changed["deployment"]["profile"] = scaled(true, factor)
    changed["simulation"] |= {"prefill_profile": true, "decode_profile": true}
    return changed


def one_slow(config: Config) -> Config:
    """Return a config in which one worker takes `SLOW` times as long; nobody says so."""
    changed = deepcopy(config)
    pools = changed["deployment"]
    pools["decode"]["replicas"] -= 1
    slow = {"role": "decode", "tp": pools["decode"]["tp"], "profile": scaled(pools["profile"], SLOW)}
    changed["simulation"] = {**changed.get("simulation", {}), "extra": [slow]}
    return changed


def deceits(yard: Yard) -> Iterator[tuple[str, Config, Config]]:
    """Yield each deceit, fusion under it, and the co-located configuration under it."""
    ours, theirs = fusion(yard.cell), yard.stock[STOCK[0]]
    yield "none", ours, theirs
    yield f"profile: steps take {1 + WRONG:g} times what they take", believes(ours, 1 + WRONG), theirs
    yield f"profile: steps take {1 - WRONG:g} times what they take", believes(ours, 1 - WRONG), theirs
    yield f"lengths: {PRIOR_TOKENS} output tokens at first", fusion(yard.cell, prior_tokens=PRIOR_TOKENS), theirs
    old = {**theirs["router"], "name": f"old-{theirs['router']['name']}"}
    if theirs["router"]["name"] == "least-loaded":
        yield f"loads: {stale.AGE_S:g} s old", {**ours, "bundle": {"name": "old-fusion"}}, {**theirs, "router": old}
    yield f"one worker is {SLOW:g} times as slow", one_slow(ours), one_slow(theirs)


def cell(folder: str) -> dict[str, list[Row]]:
    """Return a part of one row, computed again at the published capacities: benchmarks/equality.py."""
    deceit, pairs = f"one worker is {SLOW:g} times as slow", []
    for yard in yards(Path(folder).resolve(), len(SHOWN), Memory()):
        _, ours, theirs = next(one for one in deceits(yard) if one[0] == deceit)
        pairs.append((yard.at_capacity(ours, BOTH), yard.at_capacity(theirs, ("stock",))))
    fusions, stocks = (fmean(of) for of in zip(*pairs, strict=True))
    return {"fusion-sensitivity": [{"deceit": deceit, "fusion at 1": fusions, "co-located at 1": stocks}]}


def show(yards: list[Yard], seeds: int) -> None:
    """Run all deceits and write the result."""
    stale.add()
    leads: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for yard in yards:
        for deceit, ours, theirs in deceits(yard):
            fusions, stocks = yard.seen(ours, BOTH), yard.seen(theirs, ("stock",))
            pairs = [(mean(fusions, share), mean(stocks, share)) for share in SHARES]
            leads.setdefault(deceit, {})[yard.cell.name] = pairs
    rows = []
    for deceit, cells in leads.items():
        worst = {name: min(ours - theirs for ours, theirs in pairs) for name, pairs in cells.items()}
        where = min(worst, key=lambda name: worst[name])
        columns = {}
        for share in SHOWN_AT:
            pairs = [cell[SHARES.index(share)] for cell in cells.values()]
            columns[f"fusion at {share:g}"] = fmean(ours for ours, _ in pairs)
            columns[f"co-located at {share:g}"] = fmean(theirs for _, theirs in pairs)
        rows.append({"deceit": deceit, **columns, "least lead, points": 100 * worst[where], "in": where})
    publish(
        "fusion", "sensitivity", rows, title="Fusion deceived, against co-located least-loaded", seed=SHOWN[0],
        published="none.",
        notes=(
            f"Cells: {', '.join(yard.cell.name for yard in yards)}. Seeds: {', '.join(map(str, SHOWN[:seeds]))}. "
            "Capacity, traffic and rates are those of the matrix; attainment is the mean of the cells, and the least "
            "lead is over all cells and rates.",
            "Co-location has its best chunk and uses no profile, so only old loads and the slow worker touch it. "
            "Fusion is never told an output length; here its first guess is wrong too.",
            "Old loads: routers and flow policies see reports of a second ago, without what they have sent since. The "
            "reports say when they were made, which only fusion uses.",
        ),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(study(__doc__, show))
