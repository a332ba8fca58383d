"""The live replay of a trace: drives the load client's process, follows what it writes, makes the report of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pdplugins.contracts.request import Slo
from pdplugins.errors import HostError
from pdplugins.hosts.dynamo.local.options import LiveReplay, Options
from pdplugins.metrics import attainment
from pdplugins.processes.process import Process, python
from pdplugins.provenance import commit, versions
from pdplugins.results import RequestRecord, Result, Scaling, Speed, summarise
from pdplugins.workloads import jsonl
from pdplugins.workloads.trace import TraceRequest

LOOK_S, STOPPED_S = 1.0, 60.0
"""Pause between two looks at the client, and how long it may be stopped."""
SEED = 0
"""Of the prompts' token ids."""
MOCKER_NOTE = (
    "real frontend, planner and processes; the engines are Dynamo's mocker, so prefill and decode times are the "
    "profile's, not a GPU's"
)


class Load:
    """One replay: its client process and the records that it has written so far."""

    def __init__(self, replay: LiveReplay, options: Options, folder: Path, logs: Path) -> None:
        self._replay = replay
        self._options = options
        self._requests = folder / "trace.jsonl"
        self._out = folder / "requests.jsonl"
        self._log = logs / "client.log"
        self._process: Process | None = None
        self._offset = 0
        self._slo = Slo(options.config.slo.ttft_s, options.config.slo.tpot_s)
        self._inside = 0
        self.records: list[RequestRecord] = []
        self.finished_s = 0.0
        """When the last request so far finished, in seconds since the start of the replay."""

    @property
    def total(self) -> int:
        """Requests of the whole replay."""
        return self._replay.total

    @property
    def requests(self) -> Sequence[TraceRequest]:
        """What the client sends."""
        return self._replay.requests

    @property
    def failed(self) -> int:
        """Requests that failed so far."""
        return sum(not record.ok for record in self.records)

    @property
    def attainment(self) -> float | None:
        """Share of finished requests that met both objectives; None before the first."""
        return attainment(self._inside, len(self.records))

    def prepare(self, environment: Mapping[str, str]) -> Process:
        """Start the client; it reads the requests and then waits for `go`."""
        jsonl.write(self._replay.requests, self._requests)
        command = python(
            "pdplugins.workloads.client",
            *("--url", self._options.url, "--model", self._options.model, "--trace", str(self._requests)),
            *("--seed", str(SEED), "--out", str(self._out), "--hold"),
        )
        self._process = Process.start("client", command, env=environment, log=self._log, stdin=True)
        return self._process

    async def run(self) -> None:
        """Let the client send, and return when all its requests have finished. Raises HostError when it fails."""
        process = self._process
        if process is None or process.stdin is None:
            raise RuntimeError("prepare() comes first")
        with suppress(BrokenPipeError):  # it has ended already, which is told below
            process.stdin.write(b"go\n")
            process.stdin.flush()
        await self._ended(process)
        self.follow()
        if process.returncode != 0 or len(self.records) != self.total:
            raise HostError(f"the load client {process.fate} early: {process.last_words() or 'it said nothing'}")

    async def _ended(self, process: Process) -> None:
        """Return when the client has ended. Raises HostError when someone has stopped it and it does not go on."""
        looks = 0
        while not process.exited.is_set():
            looks = looks + 1 if process.stopped else 0
            if looks * LOOK_S > STOPPED_S:
                raise HostError(f"the load client (process {process.pid}) has been stopped for {STOPPED_S:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(process.exited.wait(), LOOK_S)

    def follow(self) -> None:
        """Take in what the client has written since the last call."""
        if not self._out.exists():
            return
        with self._out.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._take(json.loads(line))

    def _take(self, row: dict[str, Any]) -> None:
        if "request" not in row:
            return
        record = RequestRecord(
            arrival_s=row["arrival_s"],
            isl_tokens=row["isl_tokens"],
            osl_tokens=row["osl_tokens"],
            token_times_s=tuple(row["token_times_s"]),
            error=row["error"],
        )
        self.records.append(record)
        self._inside += record.inside(self._slo)
        self.finished_s = max(self.finished_s, row["finished_s"])

    def result(self, *, gpu_hours: float, wall_s: float, scaling: list[Scaling]) -> Result:
        """Return the report of the finished replay."""
        replay = self._replay
        requests, metrics = summarise(self.records, self._slo, self.finished_s, gpu_hours)
        how = {
            "trace": replay.trace.name,
            "duration_s": replay.duration_s,
            "speed": replay.speed,
            "engine": self._options.engine,
        }
        if self._options.engine == "mocker":
            how["note"] = MOCKER_NOTE
        return Result(
            kind="measured",
            requests=requests,
            metrics=metrics,
            speed=Speed(wall_s=wall_s, duration_s=self.finished_s),
            config={**self._options.config.model_dump(mode="json"), "replay": how},
            seed=SEED,
            commit=commit(),
            command=self._options.command,
            versions=versions("ai-dynamo"),
            scaling=scaling,
        )
