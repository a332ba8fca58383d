"""Charts as SVG. Each says in words what it shows, and keeps its figures in a table below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pdplugins.report.html import Html, element
from pdplugins.report.layout import colour, hidden, swatch, table

WIDTH, HEIGHT = 440, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 36
MOST_POINTS = 2400
"""Points of a chart, of all lines together: a page of many runs stays small."""
MOST_ROWS = 12
"""Rows of the table below a chart."""

Values = Sequence[float | None]
"""One value for each point; None where there is none."""
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, or its points."""

    name: str
    x: Values
    y: Values
    colour: int = 0
    dash: bool = False
    dots: Sequence[str] | None = None
    """What each point is called, where there are points instead of a line."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A straight line across a chart, such as an objective: at an `x` or at a `y`."""

    label: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart."""

    title: str
    unit: str
    lines: Sequence[Line]
    x: str = "time, s"
    """What goes to the right."""
    marks: Sequence[Mark] = ()
    step: bool = False
    """Whether a value holds until the next one."""
    area: bool = False
    log_x: bool = False
    log_y: bool = False
    top: float | None = None
    """Where the chart ends above; None: where its values do."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a chart: what lies between two values, from `start` to `end` in the picture."""

    low: float
    high: float
    log: bool
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return where a value lies."""
        scaled: Callable[[float], float] = math.log if self.log else float
        share = (scaled(value) - scaled(self.low)) / (scaled(self.high) - scaled(self.low))
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values to be written at it."""
        if self.log:
            ends = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if self.high / self.low < 200 else (1,)
            found = [m * 10.0**e for e in ends for m in steps if self.low <= m * 10.0**e <= self.high * (1 + 1e-9)]
            if len(found) > 2:
                return found
        raw = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= raw * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


def figure(chart: Chart) -> Html:
    """Return a chart with its title, its legend and its figures; nothing where it has no point."""
    lines = [line for line in chart.lines if any(_shown(chart, line))]
    if not lines:
        return Html()
    legend = [element("li", swatch(line.colour, line.dash), line.name) for line in lines]
    return element(
        "figure",
        element("figcaption", chart.title, element("small", chart.unit)),
        element("ul", legend, class_="legend") if len(lines) > 1 or lines[0].dots else None,
        _plot(chart, lines),
        hidden("figures", _figures(chart, lines)),
    )


def _shown(chart: Chart, line: Line) -> list[Point]:
    return [
        (x, y)
        for x, y in zip(line.x, line.y, strict=True)
        if x is not None
        and y is not None
        and math.isfinite(x)
        and math.isfinite(y)
        and (x > 0 or not chart.log_x)
        and (y > 0 or not chart.log_y)
    ]


def _axes(chart: Chart, points: Sequence[Point]) -> tuple[Axis, Axis]:
    xs = [x for x, _ in points] + [mark.x for mark in chart.marks if mark.x is not None]
    ys = [y for _, y in points] + [mark.y for mark in chart.marks if mark.y is not None]
    left, right = (min(xs) if chart.log_x else min(0.0, *xs)), max(xs)
    low, high = (min(ys) if chart.log_y else min(0.0, *ys)), chart.top or max(ys)
    if left == right:
        left, right = (left / 2, right * 2) if chart.log_x else (left, left + 1)
    if low == high:
        low, high = (low / 2, high * 2) if chart.log_y else (low, low + 1)
    across = Axis(left, right, chart.log_x, LEFT, WIDTH - RIGHT)
    return across, Axis(low, high, chart.log_y, HEIGHT - BOTTOM, TOP)


def _plot(chart: Chart, lines: Sequence[Line]) -> Html:
    across, up = _axes(chart, [point for line in lines for point in _shown(chart, line)])
    most = max(MOST_POINTS // len(lines), 8)
    drawn = [part for line in lines for part in _drawn(chart, line, across, up, most)]
    inside = (list(_grid(chart, across, up)), drawn, list(_marks(chart, across, up)))
    words = "; ".join(_in_words(chart, line) for line in lines[:20])
    label = f"{chart.title}, {chart.unit}, over {chart.x}. {words}. Figures are in the table below."
    return element("svg", inside, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="plot", role="img", aria_label=label)


def _in_words(chart: Chart, line: Line) -> str:
    ys = [y for _, y in _shown(chart, line)]
    return f"{line.name}: {number(min(ys))} to {number(max(ys))}, {number(ys[-1])} at the end"


def _grid(chart: Chart, across: Axis, up: Axis) -> Iterator[Html]:
    for y in up.ticks():
        y_px = f"{up.at(y):.1f}"
        yield element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y_px, y2=y_px, stroke="var(--line)")
        yield element("text", number(y), x=LEFT - 6, y=f"{up.at(y) + 4:.1f}", text_anchor="end")
    for x in across.ticks():
        yield element("text", number(x), x=f"{across.at(x):.1f}", y=HEIGHT - BOTTOM + 15, text_anchor="middle")
    yield element("text", chart.x, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 5, text_anchor="middle")


def _drawn(chart: Chart, line: Line, across: Axis, up: Axis, most: int) -> Iterator[Html]:
    points = _shown(chart, line)
    if line.dots is not None:
        for (x, y), name in zip(points, line.dots, strict=True):
            at_x, at_y = f"{across.at(x):.1f}", f"{up.at(y):.1f}"
            title = element("title", name)
            yield element("circle", title, cx=at_x, cy=at_y, r=5, fill=colour(line.colour), fill_opacity=".85")
        return
    kept = held(points) if chart.step else points
    pixels = [(across.at(x), up.at(y)) for x, y in thinned(kept, most)]
    path = _path(pixels, chart.step)
    if chart.area:
        bottom = up.at(up.low)
        closed = f"{path}L{pixels[-1][0]:.1f} {bottom:.1f}L{pixels[0][0]:.1f} {bottom:.1f}Z"
        yield element("path", d=closed, fill=colour(line.colour), opacity=".14")
    dashes = "5 3" if line.dash else None
    yield element("path", d=path, fill="none", stroke=colour(line.colour), stroke_width="1.8", stroke_dasharray=dashes)


def _path(pixels: Sequence[Point], step: bool) -> str:
    (x, y), *rest = pixels
    if step:
        return f"M{x:.1f} {y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest)
    return f"M{x:.1f} {y:.1f}" + "".join(f"L{x:.1f} {y:.1f}" for x, y in rest)


def _marks(chart: Chart, across: Axis, up: Axis) -> Iterator[Html]:
    for mark in chart.marks:
        if mark.y is not None:
            y_px = up.at(mark.y)
            ends = {"x1": LEFT, "x2": WIDTH - RIGHT, "y1": f"{y_px:.1f}", "y2": f"{y_px:.1f}"}
            words = {"x": WIDTH - RIGHT, "y": f"{max(y_px - 4, TOP + 10):.1f}", "text_anchor": "end"}
        else:
            x_px = across.at(mark.x or 0.0)
            ends = {"x1": f"{x_px:.1f}", "x2": f"{x_px:.1f}", "y1": TOP, "y2": HEIGHT - BOTTOM}
            near = x_px > WIDTH - 60
            words = {
                "x": f"{x_px + (-4 if near else 4):.1f}",
                "y": TOP + 10,
                "text_anchor": "end" if near else "start",
            }
        yield element("line", **ends, stroke="var(--warn)", stroke_dasharray="3 3")
        yield element("text", mark.label, **words)


def held(points: Sequence[Point]) -> list[Point]:
    """Return the points of a line of steps without those at which nothing changes; its ends stay."""
    changes = [now for before, now in pairwise(points) if now[1] != before[1]]
    return [points[0], *changes, *([points[-1]] if len(points) > 1 and points[-1] not in changes[-1:] else [])]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return about `most` of `points`: of each part the lowest and the highest, so that no peak is lost."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    parts = (range(start, min(start + size, len(points))) for start in range(0, len(points), size))
    kept = {pick(part, key=lambda index: points[index][1]) for part in parts for pick in (min, max)}
    return [points[index] for index in sorted(kept | {0, len(points) - 1})]


def _figures(chart: Chart, lines: Sequence[Line]) -> Html:
    """Return a few rows of the figures of a chart; of points all of them."""
    if any(line.dots is not None for line in lines):
        rows: list[tuple[object, ...]] = [
            (name or line.name, number(x), number(y))
            for line in lines
            if line.dots is not None
            for name, (x, y) in zip(line.dots, _shown(chart, line), strict=True)
        ]
        return table(chart.title, ["point", chart.x, chart.unit], rows)
    known = [dict(_shown(chart, line)) for line in lines[:8]]
    xs = sorted(set().union(*known))
    picked = [xs[round(index * (len(xs) - 1) / (MOST_ROWS - 1))] for index in range(MOST_ROWS)]
    body = [(number(x), *(_value(chart, values, x) for values in known)) for x in dict.fromkeys(picked)]
    return table(f"{chart.title}, {chart.unit}", [chart.x, *(line.name for line in lines[:8])], body)


def _value(chart: Chart, values: dict[float, float], x: float) -> str:
    if chart.step and x not in values:
        before = [known for known in values if known <= x]
        return number(values[max(before)]) if before else "-"
    return number(values[x]) if x in values else "-"


def number(value: float) -> str:
    """Return a number with as many digits as are of use."""
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
