"""The backtest as one HTML page that opens offline."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from pdplugins.runtime.assembly import build_deployment
from pdplugins.studies.advise.page import STYLE
from pdplugins.studies.advise.words import percent
from pdplugins.studies.backtest.runs import Backtest
from pdplugins.studies.backtest.words import beside, by_time, percents, verdict

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 240, 56, 36, 12
RECORDED, SIMULATED = "#3b6fb6", "#c8613a"


def page(found: Backtest, command: str, commit: str) -> str:
    """Return the page."""
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in verdict(found))
    notes = "".join(f"<p class='soft'>{html.escape(note)}</p>" for note in found.recording.notes)
    title = html.escape(f"Backtest of {found.recording.name}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{STYLE}</style></head>
<body><main>
<h1>{title}</h1>
{lines}{notes}
<h2>Recorded, and simulated as it ran</h2>
<div class="card">{_pictures(found)}{_beside(found)}</div>
<h2>What would have been</h2>
<div class="card">{_rows(found)}</div>
<p><code>{html.escape(command)}</code><br><code>{html.escape(commit)}</code></p>
</main></body></html>
"""


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in titles)
    body = "".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in more)
        + "</tr>"
        for first, *more in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def seconds(value: float | None) -> str:
    """Return a time in words; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"


def share(value: float | None) -> str:
    """Return a difference in percent, with its sign."""
    return "-" if value is None else f"{100 * value:+.0f} %"


BESIDE = ("time", "recorded", "simulated", "difference")
ROWS = ("what runs", "pools", "SLO attainment", "GPU-hours", "GPUs", "TTFT mean", "TTFT p99", "ITL mean", "TPOT p99")


def beside_cells(found: Backtest) -> list[tuple[str, ...]]:
    """Return the cells of the table of recorded and simulated times."""
    rows = beside(found)
    return [(one.name, seconds(one.recorded_s), seconds(one.simulated_s), share(one.off)) for one in rows]


def row_cells(found: Backtest) -> list[tuple[str, ...]]:
    """Return the cells of the table of what was recorded, and of all that was tried."""
    return [
        _recorded(found),
        *(
            (
                one.name,
                one.pools,
                percent(one.attainment),
                f"{one.metrics.gpu_hours:.3f}",
                f"{one.gpus:.1f}",
                seconds(one.metrics.ttft_s.mean),
                seconds(one.metrics.ttft_s.p99),
                seconds(one.metrics.tbt_s.mean),
                seconds(one.metrics.tpot_s.p99),
            )
            for one in found.rows
        ),
    ]


def _recorded(found: Backtest) -> tuple[str, ...]:
    recording, sizes = found.recording, build_deployment(found.config)
    gpu_s = recording.gpu_s(sizes.prefill_tp, sizes.decode_tp) if recording.pools else None
    inside = recording.inside
    return (
        "recorded",
        "" if not recording.pools else ("" if len(recording.pools) == 1 else "from ") + str(recording.pools[0]),
        "-" if inside is None else percents(inside),
        "-" if gpu_s is None else f"{gpu_s / 3600:.3f}",
        "-" if gpu_s is None else f"{gpu_s / recording.duration_s:.1f}",
        seconds(recording.ttft.mean),
        seconds(recording.ttft.p99),
        seconds(recording.itl.mean),
        seconds(recording.itl.p99) if recording.per_request else "-",
    )


def _beside(found: Backtest) -> str:
    cells = beside_cells(found)
    return _table(BESIDE, cells) if cells else "<p>Which workers there were is not recorded.</p>"


def _rows(found: Backtest) -> str:
    return _table(ROWS, row_cells(found))


def _pictures(found: Backtest) -> str:
    parts = by_time(found)
    times = [("Mean TTFT", [(one.ttft_s, two.ttft_s) for one, two in parts])]
    times += [("Mean ITL", [(one.itl_s, two.itl_s) for one, two in parts])]
    return "".join(_picture(name, values) for name, values in times if any(None not in pair for pair in values))


def _picture(name: str, pairs: Sequence[tuple[float | None, float | None]]) -> str:
    """Return the course of a time over the recording as SVG, recorded and simulated; the tables have the figures."""
    most = max(value for pair in pairs for value in pair if value is not None) or 1.0

    def line(which: int, colour: str) -> str:
        points = [(index, pair[which]) for index, pair in enumerate(pairs) if pair[which] is not None]
        drawn = " ".join(
            f"{LEFT + index / max(len(pairs) - 1, 1) * (WIDTH - LEFT - 16):.1f},"
            f"{TOP + (1 - (value or 0.0) / most) * (HEIGHT - TOP - BOTTOM):.1f}"
            for index, value in points
        )
        return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>'

    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(name)} over the recording">'
        f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{seconds(most)}</text>'
        f'<text x="{LEFT - 6}" y="{HEIGHT - BOTTOM}" text-anchor="end">0</text>'
        f"{line(0, RECORDED)}{line(1, SIMULATED)}"
        f'<text x="{LEFT}" y="{HEIGHT - 8}">{html.escape(name)}: '
        f'<tspan fill="{RECORDED}">recorded</tspan>, <tspan fill="{SIMULATED}">simulated</tspan></text></svg>'
    )
