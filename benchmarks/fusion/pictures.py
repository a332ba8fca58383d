"""The pictures of fusion's matrix."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from experiment import RESULTS
from search import SHARES
from systems import STOCK
from tables import FUSION, Found, usable

from pdplugins.files import write_whole

mpl.use("Agg")
from matplotlib import pyplot as plt

STYLES: dict[str, dict[str, Any]] = {
    FUSION: {"color": "black", "linewidth": 1.8},
    **{name: {"linestyle": "--"} for name in STOCK},
}
WIDTH, HEIGHT = 1.75, 1.35
"""Inches of one small picture."""


def curves(name: str, found: Sequence[Found]) -> None:
    """Draw the attainment of all systems over the rate: one small picture for each cell, a row for each workload."""
    cells = {one.cell.name: one for one in usable(found)}
    workloads = list(dict.fromkeys(one.cell.workload for one in found))
    columns = sorted({(one.cell.hardware, one.cell.slo) for one in found})
    figure, grid = plt.subplots(
        len(workloads), len(columns), figsize=(WIDTH * len(columns), HEIGHT * len(workloads) + 0.5),
        sharex=True, sharey=True, squeeze=False, layout="constrained",
    )  # fmt: skip
    for line, workload in enumerate(workloads):
        for column, (hardware, slo) in enumerate(columns):
            axes = grid[line][column]
            one = cells.get(f"{hardware} {workload} {slo}")
            for system in one.shown if one else ():
                values = [100 * one.attainment(system, share) for share in SHARES]  # type: ignore[union-attr]
                axes.plot(SHARES, values, label=system, **{"linewidth": 0.9, **STYLES.get(system, {})})
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=6)
            if line == 0:
                axes.set_title(f"{hardware}, {slo}", fontsize=7)
            if column == 0:
                axes.set_ylabel(f"{workload}\nattainment, %", fontsize=6)
    lines = {label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=5, frameon=False, fontsize=7)
    _keep(figure, name)


def gains(name: str, found: Sequence[Found]) -> None:
    """Draw fusion's highest rate over the best stock configuration's, cell by cell."""
    cells = sorted(usable(found), key=Found.gain)
    figure, axes = plt.subplots(figsize=(6.4, 0.16 * len(cells) + 0.8), layout="constrained")
    axes.barh([one.cell.name for one in cells], [one.gain() for one in cells], color="grey", height=0.7)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("highest rate with 90 % attainment, over that of the best stock configuration", fontsize=7)
    axes.tick_params(labelsize=6)
    axes.spines[["top", "right"]].set_visible(False)
    _keep(figure, name)


def _keep(figure: plt.Figure, name: str) -> None:
    """Write a picture. A fixed salt and no date: the same results give the same file."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_whole(RESULTS / f"fusion-{name}.svg", text.getvalue())
