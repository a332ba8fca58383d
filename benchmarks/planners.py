"""Every planner against fixed pools and against Dynamo's own planners, in Dynamo's offline replay.

    python benchmarks/planners.py --traces DIR                   run everything, write results/ and README.md
    python benchmarks/planners.py --traces DIR --groups dopd     run these, keep what results/ has of the others

What is compared, how, and what came out: README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("DYN_LOG", "error")  # before Dynamo is imported

import manifest
import planners_report
from measure import command
from planners_report import RESULTS

from pdplugins.hosts.dynamo.mocker import Engines, Router
from pdplugins.hosts.dynamo.offline.commands import configured
from pdplugins.hosts.dynamo.offline.run import Plan, replay
from pdplugins.provenance import record
from pdplugins.workloads import rows, traces

GROUPS = ("static", "stock", "dopd")
ROUTERS: tuple[Router, ...] = ("round_robin", "kv_router")


@dataclass(frozen=True)
class Trace:
    """A trace, and the fixed pools that are swept over it."""

    key: str
    file: str
    prefill: Sequence[int]
    decode: Sequence[int]
    start: str
    """Pools of about the right size: what an operator who knows the traffic would start a scaler with."""

    def results(self, router: str) -> Path:
        """Return the result file for one of Dynamo's routers."""
        return RESULTS / f"planners-{self.key}{'' if router == 'round_robin' else f'-{router}'}.json"

    def find(self, folder: Path) -> Path | None:
        """Return where the trace lies under `folder`; None when it does not."""
        return next(iter(sorted(folder.rglob(self.file))), None)


TRACES = (
    Trace("azure-conversation", "AzureLLMInferenceTrace_conv.csv", range(1, 13), (1, 2), "4P1D"),
    Trace(
        "azure-code",
        "AzureLLMInferenceTrace_code.csv",
        (*range(2, 13), 14, 16, 18, 20, 24, 28, 32, 36, 40),
        (1, 2),
        "16P1D",
    ),
    Trace("mooncake-conversation", "conversation_trace.jsonl", (*range(8, 25, 2), 28, 32, 40, 48), (2, 3, 4), "24P2D"),
)
STOCK = (
    *(f"dyn-load:{target}" for target in ("throughput", "latency", "load", "sla")),
    *(f"dyn-sla:{predictor}" for predictor in ("constant", "arima", "kalman", "prophet")),
    "dyn-sla+load",
)
DOPD: tuple[dict[str, Any], ...] = (
    {},
    *({"wait_share": share} for share in (1.0, 0.35, 0.25, 0.12, 0.08)),
    *({"wait_share": share, "hold_s": 60} for share in (0.3, 0.07)),
    {"paper_literal": True},
    *({"predictor": predictor} for predictor in ("arima", "last-value")),
)
"""Settings over configs/dopd.yaml: as shipped, the documented knob, the paper as printed, other predictors."""


@dataclass(frozen=True)
class Run:
    """One line of a table."""

    group: str
    planner: str
    settings: dict[str, Any] = field(default_factory=dict)
    start: str | None = None

    @property
    def label(self) -> str:
        shown = (value if isinstance(value, str) else json.dumps(value) for value in self.settings.values())
        settings = (f"{key}={value}" for key, value in zip(self.settings, shown, strict=True))
        return " ".join([self.planner, *settings, *([f"from {self.start}"] if self.start else [])])

    def command(self, trace: str, router: Router) -> str:
        options = [part for key, value in self.settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        options += [] if self.start is None else ["--initial", self.start]
        options += [] if router == "round_robin" else ["--router", router]
        return shlex.join(["pdplugins", "replay", "--planner", self.planner, *options, "--trace", trace])


def runs(trace: Trace) -> Iterator[Run]:
    yield from (Run("static", f"static:{p}P{d}D") for d in trace.decode for p in trace.prefill)
    yield from (Run("stock", name) for name in STOCK)
    yield from (
        Run("stock", name, start=trace.start) for name in ("dyn-load:latency", "dyn-sla:kalman", "dyn-sla+load")
    )
    yield from (Run("dopd", "dopd", settings) for settings in DOPD)
    yield from (Run("dopd", "dopd", settings, trace.start) for settings in ({}, {"wait_share": 1.0}))


def measure(trace: Trace, path: Path, router: Router, groups: Sequence[str], keep: bool) -> None:
    """Run `groups` over one trace; of the others, and with `keep` of all, keep what the result file has.

    Runs of older code are not kept. Each run names its own command, so a change of this script does not make it old.
    """
    file = trace.results(router)
    old = manifest.read(file.stem) if file.exists() else {"runs": []}
    changed = {*manifest.changed(manifest.experiment_of(file.stem), old)} - {manifest.SCRIPT}
    before = {run["label"]: run for run in old["runs"] if not changed - ({"dopd"} if run["group"] != "dopd" else set())}
    requests, done = traces.read(path), []
    for run in runs(trace):
        if run.group in groups and not (keep and run.label in before):
            plan = Plan(run.planner, configured(None, initial=run.start), run.settings, Engines(router=router))
            result = replay(plan, requests, trace_name=trace.file, command=run.command(trace.file, router))
            changes, result.scaling = len(result.scaling), []  # the list is long; a decision log has it too
            done.append({"label": run.label, "group": run.group, "changes": changes, **result.model_dump(mode="json")})
            attainment, gpu_hours = planners_report.point(done[-1])
            print(f"  {run.label:40s} {attainment:6.1f} % {gpu_hours:7.2f} GPU-h", flush=True)
        elif run.label in before:
            done.append(before[run.label])
    about = {"file": trace.file, "router": router, "requests": len(requests), "duration_s": requests[-1].arrival_s}
    made = record("simulated", seed=None, command=command(), took_part=("ai-dynamo",))
    manifest.write(file.stem, {**made, "trace": about, "runs": done})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=os.environ.get("TRACES"), help="folder that holds the traces")
    parser.add_argument("--only", nargs="*", choices=[t.key for t in TRACES], help="these traces")
    parser.add_argument("--groups", nargs="*", choices=GROUPS, default=GROUPS, help="run these, keep the others")
    parser.add_argument("--routers", nargs="*", choices=ROUTERS, default=ROUTERS, help="these routers of Dynamo's")
    parser.add_argument("--keep", action="store_true", help="run only what results/ does not have")
    options = parser.parse_args()
    if options.traces is None or not Path(options.traces).is_dir():
        parser.error(f"--traces DIR (or TRACES=DIR) must be a folder; {rows.PUBLISHED}")
    for trace in TRACES:
        if options.only and trace.key not in options.only:
            continue
        path = trace.find(Path(options.traces))
        if path is None:
            print(f"{trace.key}: skipped, no {trace.file} under {options.traces}; {rows.PUBLISHED}")
            continue
        for router in options.routers:
            print(f"{trace.key}, {router}:", flush=True)
            measure(trace, path, router, options.groups, options.keep)
    planners_report.write()


if __name__ == "__main__":
    main()
