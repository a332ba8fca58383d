"""One run of the arena: a workload, a deployment, a router and what scales it. Runs are kept, a file for each cell."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("DYN_LOG", "error")  # before Dynamo is imported

import fingerprint
import manifest
from rivals import USES, Clairvoyant, Load
from traffic import Trace, Workload

from pdplugins.config import Choice, Config
from pdplugins.hosts.dynamo.mocker import Engines, Router, bind
from pdplugins.hosts.dynamo.offline import report
from pdplugins.hosts.dynamo.offline.commands import configured
from pdplugins.hosts.dynamo.offline.run import Plan, replay, resolve
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import Deployment
from pdplugins.workloads import jsonl

Host = Literal["replay", "sim"]
CELLS = manifest.RESULTS / ".cells" / "arena"
GPUS = 128
CLAIRVOYANT = "clairvoyant"
Row = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A deployment of the arena."""

    startup_s: float
    max_batch: int = 256


PLACES = {
    "5 s": Place(5.0),
    "30 s": Place(30.0),
    "180 s": Place(180.0),
    "decode": Place(30.0, max_batch=16),
}
"""By name. Prefill is the bottleneck with decode batches of 256, decode with 16; the start-up is in the first three."""


class OutOfTimeError(Exception):
    """The time that the script may take is over."""


@dataclass(frozen=True)
class Trial:
    """What scales the pools, and what it starts with."""

    group: Literal["fixed", "stock", "dopd", "clairvoyant"]
    planner: str
    start: tuple[int, int]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What tells it from the others of a cell."""
        given = [f"{key}={value}" for key, value in self.settings.items()]
        return " ".join([self.planner, *given, f"from {self.start[0]}P{self.start[1]}D"])


@dataclass
class Cell:
    """One workload with one seed on one deployment behind one router, and its runs so far.

    A run is known by its label, its traffic and the code that it measures, so a change of DOPD repeats only the runs of
    DOPD.
    """

    workload: Workload
    seed: int
    place: str
    router: Router
    host: Host
    folder: Path | None
    until: float = float("inf")

    def __post_init__(self) -> None:
        self.name = f"{self.workload.name}, seed {self.seed}, {self.place}, {self.router}, {self.host}"
        self.file = CELLS / f"{self.name.replace(', ', '_').replace(' ', '-')}.jsonl"
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        self._known: dict[str, Row] = {row["key"]: row for row in map(json.loads, lines)}
        self._trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        """The requests."""
        if self._trace is None:
            self._trace = self.workload.requests(self.seed, self.folder)
        return self._trace

    def config(self, start: tuple[int, int] = (1, 1)) -> Config:
        """Return the deployment with these pools at start."""
        place = PLACES[self.place]
        changed = {
            "gpu_budget": GPUS, "startup_s": place.startup_s, "max_batch": place.max_batch,
            ("prefill", "tp"): self.workload.prefill_gpus, ("prefill", "replicas"): start[0],
            ("decode", "replicas"): start[1],
        }  # fmt: skip
        keys = (((key,) if isinstance(key, str) else key, value) for key, value in changed.items())
        return configured(None, {("deployment", *key): value for key, value in keys})

    @property
    def load(self) -> Load:
        """The work of its trace."""
        return Load(self.trace, self.deployment)

    @property
    def deployment(self) -> Deployment:
        """Its deployment as the planners get it."""
        return build_deployment(self.config())

    def run(self, trial: Trial) -> Row:
        """Return a run, from the file or computed. Raises OutOfTimeError.

        Fixed pools never start a worker, so they run once for all deployments that differ in their start-up alone.
        """
        alike = next(name for name, place in PLACES.items() if place.max_batch == PLACES[self.place].max_batch)
        if trial.group == "fixed" and self.place != alike:
            return replace(self, place=alike).run(trial)
        key = f"{trial.label} {self._digest()} {_code(self.host, trial.group)}"
        if key not in self._known:
            if time.monotonic() > self.until:
                raise OutOfTimeError
            row = {"key": key, "group": trial.group, "label": trial.label, **self._computed(trial)}
            self._known[key] = row
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return {name: value for name, value in self._known[key].items() if name != "key"}

    def _digest(self) -> str:
        said = "".join(f"{r.arrival_s:.3f} {r.isl_tokens} {r.osl_tokens};" for r in self.trace)
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    def _computed(self, trial: Trial) -> Row:
        if trial.planner == CLAIRVOYANT:
            return self._clairvoyant(trial)
        config = self.config(trial.start)
        plan = Plan(trial.planner, config, trial.settings, Engines(None, self.router))
        if self.host == "sim":
            given = resolve(trial.planner, config, trial.settings).model_copy(
                update={"router": Choice(name="round-robin"), "batch_scheduler": None}
            )
            metrics = simulate(given, self.trace, trace_name=self.name, command="", seed=self.seed)[0].metrics
            return _row(metrics.slo_attainment, metrics.gpu_hours)
        result = replay(plan, self.trace, trace_name=self.name, command="")
        return _row(result.metrics.slo_attainment, result.metrics.gpu_hours, len(result.scaling))

    def _clairvoyant(self, trial: Trial) -> Row:
        deployment = self.deployment
        with tempfile.TemporaryDirectory(prefix="arena-") as scratch:
            folder = Path(scratch)
            jsonl.write_mooncake(self.trace, folder / "trace.jsonl")
            policy = Clairvoyant(Load(self.trace, deployment), **trial.settings)
            run = bind(deployment, Engines(None, self.router), folder)
            said = run(folder / "trace.jsonl", policy, *trial.start, folder / "requests.jsonl")
            _, metrics = report.metrics(said, folder / "requests.jsonl", deployment)
        return _row(metrics.slo_attainment, metrics.gpu_hours)


def _row(attainment: float | None, gpu_hours: float, changes: int = 0) -> Row:
    return {"metrics": {"slo_attainment": attainment or 0.0, "gpu_hours": gpu_hours}, "changes": changes}


@cache
def _code(host: Host, group: str) -> str:
    """Return a fingerprint of the code that a run measures."""
    parts = ["contracts", "perf", "runtime", "workloads", "simulator" if host == "sim" else "replay"]
    files = {path for part in (*parts, *(["dopd"] if group == "dopd" else [])) for path in manifest.files_of(part)}
    if group == "clairvoyant":
        files.add(Path(__file__).with_name("rivals.py"))
    return fingerprint.of(files, manifest.ROOT)


def trials(cell: Cell, stock: Sequence[tuple[str, Mapping[str, Any]]], dopd: Mapping[str, Any]) -> list[Trial]:
    """Return what runs in a cell. All scalers start with the pools that are about right for the first minute."""
    start = cell.load.start()
    fixed = [Trial("fixed", "static", pools) for pools in cell.load.pools()]
    own = [Trial("dopd", "dopd", start, dopd)]
    if cell.host == "sim":
        return [*fixed, *own]
    rivals = [Trial("stock", name, start, settings) for name, settings in stock]
    return [*fixed, *own, *rivals, *(Trial("clairvoyant", CLAIRVOYANT, start, {"use": use}) for use in USES)]
