#!/usr/bin/env python3
"""The map of docs/which-plugin.md: for each traffic that was simulated, what served most of it, ours or stock.

    python benchmarks/which_plugin.py [--check]

It reads the published results, and writes the tables of the page and its picture. A cell is one traffic on some GPUs.
What has the best of its settings stands against what has the best of its settings, as each result says.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import manifest
import planners_report

from pdplugins.report.html import Html, element

PAGE = manifest.ROOT / "docs/which-plugin.md"
PICTURE = PAGE.with_suffix(".svg")
COLOCATED, SPLIT = "stock co-location", "stock fixed split"
SIMPLEST = (COLOCATED, SPLIT)
"""What is simpler than any plugin, the simplest first."""
NEAR = 0.02
"""By how much less of a rate counts as level: the highest rates are known to about two percent."""
NEAR_POINTS = 0.5
"""And of attainment, in percentage points."""
FUSION_CELLS = (
    "four workers: h100 is Llama-3.1-70B on two H100 each, a100 Qwen2.5-14B on one A100, h800 Llama-3.1-8B on one "
    "H800, h200 DeepSeek-R1 on eight H200. The TPOT objective is 6 (loose), 3 (middle) or 1.5 (strict) times a decode "
    "step of one request. Figures are the highest rate with 90 % attainment"
)
COLOURS = {COLOCATED: "#8a94a3", SPLIT: "#c9a227"}
PLUGINS = {"arrow": "#2563cf", "ampd": "#1f7d54", "dynaserve": "#b9601a", "rapid": "#a03a8e", "fusion": "#bb332b"}

Data = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One traffic on some GPUs."""

    kind: str
    """What the traffic is like, in the words of the table."""
    traffic: str
    gpus: str
    unit: str
    """``%`` for attainment, else of the highest rate."""
    values: dict[str, float]
    source: str

    def near(self, value: float, best: float) -> bool:
        """Tell whether a value is as good as the best, as far as it is known."""
        return value >= best - NEAR_POINTS if self.unit == "%" else value >= best * (1 - NEAR)

    @property
    def advised(self) -> str:
        """The simplest of what is as good as the best."""
        best = max(self.values.values())
        order = [*SIMPLEST, self.plugin]
        return next(name for name in order if name in self.values and self.near(self.values[name], best))

    @property
    def plugin(self) -> str:
        """The best of our plugins."""
        return max(sorted(self.values.keys() - set(SIMPLEST)), key=lambda name: self.values[name])

    def text(self, name: str) -> str:
        """Return the value of one system."""
        if name not in self.values:
            return "-"
        value = self.values[name]
        return f"{value:.1f} %" if self.unit == "%" else f"{value:.4g} {self.unit}"


def cells() -> list[Cell]:
    """Return every cell of the results that there are."""
    makers = (_bursts, _single, _hybrid, _sessions, _recorded, _watts, _fusion)
    return [cell for make in makers for cell in make()]


def _bursts() -> Iterator[Cell]:
    rows = manifest.read("compare")["rows"]
    best: dict[str, float] = {}
    names = {"stock-colocated": COLOCATED, "stock-least-loaded": SPLIT}
    for row in rows:
        fair = row["settings"] == "as shipped" or row["settings"].startswith("tuned")
        if fair and row["system"] in {*names, *PLUGINS}:
            name = names.get(row["system"], row["system"])
            best[name] = max(best.get(name, 0.0), 100 * row["attainment"])
    yield Cell("single rounds, bursts", "azure-like, 10 requests/s, 70B", "8 H100", "%", best, "compare")


def _single() -> Iterator[Cell]:
    """Arrow's highest rates: 8B on eight H800."""
    found: dict[str, dict[str, float]] = {}
    for row in manifest.read("arrow-figure7")["rows"]:
        name = _named(row["system"], {"arrow": "arrow", "best static split": SPLIT, "co-located": COLOCATED})
        if name is not None:
            found.setdefault(row["trace"], {})[name] = row["max rate, req/s"]
    for trace, values in found.items():
        yield Cell("single rounds, Arrow's experiment", f"{trace}, 8B", "8 H800", "requests/s", values, "arrow-figure7")


def _hybrid() -> Iterator[Cell]:
    """DynaServe's capacities: 14B on eight A100."""
    found: dict[str, dict[str, float]] = {}
    known = {"DynaServe, 4P4D": "dynaserve", "disaggregated, best ratio": SPLIT, "co-located, best chunk": COLOCATED}
    for row in manifest.read("dynaserve-static-ratio")["rows"]:
        if (name := _named(row["system"], known)) is not None:
            found.setdefault(row["workload"], {})[name] = row["rps"]
    for workload, values in found.items():
        kind = "single rounds, strict TBT (P99 100 ms)"
        yield Cell(kind, f"{workload}, 14B", "8 A100", "requests/s", values, "dynaserve-static-ratio")


def _sessions() -> Iterator[Cell]:
    """AMPD's sessions, at the highest of the rates: there systems differ most."""
    last = {(row["model"], row["trace"]): row for row in manifest.read("ampd-figure4")["rows"]}
    for (model, trace), row in last.items():
        values = _percent(row, {"ampd": "ampd", "co-located, best chunks": COLOCATED, "Dynamo-like": SPLIT})
        where = f"{trace}, {row['sessions/s']} sessions/s, {model}"
        yield Cell("sessions with tools", where, "32 H20", "%", values, "ampd-figure4")


def _recorded() -> Iterator[Cell]:
    last = {row["trace"]: row for row in manifest.read("ampd-sessions")["rows"]}
    for trace, row in last.items():
        values = _percent(row, {"ampd": "ampd", "co-located": COLOCATED, "Dynamo-like": SPLIT})
        where = f"{trace}, {row['sessions/s']} sessions/s, 70B"
        yield Cell("sessions of recorded agents", where, "16 H100", "%", values, "ampd-sessions")


def _watts() -> Iterator[Cell]:
    """RAPID's two phases under a node's budget of watts."""
    rows = {row["system"]: row for row in manifest.read("rapid-figure8")["rows"]}
    for rate in ("1", "1.5", "2"):
        values = {
            "rapid": 100 * max(row[rate] for name, row in rows.items() if name.startswith("DynGPU")),
            SPLIT: 100 * rows["best static split of each rate"][rate],
            COLOCATED: 100 * rows["Coalesced-600W, best chunks of each rate"][rate],
        }
        where = f"long prompts, then long answers, {rate} requests/s a GPU, 8B"
        yield Cell("phases that change, watts limited", where, "8 MI300X", "%", values, "rapid-figure8")


def _fusion() -> Iterator[Cell]:
    """Fusion's matrix, once it has been made: the highest rate of every system in every cell."""
    if not (manifest.RESULTS / "fusion-systems.json").exists():
        return
    for row in manifest.read("fusion-systems")["cells"]:
        values: dict[str, float] = {}
        capacity = sum(row["capacities"]) / len(row["capacities"])
        for name, one in row["systems"].items():
            kind = _named(name, {"co-located": COLOCATED, "best static split": SPLIT, **{key: key for key in PLUGINS}})
            if kind is not None:
                rate = capacity * sum(one["highest"]) / len(one["highest"])
                values[kind] = max(values.get(kind, 0.0), rate)
        if {COLOCATED, SPLIT} < values.keys():
            yield Cell("fusion's matrix", row["cell"], FUSION_CELLS, "requests/s", values, "fusion-systems")


def _named(system: str, known: dict[str, str]) -> str | None:
    return next((name for begins, name in known.items() if system.startswith(begins)), None)


def _percent(row: Data, columns: dict[str, str]) -> dict[str, float]:
    return {name: 100 * row[column] for column, name in columns.items()}


# --- the page ---------------------------------------------------------------------------------------------------------


def summary(found: Sequence[Cell]) -> str:
    """Say in how many cells what is advised."""
    counts: dict[str, int] = {}
    for cell in found:
        counts[cell.advised] = counts.get(cell.advised, 0) + 1
    stock = sum(counts.get(name, 0) for name in SIMPLEST)
    parts = ", ".join(f"{name} in {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
    return f"Of {len(found)} cells stock is as good as any plugin in {stock}. What to run: {parts}."


def tables(found: Sequence[Cell]) -> str:
    """Return the tables of the cells, by the kind of traffic."""
    lines = [summary(found), ""]
    for kind in dict.fromkeys(cell.kind for cell in found):
        own = [cell for cell in found if cell.kind == kind]
        sources = ", ".join(f"`{name}`" for name in dict.fromkeys(cell.source for cell in own))
        gpus = ", ".join(dict.fromkeys(cell.gpus for cell in own))
        lines += [f"### {kind[0].upper()}{kind[1:]}", "", f"{gpus}; result {sources}.", ""]
        lines += [
            "| traffic | run | best plugin | co-location, tuned | fixed split, tuned |",
            "|---|---|---:|---:|---:|",
        ]
        for cell in own:
            ours = f"`{cell.plugin}` {cell.text(cell.plugin)}"
            run = cell.advised if cell.advised in SIMPLEST else f"`{cell.advised}`"
            row = (cell.traffic, f"**{run}**", ours, cell.text(COLOCATED), cell.text(SPLIT))
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    return "\n".join(lines).rstrip()


BLOCKS: dict[str, Callable[[], str]] = {
    "map": lambda: tables(cells()),
    "planners": planners_report.headline,
}


def rendered(text: str) -> str:
    """Return the text of the page with what the results say now."""
    for name, make in BLOCKS.items():
        block = re.compile(rf"(<!-- {name}: begin[^\n]*-->\n).*?(\n<!-- {name}: end -->)", re.DOTALL)
        text, count = block.subn(lambda found, make=make: f"{found[1]}\n{make()}\n{found[2]}", text)  # type: ignore[misc]
        assert count == 1, f"{PAGE.name} has no block {name}"
    return text


# --- the picture ------------------------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT, ROW, HEAD = 760, 330, 20, 22, 58
STYLE = (
    "text { font: 13px system-ui, sans-serif; fill: #1b2330 } .soft { fill: #55606f } line { stroke: #dfe4ea } "
    "rect.page { fill: #fff }"
)


def picture(found: Sequence[Cell]) -> str:
    """Return the map as SVG: a row for each cell, a dot for each system, as a share of the best in the cell."""
    height = HEAD + ROW * len(found) + 34
    label = f"{len(found)} cells; for each system what it serves as a share of the best in its cell. {summary(found)}"
    inside = [
        element("title", "What serves most, by traffic"),
        element("desc", label),
        element("style", Html(STYLE)),
        element("rect", class_="page", width=WIDTH, height=height),
        *_legend(),
        *_scale(height),
        *(part for index, cell in enumerate(found) for part in _dots(cell, HEAD + ROW * (index + 0.5))),
    ]
    svg = element("svg", inside, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height}", role="img")
    return f"{svg}\n"


def _legend() -> Iterator[Html]:
    for index, (name, colour) in enumerate({**COLOURS, **PLUGINS}.items()):
        x, y = 14 + 150 * (index % 5), 18 + 20 * (index // 5)
        yield element("circle", cx=x, cy=y - 4, r=5, fill=colour)
        yield element("text", name, x=x + 10, y=y)


def _scale(height: int) -> Iterator[Html]:
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        yield element("line", x1=x, x2=x, y1=HEAD, y2=height - 30)
        yield element("text", f"{share:.0%}", x=x, y=height - 14, text_anchor="middle", class_="soft")


def _dots(cell: Cell, y: float) -> Iterator[Html]:
    best = max(cell.values.values())
    short = cell.traffic if len(cell.traffic) <= 46 else f"{cell.traffic[:45]}…"
    yield element("text", short, x=LEFT - 10, y=y + 4, text_anchor="end")
    for name, value in sorted(cell.values.items(), key=lambda item: item[0] not in SIMPLEST):
        x = LEFT + (value / best if best else 0.0) * (WIDTH - LEFT - RIGHT)
        title = element("title", f"{cell.traffic}: {name} {cell.text(name)}")
        radius = 6 if name == cell.advised else 4
        yield element("circle", title, cx=f"{x:.1f}", cy=y, r=radius, fill={**COLOURS, **PLUGINS}[name])


def main() -> None:
    """Write the page and its picture, or check them."""
    page, drawn = rendered(PAGE.read_text(encoding="utf-8")), picture(cells())
    if sys.argv[1:] == ["--check"]:
        if (page, drawn) != (PAGE.read_text(encoding="utf-8"), PICTURE.read_text(encoding="utf-8")):
            sys.exit(f"not what benchmarks/results/ says: {PAGE.name}; run benchmarks/which_plugin.py")
        return
    PAGE.write_text(page, encoding="utf-8")
    PICTURE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
