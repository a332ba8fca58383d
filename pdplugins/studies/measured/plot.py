"""Draws what was predicted over what was measured, and the residuals over the load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pdplugins.files import whole

METRICS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT"}


def draw(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw `points` of a report to `path`, whose ending says how."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load, and only plots need it

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "pdplugins"
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, rows = plt.subplots(2, 2, figsize=(10, 8), layout="constrained")
    for name, (scatter, residual) in zip(METRICS, rows, strict=True):
        for source in sorted({point["source"] for point in points}):
            own = [point for point in points if point["source"] == source]
            measured, predicted = ([point[name][index] for point in own] for index in (0, 1))
            scatter.plot(measured, predicted, ".", label=source)
            errors = [100 * (p / m - 1) for m, p in zip(measured, predicted, strict=True)]
            residual.plot([point["clients"] for point in own], errors, ".")
        ends = scatter.get_xlim()
        scatter.plot(ends, ends, color="gray", linewidth=0.8)
        scatter.set(xscale="log", yscale="log", xlabel=f"{METRICS[name]} measured (ms)", ylabel="simulated (ms)")
        residual.axhline(0, color="gray", linewidth=0.8)
        residual.set(xscale="log", ylim=(-100, 200), xlabel="clients", ylabel=f"error of {METRICS[name]} (%)")
    rows[0][0].legend(fontsize=7)
    try:
        with whole(path) as scratch:
            figure.savefig(scratch, format=path.suffix.removeprefix("."), metadata={"Date": None})
    finally:
        plt.close(figure)
