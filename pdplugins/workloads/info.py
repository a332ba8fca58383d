"""Describes a trace: counts, lengths, burstiness, shared prefixes, and a plot of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdplugins.errors import ConfigError
from pdplugins.files import whole
from pdplugins.workloads.jsonl import BLOCK_TOKENS
from pdplugins.workloads.trace import TraceRequest

Floats = NDArray[np.float64]
WINDOWS_S = (1, 10, 60)
"""Windows for which the index of dispersion is computed."""
BARS, PLAIN_BARS = " ▁▂▃▄▅▆▇█", " ..::||##"
"""Characters of charts, from nothing to full; the second ones are in every encoding."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A trace as arrays. The arrays of lengths have an entry for every round of a session."""

    arrival_s: Floats
    isl_tokens: Floats
    osl_tokens: Floats
    history_tokens: Floats
    rounds: Floats
    """Rounds of each session; 1 for a single request."""
    gap_s: Floats
    """Gaps inside sessions."""
    cached_tokens: int
    """Prompt tokens in leading blocks of `BLOCK_TOKENS` each that an earlier request had too."""

    @classmethod
    def of(cls, requests: Sequence[TraceRequest]) -> Columns:
        """Return the columns of a trace."""
        turns = np.array([turn for request in requests for turn in request.turns()], dtype=np.float64).reshape(-1, 3)
        return cls(
            arrival_s=np.array([request.arrival_s for request in requests]),
            history_tokens=turns[:, 0],
            isl_tokens=turns[:, 1],
            osl_tokens=turns[:, 2],
            rounds=np.array([1 + len(request.rounds) for request in requests], dtype=np.float64),
            gap_s=np.array([later.gap_s for request in requests for later in request.rounds]),
            cached_tokens=_cached_tokens(requests),
        )


def _cached_tokens(requests: Sequence[TraceRequest]) -> int:
    seen: set[int] = set()
    tokens = 0
    for request in requests:
        leading = 0
        for block in request.blocks:
            if block not in seen:
                break
            leading += 1
        tokens += min(leading * BLOCK_TOKENS, request.isl_tokens)
        seen.update(request.blocks)
    return tokens


def describe(columns: Columns) -> dict[str, Any]:
    """Return the facts about a trace. A fact is None where there are too few requests for it."""
    arrival_s, many = columns.arrival_s, columns.rounds > 1
    duration_s = float(arrival_s[-1])
    gaps_s = np.diff(arrival_s)
    mean_gap_s = float(gaps_s.mean()) if len(gaps_s) else 0.0
    shared = columns.history_tokens.sum() + columns.cached_tokens
    return {
        "arrivals": len(arrival_s),
        "requests": len(columns.isl_tokens),
        "sessions": int(many.sum()),
        "duration_s": duration_s,
        "arrivals_per_s": len(arrival_s) / duration_s if duration_s > 0 else None,
        "isl_tokens": quantiles(columns.isl_tokens),
        "osl_tokens": quantiles(columns.osl_tokens),
        "history_tokens": quantiles(columns.history_tokens[columns.history_tokens > 0]),
        "rounds": quantiles(columns.rounds[many]),
        "round_gap_s": quantiles(columns.gap_s),
        "shared_prompt_share": float(shared / columns.isl_tokens.sum()),
        "gap_cv": float(gaps_s.std() / mean_gap_s) if mean_gap_s > 0 else None,
        "dispersion": {f"{window_s}s": dispersion(arrival_s, window_s) for window_s in WINDOWS_S},
    }


def quantiles(values: Floats) -> dict[str, float] | None:
    """Return mean, P50, P90, P99 and maximum; None without values."""
    if not len(values):
        return None
    p50, p90, p99 = (float(value) for value in np.quantile(values, (0.5, 0.9, 0.99)))
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(values.max())}


def dispersion(arrival_s: Floats, window_s: float) -> float | None:
    """Return the variance of the arrivals per window over their mean: 1 for Poisson, more for bursts.

    Only whole windows count. The result is None where the trace has fewer than two of them.
    """
    windows = int(arrival_s[-1] // window_s)
    if windows < 2:
        return None
    counts = np.bincount((arrival_s // window_s).astype(np.int64))[:windows]
    return float(counts.var(ddof=1) / counts.mean()) if counts.any() else None


def load(arrival_s: Floats, bins: int) -> tuple[Floats, Floats]:
    """Return the start of each of `bins` windows, and its arrivals per second."""
    end_s = max(float(arrival_s[-1]), 1e-6)
    counts, edges = np.histogram(arrival_s, bins=bins, range=(0, end_s))
    return edges[:-1], counts * bins / end_s


def chart(columns: Columns, width: int = 72, height: int = 6, bars: str = BARS) -> str:
    """Draw the arrivals per second over time with the characters `bars`, of `BARS` or `PLAIN_BARS`."""
    _, rates = load(columns.arrival_s, width)
    top = max(float(rates.max()), 1e-9)
    eighths = np.rint(rates / top * height * 8).astype(int)
    label = f"{top:.3g}/s"
    lines = []
    for row in range(height - 1, -1, -1):
        drawn = "".join(bars[min(max(int(level) - 8 * row, 0), 8)] for level in eighths)
        lines.append(f"{label if row == height - 1 else '0' if row == 0 else '':>11} {drawn}")
    end = f"{columns.arrival_s[-1]:.4g} s"
    return "\n".join([*lines, f"{'':>11} 0{end:>{width - 1}}"])


def plot(columns: Columns, title: str, path: Path) -> None:
    """Write load over time and the distributions of lengths and gaps, as an image or as a page that opens offline."""
    starts_s, rates = load(columns.arrival_s, 120)
    panels = [("arrivals per second over time, s", starts_s, rates)]
    gaps_s = np.diff(columns.arrival_s)
    for name, values in (
        ("share of prompts up to this many tokens", columns.isl_tokens),
        ("share of outputs up to this many tokens", columns.osl_tokens),
        ("share of gaps between arrivals up to this long, s", gaps_s),
    ):
        shares = np.linspace(0, 1, 400)
        known = shares if len(values) else shares[:0]
        panels.append((name, np.quantile(values, known) if len(values) else known, known))
    writers = {".html": _page, ".png": _image, ".svg": _image, ".pdf": _image}
    if path.suffix not in writers:
        raise ConfigError(f"--plot {path}: name a file that ends in {', '.join(writers)}")
    with whole(path) as scratch:
        writers[path.suffix](panels, title, scratch)


def _image(panels: list[tuple[str, Floats, Floats]], title: str, path: Path) -> None:
    import matplotlib  # noqa: PLC0415 - slow to load

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 6), layout="constrained")
    for axis, (name, x, y) in zip(axes.flat, panels, strict=True):
        axis.plot(x, y, linewidth=1)
        axis.set_title(name, fontsize=10)
        if "tokens" in name:
            axis.set_xscale("log")
        axis.grid(alpha=0.3)
    figure.suptitle(title, parse_math=False)  # a name may contain $
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _page(panels: list[tuple[str, Floats, Floats]], title: str, path: Path) -> None:
    import plotly.graph_objects as go  # noqa: PLC0415 - slow to load
    from plotly.subplots import make_subplots  # noqa: PLC0415

    figure = make_subplots(2, 2, subplot_titles=[name for name, _, _ in panels])
    for index, (_, x, y) in enumerate(panels):
        figure.add_trace(go.Scatter(x=x, y=y, mode="lines", showlegend=False), row=1 + index // 2, col=1 + index % 2)
    for index, (name, _, _) in enumerate(panels):
        if "tokens" in name:
            figure.update_xaxes(type="log", row=1 + index // 2, col=1 + index % 2)
    figure.update_layout(title=title, height=720)
    figure.write_html(path, include_plotlyjs=True)
