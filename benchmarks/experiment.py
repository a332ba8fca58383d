"""What the scripts of the published experiments share: run, search for a capacity, write results, draw, fill tables.

Each experiment is one script under ``benchmarks/<paper>/``. It calls `run` for every point, `publish` once, and leaves
``results/<paper>-<name>.json`` and ``.svg`` and a table in ``<paper>/README.md``, between ``<!-- name -->`` marks.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from pdplugins.config import parse
from pdplugins.provenance import command_line, record
from pdplugins.results import Result
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import TraceRequest
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
RESULTS = HERE / "results"
Row = dict[str, Any]


def command() -> str:
    """Return how this script was called, relative to the repository."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(HERE.parent) if script.is_relative_to(HERE.parent) else script.name
    return command_line("python", [str(name), *sys.argv[1:]])


def run(
    config: Mapping[str, Any], trace: Sequence[TraceRequest], *, seed: int = 0, name: str = "experiment"
) -> tuple[Result, RunOutcome]:
    """Simulate `trace` on `config`, given as the plain data of a config file."""
    return simulate(parse(dict(config), name), trace, trace_name=name, command=command(), seed=seed)


def workload(**keys: Any) -> list[TraceRequest]:
    """Return a generated workload; `keys` are those of a workload file (docs/workloads.md)."""
    return list(synthetic(SyntheticSettings.model_validate(keys)))


def attainment(config: Mapping[str, Any], trace: Sequence[TraceRequest], seed: int = 0) -> float:
    """Return the share of requests inside both SLOs."""
    return run(config, trace, seed=seed)[0].metrics.slo_attainment or 0.0


def capacity(score: Callable[[float], float], low: float, high: float, target: float = 0.9, steps: int = 9) -> float:
    """Return the highest rate whose `score` is at least `target`, by bisection; `low` when even that misses it.

    :param high: where the search begins; it grows while it is still served.
    """
    while score(high) >= target:
        low, high = high, 2 * high
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) >= target else (low, middle)
    return low


def publish(
    paper: str, name: str, rows: Sequence[Row], *, title: str, published: str, seed: int = 0, notes: Sequence[str] = ()
) -> None:
    """Write the results of one experiment, and its table into the page of the paper.

    :param rows: one for each line of the table; the keys of the first are the columns.
    :param published: what the paper reports, in a sentence.
    :param notes: what a reader must know: differences from the paper's set-up, and why.
    """
    data = {
        "experiment": f"{paper} {name}", "title": title, **record("simulated", seed=seed, command=command()),
        "published": published, "notes": list(notes), "rows": list(rows),
    }  # fmt: skip
    save(f"{paper}-{name}", data)
    picture = f"![{title}](../results/{paper}-{name}.svg)\n\n" if (RESULTS / f"{paper}-{name}.svg").exists() else ""
    remarks = "".join(f"* {note}\n" for note in notes)
    text = (
        f"### {title}\n\n`{data['command']}`, seed {seed}, commit {data['commit']}, simulated.\n\n"
        f"The paper: {published}\n\n{table(rows)}\n{picture}{remarks}"
    )
    _fill(HERE / paper / "README.md", name, text)
    sys.stdout.write(text + "\n")


def save(name: str, data: Mapping[str, Any]) -> None:
    """Write the results of one experiment to ``results/<name>.json``."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


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
    page.write_text(new, encoding="utf-8")
