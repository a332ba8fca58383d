"""The router's process of one stack: started, and started again when it dies or hangs."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from pdplugins.config import Config
from pdplugins.hosts.dynamo.local.engine import Engine
from pdplugins.hosts.dynamo.local.options import Options
from pdplugins.hosts.dynamo.local.registrations import Registrations
from pdplugins.processes.ports import free_ports
from pdplugins.processes.process import Process, python

log = logging.getLogger("pdplugins.local.router")

NAME = "router"
LEAST_S = 10.0
"""Lifetime from which a router that dies is started again at once."""
PAUSE_S = 1.0
"""Until another one is started in place of one that has lived shorter."""
SILENT_S = 5.0
"""How long a router that serves may be missing from the discovery, which has waited for it before."""
MOST_FAILURES = 3
"""So many routers in a row that die young end the stack."""


def sharing(options: Options, folder: Path) -> Config:
    """Return the config with a folder in which planner and router exchange signals, which are two processes here."""
    config = options.config
    if not options.routed or config.signals.folder is not None:
        return config
    signals = folder / "signals"
    signals.mkdir(mode=0o700)
    return config.model_copy(update={"signals": config.signals.model_copy(update={"folder": signals})})


def router_log(planner_log: Path | None) -> Path | None:
    """Return the decision log of the router's process, beside that of the planner: a process has one of its own."""
    return planner_log and planner_log.with_suffix(f".{NAME}{planner_log.suffix}")


class RouterProcess:
    """Keeps one router running, which serves its metrics on `metrics_port` of this machine.

    :param fail: ends the stack with one line.
    """

    def __init__(
        self,
        options: Options,
        engine: Engine,
        registrations: Registrations,
        logs: Path,
        fail: Callable[[str], None],
    ) -> None:
        self._options = options
        self._engine = engine
        self._registrations = registrations
        self._log = logs / f"{NAME}.log"
        self._fail = fail
        self._command: list[str] = []
        self._process: Process | None = None
        self._again: asyncio.TimerHandle | None = None
        self._since_s = 0.0
        self._served = False
        """Whether it has been registered."""
        self._missed_s: float | None = None
        """Since when it is not, although it was; None where it is."""
        self._failures = 0
        self._closed = False
        self.metrics_port = free_ports(1)[0]

    def start(self, folder: Path) -> None:
        """Write its config, and start it."""
        path = folder / "router.yaml"
        path.write_text(json.dumps(self._options.config.model_dump(mode="json")), encoding="utf-8")
        arguments = ["--config", str(path), "--engine", self._engine.kind.name, *self._engine.model_options]
        if (decisions := router_log(self._options.decision_log)) is not None:
            arguments += ["--decision-log", str(decisions.absolute())]
        self._command = python("pdplugins.hosts.dynamo.router", *arguments)
        self._run()

    def look(self) -> None:
        """Kill a router that no longer says that it serves. Call it a few times per second.

        One that stands still for ten seconds is taken out of the discovery, and does not register again.
        """
        if NAME in self._registrations.serving():
            self._served, self._missed_s = True, None
        elif self._served:
            now_s = time.monotonic()
            self._missed_s = now_s if self._missed_s is None else self._missed_s
            if self._process is not None and now_s - self._missed_s > SILENT_S:
                self._served = False
                log.warning("the router no longer says that it serves, though it runs; killing it")
                self._process.kill()

    def close(self) -> list[Process]:
        """Start it no more; returns the process that is still to be stopped."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        return [] if self._process is None else [self._process]

    def _run(self) -> None:
        env = self._engine.environment(NAME) | {"DYN_SYSTEM_PORT": str(self.metrics_port)}
        self._since_s, self._served, self._missed_s = time.monotonic(), False, None
        self._process = Process.start(NAME, self._command, env=env, log=self._log, on_exit=self._ended)

    def _run_again(self) -> None:
        try:
            self._run()
        except OSError as error:
            self._process = None
            self._failures += 1
            log.warning("the router cannot be started (%s); trying again", error)
            self._try_again(f"the router cannot be started: {error}", PAUSE_S)

    def _try_again(self, why: str, pause_s: float) -> None:
        """Start it again after a pause, or end the stack with `why` where that has failed too often."""
        if self._failures >= MOST_FAILURES:
            self._fail(why)
            return
        self._again = asyncio.get_running_loop().call_later(pause_s, self._run_again)

    def _ended(self, process: Process) -> None:
        instance = self._registrations.serving().get(NAME)
        if instance is not None:
            self._registrations.remove(instance)  # the frontend would send requests to a closed port
        if self._closed:
            return
        log.warning("the router %s; starting another one", process.fate)
        young = time.monotonic() - self._since_s < LEAST_S
        self._failures = self._failures + 1 if young else 0
        why = f"the router {process.fate}: {process.last_words() or 'it said nothing'}"
        self._try_again(why, PAUSE_S if young else 0.0)
