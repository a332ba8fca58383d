"""The advice as one HTML page that opens offline: the verdict, a picture of what GPUs buy, and all that was tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pdplugins.report.html import Html, element, together
from pdplugins.report.layout import Page, Section, document, origin, shares, table
from pdplugins.report.svg import Chart, Line, Mark, figure
from pdplugins.studies.advise.race import Score
from pdplugins.studies.advise.search import Advice
from pdplugins.studies.advise.words import fewest, front, percent, verdict

COLUMNS = ("what runs", "GPUs", "SLO attainment", "within the simulator's error", "goodput, 1/s", "P99 / SLO")


def page(advice: Advice, command: str, commit: str) -> str:
    """Return the page."""
    first, *more = verdict(advice)
    return document(Page(first, [*more, *fewest(advice)], sections=list(_sections(advice, command, commit))))


def _sections(advice: Advice, command: str, commit: str) -> Iterator[Section]:
    bars = ((score.candidate.name, score.attainment, percent(score.attainment)) for score in advice.finalists)
    yield Section("SLO attainment on all of the traffic", shares(bars))
    yield Section("What GPUs buy", element("div", figure(_picture(advice)), class_="wide"))
    yield Section("On all of the traffic", _table("The finalists", advice.finalists))
    tried = sorted(advice.tried, key=lambda score: (score.candidate.rank, -score.gpus, -score.attainment))
    settings = element("p", f"{advice.settings} settings were simulated. {_left_out(advice)}")
    yield Section("On a part of it", together((_table("The best settings of every system", tried), settings)))
    yield Section("Settings and origin", _origin(advice, command, commit))


def _left_out(advice: Advice) -> str:
    names = sorted({f"{left.candidate.system} ({left.why})" for left in advice.left_out})
    return "Left out: " + "; ".join(names) + "." if names else ""


def _picture(advice: Advice) -> Chart:
    """Return what each setting attains with how many GPUs; the dashed line is what nothing else beats."""
    scores = advice.scores()
    best = front(scores)
    lines = [
        Line("nothing else attains more", [score.gpus for score in best], [_y(score) for score in best], 5, dash=True)
    ]
    for index, name in enumerate(advice.names()):
        own = [score for score in scores if score.candidate.system == name]
        titles = [f"{score.candidate.name}: {percent(score.attainment)} with {score.gpus:.1f} GPUs" for score in own]
        lines.append(Line(name, [score.gpus for score in own], [_y(score) for score in own], index, dots=titles))
    target = [Mark("target", y=100 * advice.target)]
    return Chart("SLO attainment over GPUs", "%", lines, x="GPUs held, on the average", marks=target, top=100)


def _y(score: Score) -> float:
    return 100 * score.attainment


def _table(caption: str, scores: Iterable[Score]) -> Html:
    rows = (
        (
            score.candidate.name,
            f"{score.gpus:.1f}",
            percent(score.attainment),
            f"{percent(score.missed.low)} to {percent(score.missed.high)}",
            f"{score.goodput:.2f}",
            f"{score.strain:.2f}",
        )
        for score in scores
    )
    return table(caption, COLUMNS, rows)


def _origin(advice: Advice, command: str, commit: str) -> Html:
    asked = advice.asked
    rows = {
        "kind": "simulated",
        "traffic": f"{advice.traffic.name}: {len(advice.traffic.requests)} arrivals, {advice.traffic.rate:.3g}/s",
        "profile": asked.profile,
        "GPUs": f"at most {asked.gpus}",
        "SLO": f"TTFT {asked.ttft_s:g} s, TPOT {1e3 * asked.tpot_s:g} ms, target {percent(advice.target)}",
        "command": element("code", command),
        "commit": commit,
    }
    return origin(rows)
