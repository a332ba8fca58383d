"""The backtest as one HTML page that opens offline."""

from __future__ import annotations

from collections.abc import Iterator

from pdplugins.report.html import Html, element
from pdplugins.report.layout import Page, Section, document, origin, paragraphs, shares, table
from pdplugins.report.svg import Chart, Line, figure
from pdplugins.runtime.assembly import build_deployment
from pdplugins.studies.advise.words import percent
from pdplugins.studies.backtest.runs import Backtest
from pdplugins.studies.backtest.words import by_time, compared, percents, verdict


def page(found: Backtest, command: str, commit: str) -> str:
    """Return the page."""
    first, *more = verdict(found)
    return document(Page(first, more, sections=list(_sections(found, command, commit))))


def _sections(found: Backtest, command: str, commit: str) -> Iterator[Section]:
    bars = ((trial.name, trial.attainment, percent(trial.attainment)) for trial in found.rows)
    yield Section("SLO attainment, simulated", shares(bars))
    yield Section("What would have been", table("Recorded, and all that was tried", ROWS, row_cells(found)))
    yield Section("Recorded, and simulated as it ran", element("div", _pictures(found), _times_table(found)))
    yield Section(
        "Settings and origin", element("div", paragraphs(found.recording.notes), _origin(found, command, commit))
    )


def seconds(value: float | None) -> str:
    """Return a time in words; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"


def share(value: float | None) -> str:
    """Return a difference in percent, with its sign."""
    return "-" if value is None else f"{100 * value:+.0f} %"


TIMES = ("time", "recorded", "simulated", "difference")
ROWS = ("what runs", "pools", "SLO attainment", "GPU-hours", "GPUs", "TTFT mean", "TTFT p99", "ITL mean", "TPOT p99")


def time_cells(found: Backtest) -> list[tuple[str, ...]]:
    """Return the cells of the table of recorded and simulated times."""
    times = compared(found)
    return [
        (time.name, seconds(time.recorded_s), seconds(time.simulated_s), share(time.relative_error)) for time in times
    ]


def row_cells(found: Backtest) -> list[tuple[str, ...]]:
    """Return the cells of the table of what was recorded, and of all that was tried."""
    return [
        _recorded(found),
        *(
            (
                trial.name,
                trial.pools,
                percent(trial.attainment),
                f"{trial.metrics.gpu_hours:.3f}",
                f"{trial.gpus:.1f}",
                seconds(trial.metrics.ttft_s.mean),
                seconds(trial.metrics.ttft_s.p99),
                seconds(trial.metrics.tbt_s.mean),
                seconds(trial.metrics.tpot_s.p99),
            )
            for trial in found.rows
        ),
    ]


def _recorded(found: Backtest) -> tuple[str, ...]:
    recording, sizes = found.recording, build_deployment(found.config)
    gpu_s = recording.gpu_s(sizes.prefill_tp, sizes.decode_tp) if recording.pools else None
    bounds = recording.attainment
    return (
        "recorded",
        "" if not recording.pools else ("" if len(recording.pools) == 1 else "from ") + str(recording.pools[0]),
        "-" if bounds is None else percents(bounds),
        "-" if gpu_s is None else f"{gpu_s / 3600:.3f}",
        "-" if gpu_s is None else f"{gpu_s / recording.duration_s:.1f}",
        seconds(recording.ttft.mean),
        seconds(recording.ttft.p99),
        seconds(recording.itl.mean),
        seconds(recording.itl.p99) if recording.per_request else "-",
    )


def _times_table(found: Backtest) -> Html:
    cells = time_cells(found)
    if not cells:
        return element("p", "Which workers there were is not recorded.")
    return table("Times as recorded and as simulated", TIMES, cells)


def _origin(found: Backtest, command: str, commit: str) -> Html:
    rows = {
        "recording": found.recording.name,
        "profile": found.config.deployment.profile,
        "command": element("code", command),
        "commit": commit,
    }
    return origin(rows)


def _pictures(found: Backtest) -> Html:
    parts = by_time(found)
    at_s = [found.recording.duration_s * (index + 0.5) / len(parts) for index in range(len(parts))]
    charts = (
        Chart(
            name,
            unit,
            [
                Line("recorded", at_s, [_scaled(getattr(recorded, key), scale) for recorded, _ in parts], 0),
                Line("simulated", at_s, [_scaled(getattr(simulated, key), scale) for _, simulated in parts], 1),
            ],
        )
        for name, unit, key, scale in (
            ("Time to first token, mean", "s", "ttft_s", 1.0),
            ("Time between tokens, mean", "ms", "itl_s", 1e3),
        )
    )
    return element("div", [figure(chart) for chart in charts], class_="charts")


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
