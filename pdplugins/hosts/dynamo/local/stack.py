"""The launcher's process: it owns every other one, runs Dynamo's planner in its event loop and shows what goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pdplugins import verdict
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.workers import Role
from pdplugins.errors import HostError, one_line
from pdplugins.files import write_whole
from pdplugins.hosts.dynamo.answering import answers
from pdplugins.hosts.dynamo.fetching import in_thread
from pdplugins.hosts.dynamo.local import misses, planning, screen
from pdplugins.hosts.dynamo.local.broker import Broker
from pdplugins.hosts.dynamo.local.connector import LocalProcessConnector
from pdplugins.hosts.dynamo.local.dashboard import Board
from pdplugins.hosts.dynamo.local.engines import make_engine
from pdplugins.hosts.dynamo.local.fleet import SHOWN, Fleet, Limits
from pdplugins.hosts.dynamo.local.load import Load
from pdplugins.hosts.dynamo.local.metrics import process_metrics
from pdplugins.hosts.dynamo.local.options import Options
from pdplugins.hosts.dynamo.local.pulse import Pulse, PulseTaker
from pdplugins.hosts.dynamo.local.registrations import Registrations
from pdplugins.hosts.dynamo.local.routing import RouterProcess, sharing
from pdplugins.hosts.dynamo.local.status import PoolStatus, Snapshot, make_view
from pdplugins.hosts.dynamo.runtime import make_runtime
from pdplugins.processes.ending import end_within, on_stop
from pdplugins.processes.process import Process, stop_all
from pdplugins.report.ranking import Run
from pdplugins.report.runs import page
from pdplugins.report.series import series_of_records
from pdplugins.results import Scaling
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.metrics import process_metrics as planner_metrics
from pdplugins.runtime.planner import SafePlanner
from pdplugins.runtime.roster import Life

log = logging.getLogger("pdplugins.local")

GRACE_S = 3.0
"""How long processes may take to end when everything stops."""
STOP_S = 10.0
"""How long the launcher itself may take to end."""
FLEET_STEP_S = 0.2
SHOW_S = 1.0


class Stack:
    """Frontend, workers, planner and load client of one ``dynamo serve``.

    :param policy: what decides how many workers there are.
    :param folder: everything that the processes share; the caller removes it.
    """

    def __init__(self, options: Options, policy: SafePlanner, folder: Path, logs: Path) -> None:
        self._options = options = replace(options, config=sharing(options, folder))
        self._policy = policy
        self._deployment = deployment = build_deployment(options.config)
        self._folder = folder
        self._logs = logs
        self._gpus = {Role.PREFILL: deployment.prefill_tp, Role.DECODE: deployment.decode_tp}
        self._broker = Broker()
        self._engine = make_engine(options, folder, deployment, self._broker.url)
        registrations = Registrations(self._engine.discovery)
        self._router = RouterProcess(options, self._engine, registrations, logs, self._fail) if options.routed else None
        self._fleet = Fleet(
            self._start_worker,
            registrations,
            gpus=self._gpus,
            gpu_budget=deployment.gpu_budget,
            limits=Limits(ready_s=self._engine.start_s + options.delay_s),
            metrics=process_metrics(),
        )
        self._load = Load(options.replay, options, folder, logs) if options.replay else None
        where = options.dashboard
        self._board = None if where is None else Board(options, deployment.slo, where)
        self._view = make_view(options.status, deployment.slo)
        self._started_s = time.monotonic()
        self._answers = False
        self._unshown: type[Exception] | None = None
        """Why the last status could not be shown; None where it could."""
        self._planner = "starting"
        self._pulse = Pulse()
        self._scaling: list[Scaling] = []
        self._processes: list[Process] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._runtime: Any = None
        self._signal: signal.Signals | None = None
        self._failure: HostError | None = None
        self._finished = False
        """Whether a replay has been answered, and its report is written."""
        self._main: asyncio.Task[int] | None = None

    async def run(self) -> int:
        """Run until a signal comes or the replay is over; returns the exit code. Raises HostError when it fails."""
        on_stop(self._stop_on, STOP_S)
        self._main = asyncio.create_task(self._work())
        try:
            return await self._main
        except asyncio.CancelledError:
            if self._failure is not None:
                raise self._failure from None
            return self._interrupted()
        finally:
            end_within(STOP_S)
            await self._stop()

    def _stop_on(self, number: signal.Signals) -> None:
        if self._signal is None and self._main is not None:
            self._signal = number
            self._main.cancel()

    def _fail(self, why: str) -> None:
        if self._failure is None and self._signal is None and self._main is not None:
            logs = f"; logs are in {self._logs}" if self._logs.exists() else ""
            self._failure = HostError(why + logs)
            self._main.cancel()

    def _interrupted(self) -> int:
        if self._load is None or self._signal is None:
            return 0
        missing = "only its verdict is missing" if self._finished else "no report is written"
        self._view.say("interrupted", f"The replay was interrupted; {missing}.")
        return 128 + self._signal

    # --- up ------------------------------------------------------------------------------------------------------

    async def _work(self) -> int:
        self._view.say("starting", screen.starting(self._options))
        if self._board is not None:
            await self._board.start()
        if self._options.metrics_port is not None:
            planner_metrics(Kind.PLANNER).serve(self._options.metrics_port)
        self._engine.prepare()
        frontend = self._engine.frontend(self._options.host, self._options.port, routed=self._options.routed)
        self._start("frontend", frontend, self._frontend_ended)
        if self._router is not None:
            self._router.start(folder=self._folder)
        pools = self._options.config.deployment
        self._fleet.want(Role.PREFILL, pools.prefill.replicas)
        self._fleet.want(Role.DECODE, pools.decode.replicas)
        self._background(self._every(FLEET_STEP_S, self._step))
        if self._load is not None:
            self._processes.append(self._load.prepare(self._engine.environment()))
        await self._answering()
        text = screen.ready(self._options, self._deployment, self._policy.interval_s, self._logs)
        if self._board is not None:
            text = f"{text}\nDashboard: {self._board.url}"
        self._view.say("ready", text, **self._facts())
        self._background(self._every(SHOW_S, self._show))
        self._background(self._take_pulse())
        await self._start_planner()
        if self._load is None:
            await asyncio.Event().wait()
        else:
            await self._replay(self._load)
        return 0

    def _start(self, name: str, command: list[str], on_exit: Callable[[Process], None]) -> None:
        env = self._engine.environment()
        self._processes.append(Process.start(name, command, env=env, log=self._logs / f"{name}.log", on_exit=on_exit))

    def _start_worker(self, role: Role, name: str, on_exit: Callable[[Process], None]) -> Process:
        command = self._engine.worker(role, at_once=not self._answers, both=self._options.both)
        env = self._engine.worker_environment(name, both=self._options.both)
        return Process.start(name, command, env=env, log=self._logs / f"{name}.log", on_exit=on_exit)

    def _frontend_ended(self, process: Process) -> None:
        self._fail(f"Dynamo's frontend {process.fate}: {process.last_words() or 'it said nothing'}")

    async def _answering(self) -> None:
        """Return when a request would be answered. Raises HostError when that takes too long."""
        asked = partial(answers, self._options.url, self._options.model)
        while not self._answers:
            if self._elapsed_s() > self._engine.start_s:
                raise HostError(
                    f"the endpoint does not answer after {self._engine.start_s:.0f} s; look into the logs in "
                    f"{self._logs}, and give the machine less else to do if they show no error"
                )
            await asyncio.sleep(0.1)
            if all(self._fleet.count(role, Life.READY) for role in Role):
                with suppress(OSError):
                    self._answers = await in_thread(asked)

    async def _start_planner(self) -> None:
        os.environ.update(self._engine.runtime_environment())
        await asyncio.to_thread(planning.import_planner)  # takes seconds; no worker waits for it
        self._runtime = make_runtime()
        planner = await planning.start_planner(self._runtime, self._options, self._policy, self._connect)
        self._planner = "running"
        self._background(self._plan(planner))

    def _connect(self, worker_info: Any) -> LocalProcessConnector:
        return LocalProcessConnector(self._fleet, self._options.model, self._gpus, worker_info, self._scaled)

    # --- running -------------------------------------------------------------------------------------------------

    async def _plan(self, planner: Any) -> None:
        """Run Dynamo's planner. Whatever ends it, the last plan holds and serving goes on."""
        try:
            await planner.run()
        except Exception as error:
            self._planner = f"failed ({type(error).__name__}: {one_line(error)}); its last plan holds"
            process_metrics().planner_failed()
            log.exception("Dynamo's planner failed; its last plan holds")

    def _scaled(self, prefill: int, decode: int) -> None:
        reason = one_line(self._policy.last.reason) if self._policy.decided else ""
        self._scaling.append(Scaling(at_s=self._elapsed_s(), prefill=prefill, decode=decode, reason=reason))
        log.info("planner: %d prefill and %d decode workers: %s", prefill, decode, reason)

    async def _replay(self, load: Load) -> None:
        at_s, gpu_hours = self._elapsed_s(), self._fleet.gpu_hours
        first = Scaling(
            at_s=0.0,
            prefill=self._fleet.wanted(Role.PREFILL),
            decode=self._fleet.wanted(Role.DECODE),
            reason="workers at start",
        )
        self._scaling.clear()
        await load.run()
        later = [change.model_copy(update={"at_s": change.at_s - at_s}) for change in self._scaling]
        result = load.result(
            gpu_hours=self._fleet.gpu_hours - gpu_hours,
            wall_s=self._elapsed_s() - at_s,
            scaling=[first, *later],
        )
        report = self._options.replay.report if self._options.replay else None
        if report is not None:
            result.write(report)
        config, slo = self._options.config, self._deployment.slo
        missed = misses.missed(load.records, result, self._deployment, config.deployment.startup_s)
        looked = await asyncio.to_thread(misses.looking_back, self._options.hindsight, config, load.requests, result)
        # What is written comes before what is said: nobody may read standard output any more.
        if self._options.replay is not None and self._options.replay.page is not None:
            series = series_of_records(load.records, slo, result.scaling)
            name = config.planner.name if config.planner else "no planner"
            write_whole(self._options.replay.page, page([Run(name, result, series, missed)], looked))
        self._finished = True
        self._show()
        self._view.say(
            "finished", screen.finished(result, report), **result.model_dump(include={"requests", "metrics"})
        )
        said = [*verdict.lines(missed, slo), *looked]
        self._view.say("verdict", "\n".join(said), lines=said)

    async def _take_pulse(self) -> None:
        """Show what clients feel, for as long as the frontend answers."""

        def show(pulse: Pulse) -> None:
            self._pulse = pulse

        self._fail(await PulseTaker(self._options.url, self._deployment.slo).watch(show))

    def _step(self) -> None:
        if not self._engine.discovery.exists():  # workers and frontend have lost each other and do not look again
            self._fail(
                f"the folder of this stack, {self._folder}, has been deleted; start again, with TMPDIR elsewhere"
            )
        self._fleet.step()
        if self._router is not None:
            self._router.look()

    async def _every(self, seconds: float, what: Callable[[], None]) -> None:
        while True:
            what()
            await asyncio.sleep(seconds)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._background_ended)
        self._tasks.append(task)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the launcher itself failed", exc_info=error)
            self._fail(f"the launcher itself failed ({type(error).__name__}: {error})")

    # --- shown ---------------------------------------------------------------------------------------------------

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _facts(self) -> dict[str, object]:
        options = self._options
        return {
            "url": options.url,
            "model": options.model,
            "logs": str(self._logs),
            "metrics_port": options.metrics_port,
            "dashboard": None if self._board is None else self._board.url,
            "router_metrics_port": None if self._router is None else self._router.metrics_port,
        }

    def _show(self) -> None:
        if self._load is not None:
            self._load.follow()
        snapshot = self._snapshot()
        try:
            self._view.show(snapshot)
            if self._board is not None:
                self._board.show(snapshot)
        except Exception as error:  # what cannot be shown is no reason to stop serving
            if type(error) is not self._unshown:  # it comes again every second
                log.exception("the status cannot be shown; serving goes on")
            self._unshown = type(error)
        else:
            self._unshown = None

    def _snapshot(self) -> Snapshot:
        plan = self._policy.last if self._policy.decided else None
        load, fleet = self._load, self._fleet
        return Snapshot(
            elapsed_s=self._elapsed_s(),
            prefill=self._pool(Role.PREFILL),
            decode=self._pool(Role.DECODE),
            gpus_held=fleet.gpus_held,
            gpu_budget=self._deployment.gpu_budget,
            gpu_hours=fleet.gpu_hours,
            pulse=self._pulse,
            planner=self._planner,
            reason=one_line(plan.reason) if plan is not None else "",
            signals=plan.signals if plan is not None else {},
            total=load.total if load is not None else None,
            finished=len(load.records) if load is not None else 0,
            failed=load.failed if load is not None else 0,
            attainment=load.attainment if load is not None else None,
            changed=self._scaling[-1] if self._scaling else None,
            workers=tuple({"name": w.name, "pid": w.process.pid, "phase": w.life} for w in fleet.workers),
        )

    def _pool(self, role: Role) -> PoolStatus:
        counts = {life.value: self._fleet.count(role, life) for life in SHOWN}
        return PoolStatus(wanted=self._fleet.wanted(role), **counts)

    # --- down ----------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        workers = self._fleet.close()
        if self._router is not None:
            self._processes += self._router.close()
        if self._board is not None:
            await self._board.stop()
        for process in self._processes:
            process.forget()
        await asyncio.gather(
            stop_all((*self._processes, *workers), GRACE_S),
            asyncio.wait_for(asyncio.gather(*self._tasks, return_exceptions=True), GRACE_S),
            return_exceptions=True,
        )
        if self._runtime is not None:
            self._runtime.shutdown()
        self._view.close()
