"""Tables and plots of three pages from results/planners-*.json.

python benchmarks/planners_report.py            write them
python benchmarks/planners_report.py --check    fail when a page does not say what results/ says
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
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


def front(runs: Sequence[Data]) -> list[Data]:
    """Return the runs on the upper concave hull, cheapest first: the strictest front through them."""
    kept: list[Data] = []
    for run in sorted(runs, key=lambda r: (point(r)[1], -point(r)[0])):
        if kept and point(run)[0] <= point(kept[-1])[0]:
            continue
        while len(kept) > 1 and _slope(kept[-2], kept[-1]) <= _slope(kept[-2], run):
            kept.pop()
        kept.append(run)
    return kept


def of_group(data: Data, *groups: str) -> list[Data]:
    """Return the runs of these groups."""
    return [run for run in data["runs"] if run["group"] in groups]


def _slope(a: Data, b: Data) -> float:
    (low, cheap), (high, dear) = point(a), point(b)
    return (high - low) / (dear - cheap) if dear > cheap else float("inf")


def front_at(hull: Sequence[Data], gpu_hours: float) -> float | None:
    """Return the attainment that a front reaches at `gpu_hours`, linear between two runs; None below the cheapest."""
    points = [point(run) for run in hull]
    if not points or gpu_hours < points[0][1]:
        return None
    for (low, cheap), (high, dear) in pairwise(points):
        if gpu_hours <= dear:
            return low + (high - low) * (gpu_hours - cheap) / (dear - cheap)
    return points[-1][0]


def table(data: Data) -> list[str]:
    """Return the table of one trace."""
    fixed = front(of_group(data, "static"))
    lines = [
        "| planner | SLO attainment | GPU-hours | vs fixed pools | goodput, req/s | goodput, tokens/s "
        "| TTFT p50 / p99, s | TPOT p99, ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    shown = [*fixed, *of_group(data, "stock", "stock-tuned", "dopd", "dopd-tuned")]
    return lines + [_line(run, fixed) for run in shown]


def _line(run: Data, fixed: Sequence[Data]) -> str:
    attainment, gpu_hours = point(run)
    at_front = front_at(fixed, gpu_hours)
    against = (
        "front" if run["group"] == "static" else "cheaper" if at_front is None else f"{attainment - at_front:+.1f}"
    )
    metrics = run["metrics"]
    ttft, tpot = metrics["ttft_s"], metrics["tpot_s"]
    tuned = "tuned: " if run["group"].endswith("-tuned") else ""
    name = f"**{run['label']}**" if run["label"] == "dopd" else f"{tuned}{run['label']}"
    return (
        f"| {name} | {attainment:.1f} % | {gpu_hours:.2f} | {against} | {metrics['goodput_requests_per_s']:.2f} "
        f"| {metrics['goodput_tokens_per_s']:.0f} | {ttft['p50']:.2f} / {ttft['p99']:.1f} | {1e3 * tpot['p99']:.0f} |"
    )


def startups(data: Data) -> list[str]:
    """Return the table of start-up times; empty where the result has none."""
    runs = of_group(data, "start-up")
    if not runs:
        return []
    lines = ["| planner | SLO attainment | GPU-hours |", "|---|---:|---:|"]
    return lines + [f"| {run['label']} | {point(run)[0]:.1f} % | {point(run)[1]:.2f} |" for run in runs]


def compared(data: Data) -> list[Data]:
    """Return, for 1P1D and for a warm start, how `dopd` as shipped compares at its own GPU-hours, in percent.

    ``stock`` is the best of Dynamo's planners with their defaults. ``fixed`` and ``tuned`` are the fronts of fixed
    pools, and of Dynamo's planners with their defaults and with what was best on the first third, at the GPU-hours of
    ``dopd``; None where even the cheapest of them takes more.
    """
    found = []
    for start in (None, data["trace"]["start"]):
        ending = f" from {start}" if start else ""
        dopd = next(run for run in of_group(data, "dopd") if run["label"] == f"dopd{ending}")
        attainment, gpu_hours = point(dopd)
        stock, tuned = (
            [run for run in of_group(data, *groups) if (" from " in run["label"]) == bool(start)]
            for groups in (("stock",), ("stock", "stock-tuned"))
        )
        best = max(stock, key=point)
        fixed = front(of_group(data, "static"))
        found.append(
            {
                "start": start or "1P1D", "attainment": attainment, "gpu_hours": gpu_hours,
                "fixed": front_at(fixed, gpu_hours), "tuned": front_at(front(tuned), gpu_hours),
                "stock": point(best)[0], "stock_gpu_hours": point(best)[1], "stock_label": best["label"],
            }
        )  # fmt: skip
    return found


def summary(found: Sequence[Data]) -> list[str]:
    """Return one line per trace, router and start."""
    lines = [
        "| trace, router, start | `dopd` as shipped | fixed pools there | Dynamo's planners there, tuned "
        f"| the best as shipped | GPU-hours for {GOOD:.0f} %: fixed pools, Dynamo's tuned, `dopd` tuned |",
        "|---|---|---|---|---|---|",
    ]
    for data in found:
        about = data["trace"]
        for row in compared(data):
            warm = None if row["start"] == "1P1D" else row["start"]
            cells = (
                f"{about['title']}, `{about['router']}`, {row['start']}",
                f"{row['attainment']:.1f} % at {row['gpu_hours']:.2f}",
                *(_against(row[name], row["attainment"]) for name in ("fixed", "tuned")),
                f"{row['stock']:.1f} % at {row['stock_gpu_hours']:.2f}",
                _costs(data, warm),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _against(rival: float | None, attainment: float) -> str:
    return "takes more" if rival is None else f"{rival:.1f} %, **{attainment - rival:+.1f}**"


def _costs(data: Data, start: str | None) -> str:
    """Say what attainment that an operator would ask for costs, by family; settings were chosen on the first third."""
    pools = of_group(data, "static")
    started = [
        [run for run in of_group(data, family, f"{family}-tuned") if (" from " in run["label"]) == bool(start)]
        for family in ("stock", "dopd")
    ]
    costs = (min((point(run)[1] for run in runs if point(run)[0] >= GOOD), default=None) for runs in (pools, *started))
    return ", ".join("none" if cost is None else f"{cost:.2f}" for cost in costs)


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
        size = (
            f"`{about['file']}` from {about['split_s']} s on: {about['requests']} requests in "
            f"{about['duration_s']:.0f} s; tuned on the {about['tuned_on']} before."
        )
        picture = f"![SLO attainment against GPU-hours]({RESULTS.name}/planners-{key}.svg)"
        folded = ["<details><summary>Every planner</summary>", "\n".join(table(data)), "</details>"]
        waits = startups(data)
        parts += [head, size, picture, *folded, *(["Other start-up times:", "\n".join(waits)] if waits else [])]
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


def headline() -> str:
    """Return the table of the project's README: one line per trace and router, from 1P1D / from a warm pool."""
    lines = [
        "| trace, router | `dopd` | fixed pools for that | Dynamo's planners for that, tuned | their best as shipped |",
        "|---|---|---|---|---|",
    ]
    for data in results().values():
        rows = compared(data)
        cells = (
            [f"{row['attainment']:.1f} % @ {row['gpu_hours']:.2f}" for row in rows],
            *([_share(row[rival]) for row in rows] for rival in ("fixed", "tuned")),
            [f"{row['stock']:.1f} % @ {row['stock_gpu_hours']:.2f}" for row in rows],
        )
        about = data["trace"]
        lines.append(f"| {about['title']}, `{about['router']}` | {' | '.join(map(' / '.join, cells))} |")
    return "\n".join(lines)


def _share(attainment: float | None) -> str:
    return "they take more" if attainment is None else f"{attainment:.1f} %"


def variants() -> str:
    """Return the table of DOPD's own page: what its settings give on every trace."""
    found = list(results().values())
    names = [f"{data['trace']['title']}, `{data['trace']['router']}`" for data in found]
    lines = [f"| from 1P1D | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for label in (run["label"] for run in of_group(found[0], "dopd") if " from " not in run["label"]):
        runs = [next(run for run in of_group(data, "dopd") if run["label"] == label) for data in found]
        cells = (f"{point(run)[0]:.1f} % @ {point(run)[1]:.2f}" for run in runs)
        name = "as shipped" if label == "dopd" else f"`{label.removeprefix('dopd ')}`"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    README: {"planners": text, "bound": bound},
    HERE.parent / "README.md": {"headline": headline},
    HERE.parent / "docs" / "policies" / "dopd.md": {"variants": variants},
}
"""What is written into which page, between markers of these names."""


def rendered(page: Path) -> str:
    """Return the text of a page with what stands between its markers written again."""
    readme = page.read_text(encoding="utf-8")
    for name, inside in BLOCKS[page].items():
        begin, end = (mark.format(name) for mark in MARKS)
        before, rest = readme.split(begin)
        readme = f"{before}{begin}\n\n{inside()}\n\n{end}{rest.split(end)[1]}"
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
    hours, attained = zip(*map(_drawn, front(of_group(data, "static"))), strict=True)
    axes.plot(hours, attained, "-o", color="0.55", markersize=3, label="fixed pools (front)")
    for group, color, label in (
        ("stock", "tab:red", "Dynamo's planners, as shipped"),
        ("stock-tuned", "tab:orange", "Dynamo's planners, tuned"),
        ("dopd", "tab:green", "dopd"),
        ("dopd-tuned", "tab:blue", "dopd, tuned"),
    ):
        hours, attained = zip(*map(_drawn, of_group(data, group)), strict=True)
        axes.scatter(hours, attained, s=20, color=color, label=label, zorder=3)
    for run in data["runs"]:
        if run["label"] in {"dopd", f"dopd from {data['trace']['start']}", "dopd paper_literal=true"}:
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
    """Draw every plot, and write every table."""
    for file in sorted(RESULTS.glob("planners-*.json")):
        plot(file.stem.removeprefix("planners-"))
    for page in BLOCKS:
        page.write_text(rendered(page), encoding="utf-8")


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        wrong = [str(page) for page in BLOCKS if rendered(page) != page.read_text(encoding="utf-8")]
        if wrong:
            sys.exit(f"not what benchmarks/results/ says: {', '.join(wrong)}; run planners_report.py")
    else:
        write()


if __name__ == "__main__":
    main()
