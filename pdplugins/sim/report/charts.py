"""The charts of a report, as data that the script of the page draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pdplugins.contracts.request import Slo
from pdplugins.sim.core.sampler import Sample
from pdplugins.sim.report.series import Line, Series

RUN_COLOURS = ("#2f6fde", "#d9822b", "#2c9c6a", "#b0469c", "#c8403a", "#6b7787", "#8a6d1f", "#3aa3c4")
PHASE_COLOURS = {"prefill": "#2f6fde", "decode": "#d9822b", "both": "#2c9c6a"}
ROLES = ("prefill", "decode")

Runs = dict[str, Series]
Chart = dict[str, Any]


def charts(runs: Runs, slo: Slo) -> list[Chart]:
    """Return the charts of `runs`, in the order of the page."""
    first = next(iter(runs.values()))
    ttft, tpot = {"y": slo.ttft_s, "label": "SLO"}, {"y": 1e3 * slo.tpot_s, "label": "SLO"}
    found = [
        _chart("Arrivals", "requests/s", _load(first, first.rate, "arrivals"), area=True),
        _chart("Prompt and output length", "tokens, mean", _lengths(first)),
        _chart("Workers that serve", "workers", _by_role(runs, lambda sample: sample.ready), step=True),
        _chart("Workers with start-up and draining", "workers", _by_role(runs, lambda sample: sample.held), step=True),
        _chart("Requests that wait", "requests", _by_role(runs, lambda sample: sample.queued), step=True),
        _chart("Requests that run", "requests", _by_role(runs, lambda sample: sample.running), step=True),
        _chart("Power of all GPUs", "W", _watts(runs), step=True),
        _chart("Inside both SLOs", "% of requests", _per_run(runs, lambda s: _times(s.attainment, 100))),
        _chart("Time to first token", "s", _pair(runs, lambda s: (s.ttft_p50_s, s.ttft_p99_s)), marks=[ttft]),
        _chart(
            "Time per output token",
            "ms",
            _pair(runs, lambda s: (_times(s.tpot_p50_s, 1e3), _times(s.tpot_p99_s, 1e3))),
            marks=[tpot],
        ),
        _cdf("TTFT of requests", "s", runs, lambda s: s.cdf_ttft_s, slo.ttft_s),
        _cdf("TPOT of requests", "ms", runs, lambda s: _times(s.cdf_tpot_s, 1e3), 1e3 * slo.tpot_s),
        _cdf("Time between tokens, all gaps", "ms", runs, lambda s: _times(s.cdf_tbt_s, 1e3), None),
    ]
    return [chart for chart in found if chart["lines"]]


def _chart(title: str, unit: str, lines: Iterable[dict[str, Any]], **more: Any) -> Chart:
    kept = [line for line in lines if any(value is not None for value in line["y"])]
    return {"title": title, "unit": unit, "x": "time, s", "lines": kept, **more}


def _line(name: str, x: Sequence[float | None], y: Line, colour: str, dash: bool = False) -> dict[str, Any]:
    return {"name": name, "x": list(x), "y": y, "colour": colour, "dash": dash}


def _load(series: Series, y: Line, name: str) -> list[dict[str, Any]]:
    return [_line(name, series.at_s, y, PHASE_COLOURS["both"])]


def _lengths(series: Series) -> list[dict[str, Any]]:
    return [
        _line("prompt (ISL)", series.at_s, series.isl_tokens, PHASE_COLOURS["prefill"]),
        _line("output (OSL)", series.at_s, series.osl_tokens, PHASE_COLOURS["decode"]),
    ]


def _by_role(runs: Runs, pick: Callable[[Sample], tuple[int, int]]) -> list[dict[str, Any]]:
    """Return one line for each role. With several runs, each has its own colour, and decode is dashed."""
    lines = []
    for (name, series), run_colour in zip(runs.items(), _colours(runs), strict=True):
        at_s = [sample.at_s for sample in series.samples]
        for index, role in enumerate(ROLES):
            y: Line = [float(pick(sample)[index]) for sample in series.samples]
            if len(runs) == 1:
                lines.append(_line(role, at_s, y, PHASE_COLOURS[role]))
            else:
                lines.append(_line(f"{name} {role}", at_s, y, run_colour, dash=role == "decode"))
    return lines


def _watts(runs: Runs) -> list[dict[str, Any]]:
    """Return the draw and the caps; with several runs only the draw."""
    lines = []
    for (name, series), colour in zip(runs.items(), _colours(runs), strict=True):
        at_s = [sample.at_s for sample in series.samples]
        alone = len(runs) == 1
        lines.append(_line("draw" if alone else name, at_s, [sample.draw_w for sample in series.samples], colour))
        if alone:
            lines.append(_line("caps", at_s, [sample.cap_w for sample in series.samples], colour, dash=True))
    return lines


def _per_run(runs: Runs, pick: Callable[[Series], Line]) -> list[dict[str, Any]]:
    return [
        _line(name, series.at_s, pick(series), colour)
        for (name, series), colour in zip(runs.items(), _colours(runs), strict=True)
    ]


def _pair(runs: Runs, pick: Callable[[Series], tuple[Line, Line]]) -> list[dict[str, Any]]:
    """Return the median and the 99th percentile; with several runs only the latter."""
    lines = []
    for (name, series), colour in zip(runs.items(), _colours(runs), strict=True):
        p50, p99 = pick(series)
        if len(runs) == 1:
            lines.append(_line("P50", series.at_s, p50, PHASE_COLOURS["both"]))
        lines.append(_line("P99" if len(runs) == 1 else f"{name} P99", series.at_s, p99, colour))
    return lines


def _cdf(title: str, unit: str, runs: Runs, pick: Callable[[Series], Line], slo: float | None) -> Chart:
    lines = [
        _line(name, pick(series), _times(series.cdf_share, 100), colour)
        for (name, series), colour in zip(runs.items(), _colours(runs), strict=True)
        if pick(series)
    ]
    marks = [] if slo is None else [{"x": slo, "label": "SLO"}]
    return {"title": title, "unit": "% at most", "x": unit, "lines": lines, "marks": marks, "log": True}


def _colours(runs: Runs) -> list[str]:
    return [RUN_COLOURS[index % len(RUN_COLOURS)] for index in range(len(runs))]


def _times(line: Line, factor: float) -> Line:
    return [None if value is None else value * factor for value in line]
