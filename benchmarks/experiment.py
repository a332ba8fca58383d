"""What the scripts of the published experiments share: run, search for a capacity, write results, draw, fill tables.

Each experiment is one script under ``benchmarks/<paper>/``. It calls `run` for every point, `publish` once, and leaves
``results/<paper>-<name>.json`` and ``.svg`` and a table in ``<paper>/README.md``, between ``<!-- name -->`` marks.
"""

from __future__ import annotations

import fcntl
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import manifest
import matplotlib as mpl
from manifest import HERE, RESULTS
from measure import Row, attainment, capacity, command, run, samples, workload

from pdplugins.files import write_whole
from pdplugins.provenance import record

mpl.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["Row", "attainment", "capacity", "command", "draw", "publish", "run", "save", "table", "workload"]
manifest.check_script(sys.argv[0])


def publish(
    paper: str, name: str, rows: Sequence[Row], *, title: str, published: str, seed: int = 0, notes: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write the results of one experiment, and its table into the page of the paper.

    :param rows: one for each line of the table; the keys of the first are the columns.
    :param published: what the paper reports, in a sentence.
    :param notes: what a reader must know: differences from the paper's set-up, and why.
    :param more: what the result holds beside the rows, and its page does not show.
    """
    data = {
        "experiment": f"{paper} {name}", "title": title, **record("simulated", seed=seed, command=command()),
        "published": published, "notes": list(notes), "rows": list(rows), "samples": samples(), **(more or {}),
    }  # fmt: skip
    save(f"{paper}-{name}", data)
    sys.stdout.write(show(manifest.read(f"{paper}-{name}")) + "\n")


def save(name: str, data: Mapping[str, Any]) -> None:
    """Write the results of one experiment to ``results/<name>.json``. `data` holds their origin: `manifest.write`."""
    manifest.write(name, data)


def show(data: Mapping[str, Any]) -> str:
    """Put what an experiment found into the page of its paper, and return that text."""
    paper, _, name = data["experiment"].partition(" ")
    picture = f"![{data['title']}](../results/{paper}-{name}.svg)\n\n"
    equal = f", {manifest.equality(data)}" if "shown_equal" in data else ""
    head = f"`{data['command']}`, seed {data['seed']}, commit {data['commit']}{equal}, simulated."
    text = (
        f"### {data['title']}\n\n{head}\n\nThe paper: {data['published']}\n\n{table(data['rows'])}\n"
        + (picture if (RESULTS / f"{paper}-{name}.svg").exists() else "")
        + "".join(f"* {note}\n" for note in data["notes"])
    )
    with (RESULTS / ".lock").open("w") as lock:  # experiments of one paper may run at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fill(HERE / paper / "README.md", name, text)
    return text


def table(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table."""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def draw(
    paper: str, name: str, lines: Mapping[str, tuple[Iterable[float], Iterable[float]]], *, x: str, y: str,
    marks: Mapping[str, float] | None = None, logx: bool = False, dots: bool = True,
) -> None:  # fmt: skip
    """Draw one line for each entry of `lines` into ``results/<paper>-<name>.svg``.

    :param marks: vertical dashed lines, by label: where the paper puts a knee or an optimum.
    """
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for label, (xs, ys) in lines.items():
        axes.plot(list(xs), list(ys), marker="o" if dots else "", markersize=3, label=label)
    for label, at in (marks or {}).items():
        axes.axvline(at, linestyle="--", linewidth=1, color="grey", label=label)
    axes.set(xlabel=x, ylabel=y, xscale="log" if logx else "linear")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    RESULTS.mkdir(exist_ok=True)
    # A fixed salt and no date: the same results give the same file.
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(RESULTS / f"{paper}-{name}.svg", metadata={"Date": None})
    plt.close(figure)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)


def _fill(page: Path, name: str, text: str) -> None:
    """Put `text` between the marks of `name` in `page`, at its end when they are not there yet."""
    old = page.read_text(encoding="utf-8") if page.exists() else f"# {page.parent.name}\n"
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    block = f"{begin}\n{text}{end}"
    found = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    new = found.sub(lambda _: block, old) if found.search(old) else f"{old.rstrip()}\n\n{block}\n"
    if new != old:
        write_whole(page, new)
