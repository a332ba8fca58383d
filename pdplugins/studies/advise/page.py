"""The advice as one HTML page that opens offline: the verdict, a picture of what GPUs buy, and all that was tried."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from pdplugins.sim.report.charts import RUN_COLOURS
from pdplugins.studies.advise.race import Score
from pdplugins.studies.advise.search import Advice
from pdplugins.studies.advise.words import fewest, front, percent, verdict

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 340, 52, 44, 12
STYLE = """
:root { --ink: #1b2330; --soft: #5a6473; --line: #e3e7ed; --page: #f6f7f9; --card: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --soft: #a3adbc; --line: #2c3440; --page: #14181f; --card: #1b212a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 20px 16px 48px; max-width: 960px; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; line-height: 1.35; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px; overflow-x: auto; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; font-weight: 600; } thead th { color: var(--soft); font-weight: 500; }
ul { padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: .85rem; }
li i { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em; }
code { overflow-wrap: anywhere; color: var(--soft); font-size: .85rem; } .soft { color: var(--soft); }
"""


def page(advice: Advice, command: str, commit: str) -> str:
    """Return the page."""
    first, *more = map(html.escape, verdict(advice))
    lines = "".join(f"<p>{line.strip()}</p>" for line in [*more, *map(html.escape, fewest(advice))])
    slo = f"TTFT {advice.asked.ttft_s:g} s, TPOT {1e3 * advice.asked.tpot_s:g} ms"
    facts = (
        f"{advice.traffic.name}: {len(advice.traffic.requests)} arrivals, {advice.traffic.rate:.3g}/s; "
        f"{advice.asked.profile}; at most {advice.asked.gpus} GPUs; {slo}; target {percent(advice.target)}; simulated"
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{first}</title><style>{STYLE}</style></head>
<body><main>
<h1>{first}</h1>
<p class="soft">{html.escape(facts)}</p>
{lines}
<h2>What GPUs buy</h2>
<div class="card">{_picture(advice)}</div>
{_legend(advice)}
<h2>On all of the traffic</h2>
<div class="card">{_table(advice.finalists)}</div>
<h2>The best settings of every system, on a part of it</h2>
<div class="card">{_table(sorted(advice.tried, key=lambda one: (one.candidate.rank, -one.gpus, -one.attainment)))}</div>
<p class="soft">{advice.settings} settings were simulated. {_left_out(advice)}</p>
<p><code>{html.escape(command)}</code><br><code>{html.escape(commit)}</code></p>
</main></body></html>
"""


def _left_out(advice: Advice) -> str:
    names = sorted({f"{one.candidate.system} ({one.why})" for one in advice.left_out})
    return html.escape("Left out: " + "; ".join(names) + "." if names else "")


def _colours(advice: Advice) -> dict[str, str]:
    return {name: RUN_COLOURS[index % len(RUN_COLOURS)] for index, name in enumerate(advice.names())}


def _legend(advice: Advice) -> str:
    parts = (
        f"<li><i style='background:{colour}'></i>{html.escape(name)}</li>" for name, colour in _colours(advice).items()
    )
    return f"<ul>{''.join(parts)}</ul>"


def _x(gpus: float, most: int) -> float:
    return LEFT + gpus / most * (WIDTH - LEFT - 16)


def _y(attainment: float) -> float:
    return TOP + (1 - attainment) * (HEIGHT - TOP - BOTTOM)


def _picture(advice: Advice) -> str:
    """Return the picture as SVG. Each point names itself, and the table below has the same figures."""
    most, colours, scores = advice.asked.gpus, _colours(advice), advice.scores()
    label = f"SLO attainment over GPUs held, for {len(scores)} settings; the tables below have the figures"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(label)}">'
        + "".join(_grid(most, advice.target))
        + _line(scores, most)
        + "".join(_point(one, colours, most, one is advice.best) for one in scores)
        + "</svg>"
    )


def _grid(most: int, target: float) -> Iterator[str]:
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        yield f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{_y(share):.1f}" y2="{_y(share):.1f}" stroke="var(--line)"/>'
        yield f'<text x="{LEFT - 6}" y="{_y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
    for gpus in range(0, most + 1, max(most // 8, 1)):
        yield f'<text x="{_x(gpus, most):.1f}" y="{HEIGHT - 24}" text-anchor="middle">{gpus}</text>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">GPUs held, on the average</text>'
    yield (
        f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{_y(target):.1f}" y2="{_y(target):.1f}" stroke="#c8403a" '
        'stroke-dasharray="3 4"/>'
    )


def _line(scores: Sequence[Score], most: int) -> str:
    points = " ".join(f"{_x(one.gpus, most):.1f},{_y(one.attainment):.1f}" for one in front(scores))
    return f'<polyline points="{points}" fill="none" stroke="var(--soft)" stroke-dasharray="5 4"/>'


def _point(one: Score, colours: dict[str, str], most: int, best: bool) -> str:
    said = f"{one.candidate.name}: {percent(one.attainment)} with {one.gpus:.1f} GPUs"
    ring = ' stroke="var(--ink)" stroke-width="2"' if best else ""
    return (
        f'<circle cx="{_x(one.gpus, most):.1f}" cy="{_y(one.attainment):.1f}" r="{7 if best else 4.5}" '
        f'fill="{colours[one.candidate.system]}" fill-opacity=".85"{ring}><title>{html.escape(said)}</title></circle>'
    )


def _table(scores: Iterable[Score]) -> str:
    head = "".join(
        f'<th scope="col">{title}</th>'
        for title in (
            "what runs",
            "GPUs",
            "SLO attainment",
            "within the simulator's error",
            "goodput, 1/s",
            "P99 / SLO",
        )
    )
    rows = "".join(
        f'<tr><th scope="row">{html.escape(one.candidate.name)}</th><td>{one.gpus:.1f}</td>'
        f"<td>{percent(one.attainment)}</td><td>{percent(one.missed.low)} to {percent(one.missed.high)}</td>"
        f"<td>{one.goodput:.2f}</td><td>{one.strain:.2f}</td></tr>"
        for one in scores
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
