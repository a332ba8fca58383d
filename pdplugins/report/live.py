"""The same page live: what a host shows of itself now, and how that was in the last minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from pdplugins.errors import one_line
from pdplugins.redaction import redacted
from pdplugins.report.html import Html, element
from pdplugins.report.layout import Page, Section, table
from pdplugins.report.svg import Chart, Line, Mark, figure

MOST_MOMENTS = 300
"""Moments that are remembered: five minutes, at one a second."""
MOST_DECISIONS = 40
MOST_PARTS, MOST_GAUGES, MOST_ROWS = 8, 12, 64
"""What is shown of a gauge, of gauges, and of workers or settings."""
LONGEST = 400
"""Characters of one text."""

Parts = Mapping[str, float | None]
"""Values by what they are of, as in ``prefill``; None where nothing is known."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """What is counted now."""

    title: str
    unit: str
    parts: Parts
    objective: float | None = None
    share: bool = False
    """Whether it goes from 0 to 100."""
    step: bool = True


@dataclass(frozen=True, slots=True)
class Now:
    """Everything that a host shows, at one moment. Texts may come from anywhere."""

    verdict: str
    lines: Sequence[str] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    gauges: Sequence[Gauge] = ()
    """In their order on the page: attainment first."""
    workers: Sequence[Sequence[object]] = ()
    """A row for each: its name, and what `worker_titles` says."""
    worker_titles: Sequence[str] = ("worker",)
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided, and why."""

    at_s: float
    what: str
    why: str


class Live:
    """The last minutes of a host, in constant space."""

    def __init__(self) -> None:
        self._moments: deque[tuple[float, Mapping[str, Parts]]] = deque(maxlen=MOST_MOMENTS)
        self._decisions: deque[Decision] = deque(maxlen=MOST_DECISIONS)
        self._now: Now | None = None

    def show(self, at_s: float, now: Now) -> None:
        """Take in how things are at `at_s` seconds since the start."""
        gauges = {gauge.title: dict(islice(gauge.parts.items(), MOST_PARTS)) for gauge in now.gauges[:MOST_GAUGES]}
        self._moments.append((at_s, gauges))
        self._now = now

    def decided(self, at_s: float, what: str, why: str) -> None:
        """Take in a decision."""
        self._decisions.append(Decision(at_s, clean(what), clean(why)))

    def page(self) -> Page:
        """Return the page of this moment."""
        now = self._now
        if now is None:
            return Page("Starting")
        moments = list(self._moments)
        charts = [figure(_chart(gauge, moments)) for gauge in now.gauges[:MOST_GAUGES]]
        sections = [
            Section("Over the last minutes", element("div", charts, class_="charts"), "charts"),
            Section("Decisions", self._decided(moments[-1][0]), "decisions"),
        ]
        if now.workers:
            rows = [[clean(cell) for cell in row] for row in now.workers[:MOST_ROWS]]
            sections.append(Section("Workers", table(_count(now.workers), now.worker_titles, rows), "workers"))
        settings = [(clean(name), clean(value)) for name, value in islice(now.settings.items(), MOST_ROWS)]
        sections.append(Section("Settings", table("What runs here", ["setting", "value"], settings, prose=True), "set"))
        facts = {name: clean(value) for name, value in now.facts.items()}
        return Page(clean(now.verdict), [clean(line) for line in now.lines], facts, (), sections)

    def _decided(self, now_s: float) -> Html:
        if not self._decisions:
            return element("p", "None yet.")
        rows = [
            (_ago(now_s - decision.at_s), decision.what, decision.why) for decision in reversed(list(self._decisions))
        ]
        return table("The last decisions, the latest first", ["when", "what", "why"], rows, prose=True)


def clean(text: object) -> str:
    """Return what came from anywhere as one short line without secrets."""
    return one_line(redacted(str(text)[: 4 * LONGEST]), LONGEST)


def _chart(gauge: Gauge, moments: Sequence[tuple[float, Mapping[str, Parts]]]) -> Chart:
    known = [(at_s, gauges.get(gauge.title, {})) for at_s, gauges in moments]
    last_s = moments[-1][0]
    ago = [at_s - last_s for at_s, _ in known]
    lines = [
        Line(part or gauge.title.lower(), ago, [parts.get(part) for _, parts in known], index)
        for index, part in enumerate(islice(gauge.parts, MOST_PARTS))
    ]
    marks = [] if gauge.objective is None else [Mark("SLO", y=gauge.objective)]
    top = 100 if gauge.share else None
    return Chart(gauge.title, gauge.unit, lines, "seconds from now", marks, step=gauge.step, top=top)


def _count(workers: Sequence[object]) -> str:
    hidden = len(workers) - MOST_ROWS
    return f"{len(workers)} workers" + (f"; {hidden} of them are not shown" if hidden > 0 else "")


def _ago(seconds: float) -> str:
    return f"{max(seconds, 0):.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"


def by_role(prefill: float | None, decode: float | None) -> Parts:
    """Return what is counted for both phases."""
    return {"prefill": prefill, "decode": decode}
