"""Elements and charts: what enters them is escaped, and their lines keep what matters."""

from __future__ import annotations

import pytest

from pdplugins.report.html import Html, element, together
from pdplugins.report.layout import shares, table
from pdplugins.report.svg import Chart, Line, Mark, figure, held, number, thinned


def test_text_is_escaped_and_html_is_not() -> None:
    inside = element("p", "1 < 2 & 3", Html("<br>"), ["a", None, 'b"'])
    assert inside == "<p>1 &lt; 2 &amp; 3<br>ab&quot;</p>"
    assert element("td", 5, data_label='"><b>', class_="x", hidden=True, role=None) == (
        '<td data-label="&quot;&gt;&lt;b&gt;" class="x" hidden>5</td>'
    )
    assert together(["a", ["<", Html("<i>")]]) == "a&lt;<i>"


def test_characters_that_no_page_may_hold_are_replaced() -> None:
    assert element("p", "a\x00b\x1b[31m\u202ec\nd") == "<p>a\ufffdb\ufffd[31m\ufffdc\nd</p>"


def test_a_row_needs_a_cell_for_every_title() -> None:
    with pytest.raises(ValueError, match="zip"):
        table("x", ["a", "b"], [("only one",)])


def test_a_bar_is_never_longer_than_its_place() -> None:
    text = shares([("a", 1.7, "x"), ("b", None, "y"), ("c", 0.5, "z")])
    assert [part.split('"')[0] for part in text.split('width="')[1:]] == ["100.00", "0.00", "50.00"]


def test_thinning_keeps_ends_and_peaks() -> None:
    points = [(float(x), 1000.0 if x == 4321 else float(x % 7)) for x in range(10_000)]
    kept = thinned(points, 100)
    assert len(kept) <= 110
    assert {points[0], points[-1], points[4321]} <= set(kept)
    assert kept == sorted(kept)
    assert thinned(points[:50], 100) == points[:50]


def test_steps_keep_every_change() -> None:
    points = [(0.0, 1.0), (1.0, 1.0), (2.0, 3.0), (3.0, 3.0), (4.0, 1.0)]
    assert held(points) == [(0.0, 1.0), (2.0, 3.0), (4.0, 1.0)]
    assert held(points[:4]) == [(0.0, 1.0), (2.0, 3.0), (3.0, 3.0)]
    assert held(points[:1]) == points[:1]


@pytest.mark.parametrize(
    ("x", "y", "more"),
    [
        ([1.0], [5.0], {}),
        ([0.0, 1.0], [0.0, 0.0], {}),
        ([0.001, 3.0], [0.01, 200.0], {"log_x": True, "log_y": True}),
        ([2.0, 2.0], [3.0, 3.0], {"log_x": True, "log_y": True}),
        ([1.0, 2.0, 3.0], [None, 1e12, -4.0], {"marks": [Mark("here", x=2.0), Mark("there", y=1.0)]}),
        ([0.0, 1.0, 2.0], [1.0, float("nan"), float("inf")], {"step": True, "area": True}),
    ],
)
def test_any_figures_can_be_drawn(x: list[float], y: list[float | None], more: dict[str, object]) -> None:
    text = figure(Chart("a chart", "units", [Line("a line", x, y)], **more))  # type: ignore[arg-type]
    assert 'role="img" aria-label="a chart, units, over time, s. a line: ' in text
    assert "nan" not in text
    assert "inf" not in text.replace("information", "")


def test_a_chart_without_a_point_is_left_out() -> None:
    assert figure(Chart("a chart", "units", [Line("a line", [0.0], [None])])) == ""
    assert figure(Chart("a chart", "units", [])) == ""


def test_the_table_below_has_the_figures() -> None:
    lines = [Line("one", [0.0, 10.0, 20.0], [1.0, 4.0, 2.0]), Line("two", [5.0], [7.0])]
    text = figure(Chart("a chart", "units", lines, step=True))
    assert '<th scope="row" role="rowheader">5</th><td role="cell" data-label="one">1</td>' in text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.25, "0.25"), (1234.5, "1234"), (43210.7, "43211"), (2e7, "2.0e+07")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text
