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
    "azure-conversation-kv_router": "Azure 2023, conversation, KV router",
    "azure-code-kv_router": "Azure 2023, code, KV router",
    "mooncake-conversation-kv_router": "Mooncake, conversation, KV router",
}
GOOD = 99.0
"""Percent of SLO attainment that an operator would ask for."""
Data = dict[str, Any]


def point(run: Data) -> tuple[float, float]:
    """Return (SLO attainment in percent, GPU-hours)."""
    return 100 * float(run["metrics"]["slo_attainment"]), float(run["metrics"]["gpu_hours"])


def pareto(runs: Sequence[Data]) -> list[Data]:
    """Return the fixed pools that no other fixed pool beats in both respects, cheapest first."""
    front: list[Data] = []
    for run in sorted((r for r in runs if r["group"] == "static"), key=lambda r: (point(r)[1], -point(r)[0])):
        if not front or point(run)[0] > point(front[-1])[0]:
            front.append(run)
    return front


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
    front = pareto(data["runs"])
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


def verdict(data: Data) -> list[str]:
    """Say how DOPD as shipped, and the cheapest DOPD that is good enough, stand against fixed pools."""
    front = pareto(data["runs"])
    ours = [run for run in data["runs"] if run["group"] == "dopd"]
    lines = []
    for run in (run for run in ours if run["label"] == "dopd" or run["label"].startswith("dopd from ")):
        attainment, gpu_hours = point(run)
        at_front = front_at(front, gpu_hours)
        said = "fewer GPU-hours than any fixed pool" if at_front is None else f"fixed pools: {at_front:.1f} %"
        lines.append(f"`{run['label']}` reaches {attainment:.1f} % with {gpu_hours:.2f} GPU-hours ({said} at that).")
    best = _cheapest(front), _cheapest([run for run in ours if "paper_literal" not in run["label"]])
    if best[0] is None:
        highest = max((point(run)[0] for run in front), default=0.0)
        lines.append(f"No fixed pool of the sweep reaches {GOOD:.0f} % (the best: {highest:.1f} %).")
    elif best[1] is None:
        lines.append(
            f"`{best[0]['label']}` is the cheapest fixed pool at {GOOD:.0f} %; no DOPD of the table reaches it."
        )
    else:
        pool, dopd = (point(run)[1] for run in best if run is not None)
        lines.append(
            f"{GOOD:.0f} % costs {pool:.2f} GPU-hours with fixed pools (`{best[0]['label']}`) and {dopd:.2f} with "
            f"`{best[1]['label']}`: {100 * (1 - dopd / pool):.0f} % fewer."
        )
    return lines


def _cheapest(runs: Sequence[Data]) -> Data | None:
    return min((run for run in runs if point(run)[0] >= GOOD), key=lambda run: point(run)[1], default=None)


def text() -> str:
    """Return everything between the markers of README.md."""
    parts = []
    for key, title in TITLES.items():
        file = RESULTS / f"planners-{key}.json"
        if not file.exists():
            continue
        data = json.loads(file.read_text(encoding="utf-8"))
        about = data["trace"]
        size = f"{about['requests']} requests in {about['duration_s']:.0f} s"
        head = f"### {title}\n\n`{about['file']}`: {size}, router `{about['router']}`."
        picture = f"![SLO attainment against GPU-hours]({RESULTS.name}/planners-{key}.svg)"
        lines = "\n".join(table(data))
        folded = f"<details><summary>Table</summary>\n\n{lines}\n\n</details>"
        parts += [head, " ".join(verdict(data)), picture, lines if about["router"] == "round_robin" else folded]
    return "\n\n".join(parts)


def bound() -> str:
    """Return what bound.py found, as one table."""
    file = RESULTS / "bound.json"
    if not file.exists():
        return ""
    found = json.loads(file.read_text(encoding="utf-8"))
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


def plot(key: str) -> None:
    """Draw the fixed pools as a line and every planner as a point."""
    import matplotlib  # noqa: PLC0415 - only needed to draw

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "pdplugins"
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot  # noqa: PLC0415

    data = json.loads((RESULTS / f"planners-{key}.json").read_text(encoding="utf-8"))
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    front = [point(run) for run in pareto(data["runs"])]
    axes.plot(
        [g for _, g in front], [a for a, _ in front], "-o", color="0.55", markersize=3, label="fixed pools (front)"
    )
    for group, color, label in (("stock", "tab:red", "Dynamo's planners"), ("dopd", "tab:green", "dopd")):
        points = [point(run) for run in data["runs"] if run["group"] == group]
        axes.scatter([g for _, g in points], [a for a, _ in points], s=26, color=color, label=label, zorder=3)
    for run in data["runs"]:
        if run["group"] != "static":
            attainment, gpu_hours = point(run)
            axes.annotate(run["label"], (gpu_hours, attainment), (4, -3), textcoords="offset points", fontsize=6)
    axes.set(xlabel="GPU-hours", ylabel="SLO attainment, %", title=TITLES[key], ylim=(-3, 103))
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
