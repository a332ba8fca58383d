"""Who wins in each place of where.py: the verdicts, their counts, and the map."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from manifest import RESULTS
from systems import STOCK

from pdplugins.files import write_whole

mpl.use("Agg")
from matplotlib import pyplot as plt

Row = dict[str, Any]
LOADS = (0.5, 0.8, 1.0)
"""Shares of the capacity: the highest rate of the best stock system."""
COLOCATED = (STOCK[0], STOCK[2])
SPLIT = STOCK[1]
APART = (SPLIT, "arrow", "ampd", "dopd")
"""Systems that run prefill and decode of a request on different workers unless one worker is better."""
TIE_GAIN, TIE_POINTS = 0.05, 2.0
"""Smaller leads are ties: of the highest rate, as a share, and of attainment, in points. One seed has such noise."""
WORDS = ("disaggregated", "tie", "co-located")
SHORT = {STOCK[0]: "chunk", STOCK[2]: "sized", SPLIT: "split"}
WIDEST = 50.0
"""Points, or per cent, at which the colours end."""


def verdicts(highest: Mapping[str, float], attainment: Mapping[str, Sequence[float]]) -> Row:
    """Return who wins in one place.

    :param highest: of each stock system, requests/s.
    :param attainment: of every system, at each of `LOADS`.
    """

    def best(names: Iterable[str]) -> list[float]:
        return [max(points) for points in zip(*(attainment[name] for name in names), strict=True)]

    together = max(highest[name] for name in COLOCATED)
    gain = float(f"{highest[SPLIT] / together:.4g}") if together else None
    leads = _points(best(APART), best(COLOCATED))
    return {
        "split_gain": gain,
        "split_wins": WORDS[0] if gain is None else word(gain - 1, TIE_GAIN),
        "leads": leads,
        "wins": [word(lead, TIE_POINTS) for lead in leads],
        "plugin_leads": _points(best(name for name in attainment if name not in STOCK), best(STOCK)),
        "winners": [
            _winner({name: 100 * points[at] for name, points in attainment.items()}) for at in range(len(LOADS))
        ],
    }


def _points(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [round(100 * (one - other), 2) for one, other in zip(ours, theirs, strict=True)]


def _winner(points: Mapping[str, float]) -> str | None:
    """Return the system that is ahead of every other one; None for a tie."""
    first, second = sorted(points, key=lambda name: -points[name])[:2]
    return first if points[first] - points[second] > TIE_POINTS else None


def word(lead: float, tie: float) -> str:
    """Return who wins by a lead of disaggregation."""
    return WORDS[1] if abs(lead) <= tie else WORDS[0] if lead > 0 else WORDS[2]


def summary(rows: Sequence[Row]) -> Row:
    """Return the counts that the page tells."""
    gains = [row["split_gain"] for row in rows if row["split_gain"] is not None]
    parts = {"slo": "slo", "workload": "workload", "experts": "experts", "model": "model"}
    return {
        "places": len(rows),
        "split": _counts(row["split_wins"] for row in rows),
        "least_gain": min(gains, default=None),
        "most_gain": max(gains, default=None),
        "by": {
            title: {
                str(value): _counts(row["split_wins"] for row in rows if row[key] == value)
                for value in dict.fromkeys(row[key] for row in rows)
            }
            for title, key in parts.items()
        },
        "loads": {
            f"{load:g}": {
                **_counts(row["wins"][at] for row in rows),
                "plugin_ahead": sum(row["plugin_leads"][at] > TIE_POINTS for row in rows),
                "stock_ahead": sum(row["plugin_leads"][at] < -TIE_POINTS for row in rows),
            }
            for at, load in enumerate(LOADS)
        },
        "winners": {
            f"{load:g}": dict(Counter(row["winners"][at] or "tie" for row in rows)) for at, load in enumerate(LOADS)
        },
    }


def _counts(words: Iterable[str]) -> dict[str, int]:
    found = Counter(words)
    return {name: found[name] for name in WORDS} | {"all": found.total()}


# --- the picture ------------------------------------------------------------------------------------------------------


def draw(rows: Sequence[Row], name: str = "where") -> None:
    """Draw the map: a row for each model, a column for each workload and objective, a panel for each question."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    columns = sorted({(row["workload"], _rank(row)) for row in rows})
    at = {(row["model"], row["workload"], _rank(row)): row for row in rows}
    panels = ["highest rate of the best static split over the best co-location, %"]
    panels += [f"attainment at {load:g} of capacity, disaggregated less co-located, points" for load in LOADS]
    figure, grid = plt.subplots(2, 2, figsize=(11, 6.4), layout="constrained", sharey=True)
    for panel, (axes, title) in enumerate(zip(grid.flat, panels, strict=True)):
        leads = np.full((len(models), len(columns)), np.nan)
        for line, model in enumerate(models):
            for column, (workload, rank) in enumerate(columns):
                row = at.get((model, workload, rank))
                if row is None or not row["capacity_rps"]:
                    why = "not\nrun" if row is None else "none\nserves"
                    axes.text(column, line, why, ha="center", va="center", fontsize=6, color="grey")
                    continue
                leads[line, column] = lead = _lead(row, panel)
                color = "white" if abs(lead) > WIDEST / 2 else "black"
                axes.text(column, line, _label(row, panel, lead), ha="center", va="center", fontsize=6, color=color)
        shown = axes.imshow(leads, cmap="RdBu", vmin=-WIDEST, vmax=WIDEST, aspect="auto")
        axes.set_xticks(range(len(columns)), [f"{workload}\n{SLOS[rank]}" for workload, rank in columns], fontsize=6)
        axes.set_yticks(range(len(models)), models, fontsize=6)
        axes.set_title(title, fontsize=7)
        axes.tick_params(length=0)
    figure.colorbar(shown, ax=grid, shrink=0.6, label="red: co-location wins; blue: disaggregation wins", extend="both")
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_whole(RESULTS / f"{name}.svg", text.getvalue())


SLOS = ("strict", "middle", "loose")


def _rank(row: Row) -> int:
    return SLOS.index(row["slo"])


def _lead(row: Row, panel: int) -> float:
    if panel:
        return float(row["leads"][panel - 1])
    return WIDEST if row["split_gain"] is None else 100 * (row["split_gain"] - 1)


def _label(row: Row, panel: int, lead: float) -> str:
    if not panel:
        return f"{round(lead):+d}"
    winner = row["winners"][panel - 1] or "tie"
    return f"{round(lead):+d}\n{SHORT.get(winner, winner)}"
