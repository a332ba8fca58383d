"""The arena's result file and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiment import publish as published
from traffic import SEEDS, SHOWN, SMOOTH_S, TUNED
from trials import PLACES, Row

LEVEL = 1.0
"""Points within which two count as level."""
NOTES = (
    "Attainment @ GPU-hours. *Fixed pools there*: what the front of fixed pools attains at the GPU-hours of `dopd`, "
    "and in brackets the points of `dopd` above it; *for the same*: what that front costs at the attainment of `dopd`. "
    "Points of Dynamo's planner are those above the front at its own GPU-hours.",
    f"Everything is the half that was not tuned on: the `{SHOWN}` member of each family in [traffic.py](traffic.py), "
    f"with odd random seeds. The `{TUNED}` members with even seeds chose the setting of Dynamo's planner, and how "
    "`dopd` follows rises; its other defaults are older than the arena.",
    f"A smooth trace has the requests of the recorded one and its rates over {SMOOTH_S:.0f} s, with Poisson arrivals.",
    "The clairvoyant scaler knows the whole trace and requests each worker one start-up before it is needed: the front "
    "of five plans. *Share*: how much of the GPU-hours that it saves over fixed pools `dopd` saves, at its attainment.",
    "All scalers start with the pools that are right for the first minute at 60 % utilisation, at least 2P1D; fixed "
    "pools are there from the start. Every number is simulated by Dynamo's offline replay.",
)


def publish(
    cells: Sequence[Row], stock: tuple[str, Mapping[str, Any]], before: Mapping[str, Any] | None = None
) -> None:
    """Write the result and its table.

    :param cells: their summaries.
    :param stock: the planner of Dynamo's that was chosen.
    :param before: the result so far, whose other cells are kept; None: there are none.
    """
    earlier: list[str] = []
    if before is not None:
        now = set(map(_place, cells))
        kept = [cell for cell in before["cells"] if _place(cell) not in now]
        cells = [*kept, *cells]
        earlier = [*before.get("earlier", ()), f"`{before['command']}`, commit {before['commit']}"]
    name, settings = stock
    said = ", ".join(f"{key}={value}" for key, value in settings.items())
    used = list(dict.fromkeys(cell["place"] for cell in cells))
    places = "; ".join(
        f"{name}: start-up {PLACES[name].startup_s:g} s, decode batches of {PLACES[name].max_batch}" for name in used
    )
    published(
        "arena", "reporting", [line(cell) for cell in cells], title="Traffic that nobody tuned on",
        seed=SEEDS[SHOWN][0],
        published="no such table.",
        notes=[*NOTES, f"Dynamo's planner: {name}, {said}.", f"Deployments: {places}.",
               *(f"Some rows were made before, of code that has not changed since: {how}." for how in earlier),
               verdict(cells)],
        more={"cells": list(cells), "stock": list(stock), "earlier": earlier},
    )  # fmt: skip


def _place(cell: Row) -> tuple[Any, ...]:
    return tuple(cell[name] for name in ("family", "seed", "place", "router"))


def verdict(cells: Sequence[Row]) -> str:
    """Return in words how often `dopd` is ahead, and where it is not."""
    routers = {it["router"] for it in cells}

    def named(it: Row, points: float) -> str:
        where = f"{it['place']}, {it['router']}" if len(routers) > 1 else it["place"]
        return f"{it['family']} ({where}, {points:+.1f})"

    below = [named(it, it["above"]) for it in cells if it["above"] < -LEVEL]
    behind = [it for it in cells if it["stock_above"] is not None and it["above"] < it["stock_above"] - LEVEL]
    lost = ", ".join(named(it, it["above"] - it["stock_above"]) for it in behind)
    return (
        f"`dopd` is not more than {LEVEL:g} point below the front of fixed pools in {len(cells) - len(below)} of "
        f"{len(cells)} cells; it is in {', '.join(below) or 'none'}. It is not more than {LEVEL:g} point behind "
        "Dynamo's planner, each against the front at its own GPU-hours, in "
        f"{len(cells) - len(behind)}; it is in {lost or 'none'}."
    )


def line(cell: Row) -> Row:
    """Return one line of the table."""
    own = f"{cell['attainment']:.1f} % @ {cell['gpu_hours']:.2f}"
    return {
        "workload": f"{cell['family']}, seed {cell['seed']}",
        "deployment": f"{cell['place']}, {cell['router']}",
        "`dopd`": own,
        "fixed pools there": f"{cell['front']:.1f} % ({cell['above']:+.1f})",
        "for the same": "not reached" if cell["front_gpu_hours"] is None
        else f"{cell['front_gpu_hours']:.2f} ({-cell['saved']:+.0%})",
        "Dynamo's": f"{cell['stock_attainment']:.1f} % @ {cell['stock_gpu_hours']:.2f} ({cell['stock_above']:+.1f})",
        "clairvoyant": f"{cell['ceiling']:.1f} % there"
        + ("" if cell["ceiling_gpu_hours"] is None else f", {cell['ceiling_gpu_hours']:.2f} for the same"),
        "share": "" if cell["gain"] is None else f"{cell['gain']:.0%}",
    }  # fmt: skip
