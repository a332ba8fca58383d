"""Shows a plan: on a terminal, as a page, and as a config file."""

from __future__ import annotations

from pathlib import Path

import yaml
from rich.table import Table

from pdplugins.config import Config
from pdplugins.studies.deployment.coefficients import LOADS, POOLS
from pdplugins.studies.deployment.plan import Judged, Planned
from pdplugins.terminal import console


def show(planned: Planned, top: int) -> None:
    """Print the best plans, and how long they took."""
    table = Table("", "plan", box=None, header_style="bold")
    for title in ("GPUs", "SLO attainment", "TTFT P99, s", "TPOT P99, ms", "program: rank", "P95 / SLO"):
        table.add_column(title, justify="right")
    for number, one in enumerate(planned.judged[:top], start=1):
        metrics = one.result.metrics
        table.add_row(
            f"#{number}",
            str(one.plan),
            str(one.plan.gpus),
            f"{one.attainment:.1%}",
            f"{metrics.ttft_s.p99 or 0:.2f}",
            f"{1e3 * (metrics.tpot_s.p99 or 0):.1f}",
            str(one.rank),
            f"{one.plan.p95:.2f}",
        )
    console().print(table)
    console().print(
        f"simulated; {planned.sessions_per_s:.2f} sessions/s on at most {planned.gpus} GPUs; "
        f"coefficients {planned.coefficients_s:.1f} s, program {planned.solve_s:.2f} s for "
        f"{len(planned.judged)} plans, their simulation {planned.check_s:.1f} s",
        highlight=False,
    )


def as_yaml(config: Config, best: Judged, command: str) -> str:
    """Return `config` as the text of a file, with a comment that says where its pools come from."""
    lines = (
        f"# {best.plan}: SLO attainment {best.attainment:.1%} (simulated), found by",
        f"#   {command}",
    )
    data = config.model_dump(mode="json", exclude_none=True)
    return "\n".join(lines) + "\n" + yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def write_html(planned: Planned, top: int, path: Path) -> None:
    """Write a page with the attainment of the best plans, and the P95 of every degree over its load."""
    import plotly.graph_objects as go  # noqa: PLC0415 - slow to load, and few ask for it
    from plotly.subplots import make_subplots  # noqa: PLC0415

    titles = ("SLO attainment of the plans (simulated)", "P95 over its SLO, by the load of each replica")
    figure = make_subplots(rows=2, cols=1, subplot_titles=titles, vertical_spacing=0.2)
    best = planned.judged[:top]
    figure.add_bar(x=[str(one.plan) for one in best], y=[one.attainment for one in best], name="plans", row=1, col=1)
    for curve in planned.curves:
        rates = [load * curve.capacity for load in LOADS]
        local = f", {curve.local}/8 local" if curve.local else ""
        name = f"{curve.role} TP={curve.degree}{local}"
        line = go.Scatter(x=rates, y=curve.p95[-1], name=name, mode="lines+markers", visible=True)
        figure.add_trace(line, row=2, col=1)
    figure.update_yaxes(range=[0, 1], tickformat=".0%", row=1, col=1)
    figure.update_yaxes(type="log", title=f"P95 / SLO, pool of {POOLS[-1]}", row=2, col=1)
    figure.update_xaxes(title="sessions/s for each replica", type="log", row=2, col=1)
    figure.update_layout(
        title=f"Deployment of {planned.sessions_per_s:.2f} sessions/s on at most {planned.gpus} GPUs",
        height=900,
        template="plotly_white",
    )
    figure.write_html(path, include_plotlyjs=True)
