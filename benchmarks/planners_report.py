"""Tables and plots of README.md from results/planners-*.json.

python benchmarks/planners_report.py            write them
python benchmarks/planners_report.py --check    fail when README.md does not say what results/ says
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
README = HERE / "README.md"
MARKS = "<!-- {0}: begin, written by planners_report.py -->", "<!-- {0}: end -->"
TITLES = {
    "azure-conversation": "Azure 2023, conversation",
    "azure-code": "Azure 2023, code",
    "mooncake-conversation": "Mooncake, conversation",
    "azure-conversation-kv_router": "Azure 2023, conversation",
    "azure-code-kv_router": "Azure 2023, code",
    "mooncake-conversation-kv_router": "Mooncake, conversation",
}
GOOD = 99.0
"""Percent of SLO attainment that an operator would ask for."""
Data = dict[str, Any]


def point(run: Data) -> tuple[float, float]:
    """Return (SLO attainment in percent, GPU-hours)."""
    return 100 * float(run["metrics"]["slo_attainment"]), float(run["metrics"]["gpu_hours"])


def fixed_front(runs: Sequence[Data]) -> list[Data]:
    """Return the fixed pools on the upper concave hull, cheapest first: the strictest front through the swept pools."""
    front: list[Data] = []
    for run in sorted((r for r in runs if r["group"] == "static"), key=lambda r: (point(r)[1], -point(r)[0])):
        if front and point(run)[0] <= point(front[-1])[0]:
            continue
        while len(front) > 1 and _slope(front[-2], front[-1]) <= _slope(front[-2], run):
            front.pop()
        front.append(run)
    return front


def _slope(a: Data, b: Data) -> float:
    (low, cheap), (high, dear) = point(a), point(b)
    return (high - low) / (dear - cheap) if dear > cheap else float("inf")


def front_at(front: Sequence[Data], gpu_hours: float) -> float | None:
    """Return the attainment that fixed pools reach at `gpu_hours`, linear between two; None below the cheapest."""
    points = [point(run) for run in front]
    if not points or gpu_hours < points[0][1]:
        return None
    for (low, cheap), (high, dear) in pairwise(points):
        if gpu_hours <= dear:
            return low + (high - low) * (gpu_hours - cheap) / (dear - cheap)
    return points[-1][0]


def table(data: Data) -> list[str]:
    """Return the table of one trace."""
    front = fixed_front(data["runs"])
    lines = [
        "| planner | SLO attainment | GPU-hours | vs fixed pools | goodput, req/s | goodput, tokens/s "
        "| TTFT p50 / p99, s | TPOT p99, ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    shown = [*front, *(run for run in data["runs"] if run["group"] != "static")]
    return lines + [_line(run, front) for run in shown]


def _line(run: Data, front: Sequence[Data]) -> str:
    attainment, gpu_hours = point(run)
    at_front = front_at(front, gpu_hours)
    against = (
        "front" if run["group"] == "static" else "cheaper" if at_front is None else f"{attainment - at_front:+.1f}"
    )
    metrics = run["metrics"]
    ttft, tpot = metrics["ttft_s"], metrics["tpot_s"]
    name = f"**{run['label']}**" if run["label"] == "dopd" else run["label"]
    return (
        f"| {name} | {attainment:.1f} % | {gpu_hours:.2f} | {against} | {metrics['goodput_requests_per_s']:.2f} "
        f"| {metrics['goodput_tokens_per_s']:.0f} | {ttft['p50']:.2f} / {ttft['p99']:.1f} | {1e3 * tpot['p99']:.0f} |"
    )


def summary(found: Sequence[Data]) -> list[str]:
    """Return one line per trace and router: the best of Dynamo's planners, DOPD as shipped, what 99 % costs."""
    lines = [
        f"| trace, router | best of Dynamo's planners | dopd | dopd, started with about the right pools "
        f"| GPU-hours for {GOOD:.0f} %: fixed pools, dopd |",
        "|---|---|---|---|---|",
    ]
    for data in found:
        front = fixed_front(data["runs"])
        groups = {name: [run for run in data["runs"] if run["group"] == name] for name in ("static", "stock", "dopd")}
        best = max(groups["stock"], key=point)
        warm = next((run for run in groups["dopd"] if run["label"].startswith("dopd from ")), None)
        shipped = next((run for run in groups["dopd"] if run["label"] == "dopd"), None)
        cells = (
            _cell(best, front, named=True),
            _cell(shipped, front),
            _cell(warm, front),
            _cost(groups["static"], groups["dopd"]),
        )
        about = data["trace"]
        lines.append(f"| {about['title']}, `{about['router']}` | {' | '.join(cells)} |")
    return lines


def _cell(run: Data | None, front: Sequence[Data], *, named: bool = False) -> str:
    if run is None:
        return "n/a"
    attainment, gpu_hours = point(run)
    at_front = front_at(front, gpu_hours)
    against = "cheaper than any pool" if at_front is None else f"**{attainment - at_front:+.1f}**"
    name = f"`{run['label']}`: " if named else ""
    return f"{name}{attainment:.1f} % at {gpu_hours:.2f}, {against}"


def _cost(pools: Sequence[Data], ours: Sequence[Data]) -> str:
    """Say what attainment that an operator would ask for costs, with fixed pools and with DOPD."""
    pool, dopd = _cheapest(pools), _cheapest([run for run in ours if "paper_literal" not in run["label"]])
    if pool is None:
        return f"no fixed pool reaches it (best: {max((point(run)[0] for run in pools), default=0.0):.1f} %)"
    if dopd is None:
        return f"{point(pool)[1]:.2f} (`{pool['label']}`), no dopd of the table"
    change = 100 * (point(dopd)[1] / point(pool)[1] - 1)
    return f"{point(pool)[1]:.2f} (`{pool['label']}`), {point(dopd)[1]:.2f} (`{dopd['label']}`): **{change:+.0f} %**"


def _cheapest(runs: Sequence[Data]) -> Data | None:
    return min((run for run in runs if point(run)[0] >= GOOD), key=lambda run: point(run)[1], default=None)


def results() -> dict[str, Data]:
    """Return every result file by its key."""
    files = {key: RESULTS / f"planners-{key}.json" for key in TITLES}
    found = {key: json.loads(file.read_text(encoding="utf-8")) for key, file in files.items() if file.exists()}
    for key, data in found.items():
        data["trace"]["title"] = TITLES[key]
    return found


def text() -> str:
    """Return everything between the markers of README.md."""
    found = results()
    parts = ["\n".join(summary(list(found.values())))]
    for key, data in found.items():
        about = data["trace"]
        head = f"### {about['title']}, `{about['router']}`"
        size = f"`{about['file']}`: {about['requests']} requests in {about['duration_s']:.0f} s."
        picture = f"![SLO attainment against GPU-hours]({RESULTS.name}/planners-{key}.svg)"
        folded = ["<details><summary>Every planner</summary>", "\n".join(table(data)), "</details>"]
        parts += [head, size, picture, *folded]
    return "\n\n".join(parts)


def bound() -> str:
    """Return what bound.py found, as one table."""
    file = RESULTS / "bound.json"
    if not file.exists():
        return ""
    found = json.loads(file.read_text(encoding="utf-8"))
    found = found.get("traces", found)
    heads = [
        f"{TITLES[key]}, at {' / '.join(f'{level:.0f}' for level in data['levels'])} %" for key, data in found.items()
    ]
    lines = [f"| what the scaler knows | {' | '.join(heads)} |", "|---|" + "---|" * len(found)]
    for name in next(iter(found.values()))["above_front"]:
        cells = (data["above_front"][name] for data in found.values())
        lines.append(f"| {name} | {' | '.join(_gains(cell) for cell in cells)} |")
    again = (data["autocorrelation"]["30"] for data in found.values())
    lines.append(f"| *autocorrelation of the load at 30 s* | {' | '.join(f'{value:.2f}' for value in again)} |")
    return "\n".join(lines)


def _gains(cell: Sequence[dict[str, float]]) -> str:
    above = " / ".join(f"{level['above']:+.1f}" for level in cell)
    saved = " / ".join(f"{level['saved']:.0f}" for level in cell)
    return f"{above} points, {saved} % saved"


def rendered(readme: str) -> str:
    """Return `readme` with the text between the markers replaced."""
    for name, inside in (("planners", text()), ("bound", bound())):
        begin, end = (mark.format(name) for mark in MARKS)
        before, rest = readme.split(begin)
        readme = f"{before}{begin}\n\n{inside}\n\n{end}{rest.split(end)[1]}"
    return readme


def _drawn(run: Data) -> tuple[float, float]:
    """Return where a run is drawn: GPU-hours and attainment, kept off the ends that a logit scale has not."""
    attainment, gpu_hours = point(run)
    return gpu_hours, min(max(attainment / 100, 0.004), 0.9995)


def plot(key: str) -> None:
    """Draw the fixed pools as a line and every planner as a point."""
    import matplotlib  # noqa: PLC0415 - only needed to draw

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "pdplugins"
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot  # noqa: PLC0415

    data = results()[key]
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    hours, attained = zip(*map(_drawn, fixed_front(data["runs"])), strict=True)
    axes.plot(hours, attained, "-o", color="0.55", markersize=3, label="fixed pools (front)")
    for group, color, label in (("stock", "tab:red", "Dynamo's planners"), ("dopd", "tab:green", "dopd")):
        hours, attained = zip(*(_drawn(run) for run in data["runs"] if run["group"] == group), strict=True)
        axes.scatter(hours, attained, s=20, color=color, label=label, zorder=3)
    for run in data["runs"]:
        if run["group"] == "stock" or run["label"] in {"dopd", "dopd paper_literal=true"}:
            axes.annotate(run["label"], _drawn(run), (5, -2), textcoords="offset points", fontsize=6)
    axes.set_yscale("logit")  # so that 99 % and 99.9 % are as far apart as 90 % and 99 %
    ticks = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
    axes.set_yticks(ticks, [f"{100 * tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    title = f"{data['trace']['title']}, {data['trace']['router']}"
    axes.set(xlabel="GPU-hours", ylabel="SLO attainment, %", title=title)
    axes.grid(color="0.9")
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(RESULTS / f"planners-{key}.svg", metadata={"Date": None})
    pyplot.close(figure)


def write() -> None:
    for file in sorted(RESULTS.glob("planners-*.json")):
        plot(file.stem.removeprefix("planners-"))
    README.write_text(rendered(README.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        readme = README.read_text(encoding="utf-8")
        if rendered(readme) != readme:
            sys.exit("benchmarks/README.md does not say what benchmarks/results/ says; run planners_report.py")
    else:
        write()


if __name__ == "__main__":
    main()
