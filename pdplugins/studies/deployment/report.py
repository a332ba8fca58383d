"""Shows a plan: on a terminal, as a page, and as a config file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml
from rich.table import Table

from pdplugins.config import Config
from pdplugins.report.html import Html, element
from pdplugins.report.layout import COLOURS, Page, Section, document, origin, shares, table
from pdplugins.report.svg import Chart, Line, Mark, figure
from pdplugins.studies.deployment.coefficients import LOADS, POOLS
from pdplugins.studies.deployment.plan import Judged, Planned
from pdplugins.terminal import console

TITLES = ("GPUs", "SLO attainment", "TTFT P99, s", "TPOT P99, ms", "program: rank")
P95 = {"slo": "P95 / SLO", "latency": "P95, s"}


def show(planned: Planned, top: int) -> None:
    """Print the best plans, and how long they took."""
    shown = Table("", "plan", box=None, header_style="bold")
    for title in (*TITLES, P95[planned.objective]):
        shown.add_column(title, justify="right")
    for number, one in enumerate(planned.judged[:top], start=1):
        metrics = one.result.metrics
        shown.add_row(
            f"#{number}",
            str(one.plan),
            str(one.plan.gpus),
            f"{one.attainment:.1%}",
            f"{metrics.ttft_s.p99 or 0:.2f}",
            f"{1e3 * (metrics.tpot_s.p99 or 0):.1f}",
            str(one.rank),
            f"{one.plan.p95:.2f}",
        )
    console().print(shown)
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


def page(planned: Planned, top: int, config: Config, made: Mapping[str, object]) -> str:
    """Return a page with the best plans, what they attain, and the P95 of every degree over its load.

    :param made: command, commit, versions and seed.
    """
    best = planned.judged[:top]
    slo = f"TTFT {config.slo.ttft_s:g} s and TPOT {1e3 * config.slo.tpot_s:g} ms"
    said = f"{best[0].plan} attains most on at most {planned.gpus} GPUs: {best[0].attainment:.1%} inside {slo}"
    lines = [f"{planned.sessions_per_s:.2f} sessions/s, simulated whole with the policies of the config."]
    bars = ((str(one.plan), one.attainment, f"{one.attainment:.1%}, {one.plan.gpus} GPUs") for one in best)
    rows = {"profile": config.deployment.profile, "SLO": slo, **made}
    sections = [
        Section("SLO attainment of the plans", shares(bars)),
        Section("The plans", _plans(best, P95[planned.objective])),
        Section(
            f"{P95[planned.objective]}, by the load of each replica", element("div", _curves(planned), class_="charts")
        ),
        Section("Settings and origin", origin(rows)),
    ]
    return document(Page(said, lines, sections=sections))


def _plans(best: Sequence[Judged], p95: str) -> Html:
    rows = []
    for one in best:
        metrics = one.result.metrics
        latencies = f"{metrics.ttft_s.p99 or 0:.2f}", f"{1e3 * (metrics.tpot_s.p99 or 0):.1f}"
        rows.append(
            (str(one.plan), one.plan.gpus, f"{one.attainment:.1%}", *latencies, one.rank, f"{one.plan.p95:.2f}")
        )
    return table("Best first; the program's own rank and P95 beside it", ["plan", *TITLES, p95], rows)


def _curves(planned: Planned) -> list[Html]:
    """Return a chart for each phase: a line for each degree, and for each share of prefills that decode workers do."""
    charts = []
    for role in dict.fromkeys(curve.role for curve in planned.curves):
        own = [curve for curve in planned.curves if curve.role is role]
        lines = [
            Line(
                f"TP={curve.degree}" + (f", {curve.local}/8 local" if curve.local else ""),
                [load * curve.capacity for load in LOADS],
                curve.p95[-1],
                index,
                dash=index >= COLOURS,
            )
            for index, curve in enumerate(own)
        ]
        unit = f"{P95[planned.objective]}, pool of {POOLS[-1]}"
        marks = [Mark("SLO", y=1.0)] if planned.objective == "slo" else []
        charts.append(Chart(str(role), unit, lines, "sessions/s for each replica", marks=marks, log_x=True, log_y=True))
    return [figure(chart) for chart in charts]
