"""One page: the verdict first, then its parts. It fits a phone, needs no mouse and no eyes, and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pdplugins.report.html import Html, element, together

STYLE = Path(__file__).with_name("style.css")
OFFLINE = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a page in a file may do: show its own style. Nothing runs in it and nothing is loaded."""
COLOURS = 8
"""How many there are for lines, in the style."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page."""

    title: str
    content: Html
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says, in its order."""

    verdict: str
    lines: Sequence[str] = ()
    """What more there is to say at once."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The few numbers that everybody looks for."""
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = ()


def document(page: Page) -> str:
    """Return the page as one file that opens offline."""
    head = (
        element("meta", http_equiv="Content-Security-Policy", content=OFFLINE),
        element("style", Html(STYLE.read_text(encoding="utf-8"))),
    )
    return whole(page, head)


def whole(page: Page, head: Iterable[Html], body: object = None) -> str:
    """Return the page as a document.

    :param head: where its style comes from, and what else belongs there.
    :param body: comes after the page.
    """
    inside = (
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{page.verdict} · pdplugins"),
        head,
    )
    text = (element("head", inside), element("body", main(page), body))
    return f"<!doctype html>\n{element('html', text, lang='en')}\n"


def main(page: Page) -> Html:
    """Return the content of a page."""
    return element(
        "main",
        element("h1", page.verdict),
        [element("p", line.strip()) for line in page.lines],
        [element("p", line, class_="warn") for line in page.warnings],
        numbers(page.facts),
        [_section(section) for section in page.sections],
    )


def _section(section: Section) -> Html:
    return element("section", element("h2", section.title), section.content, id=section.id, aria_label=section.title)


def numbers(facts: Mapping[str, object]) -> Html:
    """Return facts side by side, as many as there is room for."""
    if not facts:
        return Html()
    rows = (element("div", element("dt", name), element("dd", value)) for name, value in facts.items())
    return element("dl", rows, class_="facts")


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], *, prose: bool = False) -> Html:
    """Return a table, of which the first cell of each row names the row. On a phone each row is a block of its own.

    Roles are spelt out: browsers forget that a table is one when its rows are shown as blocks.

    :param prose: whether the last column is text.
    """
    titles = [element("th", title, scope="col", role="columnheader") for title in head]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row", role="rowheader"),
            [element("td", cell, role="cell", data_label=title) for title, cell in zip(head[1:], row[1:], strict=True)],
            role="row",
        )
        for row in rows
    ]
    return element(
        "table",
        element("caption", caption),
        element("thead", element("tr", titles, role="row"), role="rowgroup"),
        element("tbody", body, role="rowgroup"),
        role="table",
        class_="prose" if prose else None,
    )


def origin(facts: Mapping[str, object]) -> Html:
    """Return the table of what a page was made from. A value may be a mapping itself, as versions are."""
    rows = (
        (name, ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, Mapping) else value)
        for name, value in facts.items()
    )
    return table("Where this comes from", ["setting", "value"], rows, prose=True)


def shares(rows: Iterable[tuple[object, float | None, str]]) -> Html:
    """Return a bar for each (name, share, what is written beside it); longer is more."""
    items = (
        element("li", element("span", name), element("b", label), _bar(share or 0.0, index))
        for index, (name, share, label) in enumerate(rows)
    )
    return element("ul", items, class_="bars")


def _bar(share: float, index: int) -> Html:
    length = f"{100 * min(max(share, 0.0), 1.0):.2f}"
    bar = element("rect", width=length, height=1, fill=colour(index))
    return element("svg", bar, viewBox="0 0 100 1", preserveAspectRatio="none", aria_hidden="true")


def colour(index: int) -> str:
    """Return the colour of the line or bar of that number."""
    return f"var(--c{index % COLOURS})"


def swatch(index: int, dash: bool = False) -> Html:
    """Return a sample of a line."""
    line = element(
        "line", x1=0, x2=18, y1=4, y2=4, stroke=colour(index), stroke_width=3, stroke_dasharray="4 3" if dash else None
    )
    return element("svg", line, viewBox="0 0 18 8", class_="swatch", aria_hidden="true")


def hidden(summary: str, content: object) -> Html:
    """Return what is shown when its summary is chosen."""
    return element("details", element("summary", summary), content)


def paragraphs(lines: Iterable[str]) -> Html:
    """Return each line as a paragraph."""
    return together(element("p", line.strip()) for line in lines)
