"""Every planner against fixed pools and against Dynamo's own planners, in Dynamo's offline replay.

    python benchmarks/planners.py --traces DIR                run everything, write results/ and README.md
    python benchmarks/planners.py --traces DIR --minutes 7    stop after that long; call it again to go on
    python benchmarks/planners.py --traces DIR --dopd-alone   after a change of DOPD: the others as in the last results

The first third of each trace is for tuning: every setting of a grid runs on it. The rest is reported: fixed pools, all
planners as shipped, and the settings that were best on the first third. README.md beside this file says more.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("DYN_LOG", "error")  # before Dynamo is imported

import manifest
import planners_report
from measure import command
from planners_report import RESULTS

from pdplugins.errors import PdpluginsError
from pdplugins.hosts.dynamo.mocker import Engines, Router
from pdplugins.hosts.dynamo.offline.commands import configured
from pdplugins.hosts.dynamo.offline.run import Plan, pools, replay, with_pools
from pdplugins.provenance import commit, record
from pdplugins.types import TraceRequest
from pdplugins.workloads import rows, traces
from pdplugins.workloads.transform import clip, since

ROUTERS: tuple[Router, ...] = ("round_robin", "kv_router")
Row = dict[str, Any]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Trace:
    """A trace, and the fixed pools that are swept over it."""

    key: str
    file: str
    prefill: Sequence[int]
    """Prefill workers of the pools with `decode` decode workers."""
    decode: int
    more: Sequence[str]
    """Further pools, with other decode workers."""
    start: str
    """Pools of about the right size: what an operator who knows the traffic would start a scaler with."""
    prefill_gpus: int = 1

    def name(self, router: str) -> str:
        """Return the name of the result for one of Dynamo's routers."""
        return f"planners-{self.key}{'' if router == 'round_robin' else f'-{router}'}"

    def find(self, folder: Path) -> Path | None:
        """Return where the trace lies under `folder`; None when it does not."""
        return next(iter(sorted(folder.rglob(self.file))), None)

    @property
    def pools(self) -> list[str]:
        """All fixed pools."""
        return [*(f"{prefill}P{self.decode}D" for prefill in self.prefill), *self.more]


TRACES = (
    Trace(
        "azure-conversation",
        "AzureLLMInferenceTrace_conv.csv",
        (2, 3, 4, 5, 6, 7, 8, 10, 12),
        1,
        ("4P2D", "6P2D"),
        "4P1D",
    ),
    Trace(
        "azure-code",
        "AzureLLMInferenceTrace_code.csv",
        (4, 8, 10, 12, 14, 16, 20, 24, 28, 36),
        1,
        ("16P2D", "28P2D"),
        "16P1D",
    ),
    Trace(
        "mooncake-conversation",
        "conversation_trace.jsonl",
        (6, 8, 10, 12, 14, 16, 20, 24),
        6,
        ("8P4D", "12P4D", "16P8D", "20P8D"),
        "16P6D",
        prefill_gpus=2,  # one GPU holds 14,201 tokens of KV cache, and the longest request has 126,527
    ),
)
SENSITIVITY = "load_scaling_down_sensitivity"
GRIDS: dict[str, list[tuple[str, Settings]]] = {
    "stock": [
        *(("dyn-load:sla", {SENSITIVITY: 0, "ttft_ms": ms}) for ms in (50, 100, 150, 200, 300, 500, 1000, 2000)),
        *(("dyn-load:sla", {SENSITIVITY: share, "ttft_ms": 200}) for share in (20, 40, 80)),
        ("dyn-load:sla", {SENSITIVITY: 20, "ttft_ms": 1000}),
        ("dyn-load:sla", {SENSITIVITY: 0, "ttft_ms": 200, "load_adjustment_interval_seconds": 15}),
        *(("dyn-sla+load:kalman", {SENSITIVITY: share, "ttft_ms": 200}) for share in (0, 20)),
        ("dyn-sla:kalman", {"ttft_ms": 200}),
    ],
    "dopd": [("dopd", {"wait_share": share}) for share in (0.07, 0.12, 0.25, 0.35, 0.5, 0.7, 1.0, 1.5)],
}
"""By family: the planners and settings that are tried on the first third of a trace."""
STOCK = (
    *(f"dyn-load:{target}" for target in ("throughput", "latency", "load", "sla")),
    *(f"dyn-sla:{predictor}" for predictor in ("constant", "arima", "kalman", "prophet")),
    "dyn-sla+load",
)
DOPD: tuple[Settings, ...] = (
    {"wait_share": 1.0}, {"wait_share": 0.25}, {"hold_s": 60}, {"paper_literal": True}, {"predictor": "arima"},
)  # fmt: skip
"""Settings over configs/dopd.yaml: the documented knobs, the paper as printed, other predictors."""
STARTUPS_S = (10, 60, 120)


@dataclass(frozen=True)
class Run:
    """One line of a table."""

    group: str
    planner: str
    settings: Settings = field(default_factory=dict)
    start: str | None = None
    startup_s: float | None = None

    @property
    def label(self) -> str:
        """Return what the tables call it: the planner, its settings, and the pools at start."""
        short = {SENSITIVITY: "sensitivity", "load_adjustment_interval_seconds": "interval"}
        shown = [f"{short.get(key, key)}={_plain(value)}" for key, value in self.settings.items()]
        shown += [f"start-up {self.startup_s:g} s"] if self.startup_s is not None else []
        return " ".join([self.planner, *shown, *([f"from {self.start}"] if self.start else [])])

    def options(self, trace: Trace, router: Router) -> list[str]:
        """Return the options of `pdplugins replay` for this run."""
        words = [part for key, value in self.settings.items() for part in ("--set", f"{key}={_plain(value)}")]
        if self.start is not None:
            prefill, decode = pools(self.start)
            words += ["--prefill", str(prefill), "--decode", str(decode)]
        words += [] if self.startup_s is None else ["--startup", f"{self.startup_s:g}"]
        words += [] if trace.prefill_gpus == 1 else ["--prefill-gpus", str(trace.prefill_gpus)]
        words += [] if router == "round_robin" else ["--router", router]
        return ["--planner", self.planner, *words, "--trace", trace.file]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def tried() -> Iterator[Run]:
    """Yield what runs on the first third, from 1P1D: every grid."""
    for family, grid in GRIDS.items():
        yield from (Run(family, name, settings) for name, settings in grid)


def reported(trace: Trace, router: Router, tuning: Sequence[Row]) -> Iterator[Run]:
    """Yield what runs on the rest, each once. `tuning` has the results on the first third."""
    yield from (Run("static", f"static:{pools}") for pools in trace.pools)
    yield from (Run("stock", name) for name in STOCK)
    yield from (
        Run("stock", name, start=trace.start) for name in ("dyn-load:latency", "dyn-sla:kalman", "dyn-sla+load")
    )
    yield from (Run("dopd", "dopd", start=start) for start in (None, trace.start))
    yield from (Run("dopd", "dopd", settings) for settings in DOPD)
    for family in GRIDS:
        chosen = {row["label"] for row in planners_report.front([row for row in tuning if row["group"] == family])}
        for start in (None, trace.start):
            found = (run for run in tried() if run.group == family and run.label in chosen)
            yield from (Run(f"{family}-tuned", run.planner, run.settings, start) for run in found)
    if trace is TRACES[0] and router == "round_robin":
        for name, settings in (("dopd", {}), ("dyn-load:sla", {SENSITIVITY: 0, "ttft_ms": 200})):
            yield from (Run("start-up", name, settings, startup_s=startup_s) for startup_s in STARTUPS_S)


class OutOfTimeError(Exception):
    """The time that the script may take is over."""


class Cells:
    """The runs of one result so far, a line each: a script that was stopped goes on where it was.

    Only those of the commit that is checked out are kept, so that a result is of one commit.
    """

    def __init__(self, name: str, until: float) -> None:
        self._file = RESULTS / ".cells" / f"{name}.jsonl"
        self._until = until
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        now = commit()
        kept = [cell for cell in map(json.loads, lines) if cell["commit"] == now and not now.endswith("-dirty")]
        if not kept:
            self._file.unlink(missing_ok=True)
        self._known: dict[tuple[str, str], Row] = {(cell["part"], cell["row"]["label"]): cell["row"] for cell in kept}

    def take(self, last: Row) -> None:
        """Take over the runs of Dynamo's planners and fixed pools from the last result."""
        for part, rows_ in (("tuning", last["tuning"]), ("rest", last["runs"])):
            self._known |= {(part, row["label"]): row for row in rows_ if not row["label"].startswith("dopd")}

    def of(self, part: str, label: str, compute: Callable[[], Row]) -> Row:
        """Return a run, from the file or computed. Raises OutOfTimeError."""
        if (part, label) not in self._known:
            if time.monotonic() > self._until:
                raise OutOfTimeError
            row = self._known[part, label] = compute()
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"commit": commit(), "part": part, "row": row}) + "\n")
            attainment, gpu_hours = planners_report.point(row)
            print(f"  {part:7s} {label:60s} {attainment:6.1f} % {gpu_hours:7.2f} GPU-h", flush=True)
        return self._known[part, label]


def parts(path: Path) -> tuple[int, list[TraceRequest], list[TraceRequest]]:
    """Return where a trace is split, in seconds, its first third, and the rest."""
    whole = traces.read(path)
    split_s = round(whole[-1].arrival_s / 3)
    return split_s, clip(whole, split_s), since(whole, split_s)


def replayed(it: Run, trace: Trace, router: Router, requests: Sequence[TraceRequest], part: Sequence[str]) -> Row:
    """Return one run, on the part of the trace that the options `part` of `pdplugins replay` name."""
    given = {
        ("deployment", "prefill", "tp"): trace.prefill_gpus,
        ("deployment", "startup_s"): it.startup_s,
    }
    config = configured(None, given)
    config = config if it.start is None else with_pools(config, *pools(it.start))
    plan = Plan(it.planner, config, it.settings, Engines(None, router))
    said = shlex.join(["pdplugins", "replay", *it.options(trace, router), *part])
    result = replay(plan, requests, trace_name=trace.file, command=said)
    changes, result.scaling = len(result.scaling), []  # the list is long; a decision log has it too
    return {"label": it.label, "group": it.group, "changes": changes, **result.model_dump(mode="json")}


def measure(trace: Trace, path: Path, router: Router, until: float, *, alone: bool = False) -> None:
    """Run everything on one trace behind one router, unless the result is up to date. Raises OutOfTimeError.

    :param alone: run DOPD's planner only. Raises PdpluginsError where the others' code has changed.
    """
    name = trace.name(router)
    old = manifest.read(name) if (RESULTS / f"{name}.json").exists() else None
    if old and not manifest.flaws(old) and not manifest.changed(manifest.experiment_of(name), old):
        print("  up to date")
        return
    split_s, first, rest = parts(path)
    cells = Cells(name, until)
    if alone:
        manifest.check_only(name, *manifest.DOPD)
        cells.take(manifest.read(name))

    def tune(it: Run) -> Row:
        row = replayed(it, trace, router, first, ["--clip-s", str(split_s)])
        kept = {key: row["metrics"][key] for key in ("slo_attainment", "gpu_hours")}
        return {"label": it.label, "group": it.group, "metrics": kept, "command": row["command"]}

    tuning = [cells.of("tuning", it.label, lambda it=it: tune(it)) for it in tried()]
    done: dict[str, Row] = {}
    for it in reported(trace, router, tuning):
        row = cells.of("rest", it.label, lambda it=it: replayed(it, trace, router, rest, ["--skip", str(split_s)]))
        done.setdefault(f"{it.group} {it.label}", {**row, "group": it.group})
    about = {"file": trace.file, "router": router, "start": trace.start, "split_s": split_s}
    sizes = {"requests": len(rest), "duration_s": rest[-1].arrival_s, "tuned_on": len(first)}
    made = record("simulated", seed=None, command=command(), took_part=("ai-dynamo",))
    manifest.write(name, {**made, "trace": about | sizes, "tuning": tuning, "runs": list(done.values())})


def cell(folder: str) -> dict[str, list[Row]]:
    """Return a part of the tables, computed again. Only round robin: Dynamo's KV router breaks ties at random."""
    found: dict[str, list[Row]] = {}
    for trace in TRACES:
        path = trace.find(Path(folder))
        assert path is not None
        split_s, _, rest = parts(path)
        runs = (Run("static", f"static:{trace.pools[0]}"), Run("dopd", "dopd"), Run("stock", STOCK[0]))
        rows = [replayed(it, trace, "round_robin", rest, ["--skip", str(split_s)]) for it in runs]
        kept = ("label", "group", "changes", "metrics")
        found[trace.name("round_robin")] = [{key: row[key] for key in kept} for row in rows]
    return found


def main() -> int:
    """Run what is not there yet; return 75 (try again) where the time was over first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=os.environ.get("TRACES"), help="folder that holds the traces")
    parser.add_argument("--only", nargs="*", choices=[t.key for t in TRACES], help="these traces")
    parser.add_argument("--routers", nargs="*", choices=ROUTERS, default=ROUTERS, help="these routers of Dynamo's")
    parser.add_argument("--dopd-alone", action="store_true", help="take all others from the last results")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then; go on when called again")
    options = parser.parse_args()
    if options.traces is None or not Path(options.traces).is_dir():
        parser.error(f"--traces DIR (or TRACES=DIR) must be a folder; {rows.PUBLISHED}")
    until = time.monotonic() + 60 * options.minutes
    for trace in TRACES:
        if options.only and trace.key not in options.only:
            continue
        path = trace.find(Path(options.traces))
        if path is None:
            print(f"{trace.key}: skipped, no {trace.file} under {options.traces}; {rows.PUBLISHED}")
            continue
        for router in options.routers:
            print(f"{trace.key}, {router}:", flush=True)
            try:
                measure(trace, path, router, until, alone=options.dopd_alone)
            except OutOfTimeError:
                print("stopped: the time is over; call it again to go on")
                return 75
            except PdpluginsError as error:
                print(f"planners.py: {error}", file=sys.stderr)
                return 2
    planners_report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
