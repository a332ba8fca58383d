"""The charts of a report, in the order of the page: what clients got first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pdplugins.contracts.request import Slo
from pdplugins.report.series import HELD, POWER, QUEUE, RUNNING, SERVING, WANTED, Gauge, Series
from pdplugins.report.svg import Chart, Line, Mark, Values

Runs = dict[str, Series]
ORDER = (QUEUE, SERVING, HELD, WANTED, RUNNING, POWER)
CAPS = "caps"
"""Is drawn only where there is one run."""


def charts(runs: Runs, slo: Slo) -> list[Chart]:
    """Return the charts of `runs`."""
    first = next(iter(runs.values()))
    ttft, tpot = [Mark("SLO", y=slo.ttft_s)], [Mark("SLO", y=1e3 * slo.tpot_s)]
    gauges = {title: chart for title in ORDER if (chart := _gauge(runs, title)) is not None}
    return [
        Chart("Inside both SLOs", "% of requests", _per_run(runs, lambda s: _scaled(s.attainment, 100)), top=100),
        *(gauges[title] for title in (QUEUE,) if title in gauges),
        Chart("Time to first token", "s", _pair(runs, lambda s: (s.ttft_p50_s, s.ttft_p99_s)), marks=ttft),
        Chart(
            "Time per output token",
            "ms",
            _pair(runs, lambda s: (_scaled(s.tpot_p50_s, 1e3), _scaled(s.tpot_p99_s, 1e3))),
            marks=tpot,
        ),
        *(chart for title, chart in gauges.items() if title != QUEUE),
        Chart("Arrivals", "requests/s", [Line("arrivals", first.at_s, first.rate, 2)], area=True),
        Chart("Prompt and output length", "tokens, mean", _lengths(first)),
        _cdf("TTFT of requests", "s", runs, lambda s: s.cdf_ttft_s, slo.ttft_s),
        _cdf("TPOT of requests", "ms", runs, lambda s: _scaled(s.cdf_tpot_s, 1e3), 1e3 * slo.tpot_s),
        _cdf("Time between tokens, all gaps", "ms", runs, lambda s: _scaled(s.cdf_tbt_s, 1e3), None),
    ]


def _lengths(series: Series) -> list[Line]:
    return [
        Line("prompt (ISL)", series.at_s, series.isl_tokens, 0),
        Line("output (OSL)", series.at_s, series.osl_tokens, 1),
    ]


def _gauge(runs: Runs, title: str) -> Chart | None:
    """Return one line for each thing of each run. With several runs, each has its own colour."""
    found = [
        (name, index, gauge)
        for index, (name, series) in enumerate(runs.items())
        for gauge in series.gauges
        if gauge.title == title
    ]
    if not found:
        return None
    lines = [line for name, index, gauge in found for line in _of_gauge(name, index, gauge, alone=len(runs) == 1)]
    return Chart(title, found[0][2].unit, lines, step=True)


def _of_gauge(run: str, index: int, gauge: Gauge, *, alone: bool) -> Iterator[Line]:
    for number, (part, values) in enumerate(gauge.values.items()):
        if alone:
            yield Line(part or gauge.title.lower(), gauge.at_s, values, number, dash=part == CAPS)
        elif part != CAPS:
            yield Line(f"{run} {part}".strip(), gauge.at_s, values, index, dash=number > 0)


def _per_run(runs: Runs, pick: Callable[[Series], Values]) -> list[Line]:
    return [Line(name, series.at_s, pick(series), index) for index, (name, series) in enumerate(runs.items())]


def _pair(runs: Runs, pick: Callable[[Series], tuple[Values, Values]]) -> list[Line]:
    """Return the median and the 99th percentile; with several runs only the latter."""
    lines = []
    for index, (name, series) in enumerate(runs.items()):
        p50, p99 = pick(series)
        if len(runs) == 1:
            lines.append(Line("P50", series.at_s, p50, 2))
        lines.append(Line("P99" if len(runs) == 1 else f"{name} P99", series.at_s, p99, index))
    return lines


def _cdf(title: str, unit: str, runs: Runs, pick: Callable[[Series], Values], slo: float | None) -> Chart:
    lines = [
        Line(name, pick(series), _scaled(series.cdf_share, 100), index)
        for index, (name, series) in enumerate(runs.items())
        if pick(series)
    ]
    marks = [] if slo is None else [Mark("SLO", x=slo)]
    return Chart(title, "% at most", lines, x=unit, marks=marks, log_x=True, top=100)


def _scaled(line: Values, factor: float) -> Sequence[float | None]:
    return [None if value is None else value * factor for value in line]
