"""The SGLang servers that the gateway itself starts: it waits for them, says when one dies and starts it anew."""

from __future__ import annotations

import asyncio
import functools
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import aiohttp
from rich.console import Console
from rich.text import Text

from pdplugins.errors import HostError
from pdplugins.gateway.access.worker_keys import NO_KEYS, WorkerKeys
from pdplugins.gateway.backends import WorkerOption
from pdplugins.gateway.engines.sglang.launch import Launch, Spec
from pdplugins.gateway.engines.sglang.ranks import TRANSFERS_HERE, ranks_here
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.processes.process import Process, stop_all

log = logging.getLogger("pdplugins.gateway")

LOOK_S = 1.0
"""Pause between two looks at servers that start."""
EVENTS = ("started", "ready", "hung", "died")
"""What is counted of each server."""
ANSWER_S = 25.0
"""SGLang's ``/health`` generates a token, and says within 20 s that it could not."""


@dataclass(frozen=True, slots=True)
class Times:
    """How patient the gateway is with its servers, in seconds."""

    ready_s: float
    """Until they serve, all together; later each for itself, after its start."""
    restart_s: float = 10.0
    """From the death of a server to its next start."""
    hang_s: float = 60.0
    """A server that served and has not answered the gateway's polls for so long hangs."""


class Servers:
    """The servers of one gateway. Call everything on the event loop's main thread: they are killed when it ends.

    :param config: the config file that they get.
    :param dual: they take every role; else each one has the role of its spec.
    :param logs: the folder of their logs, ``NAME.log``; a server that starts anew adds to its log.
    :param keys: what they are started with.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        launch: Launch,
        config: Path,
        *,
        dual: bool,
        logs: Path,
        metrics: GatewayMetrics,
        times: Times,
        keys: WorkerKeys = NO_KEYS,
    ) -> None:
        self._specs = specs
        self._launch = launch
        self._config = config
        self._dual = dual
        self._meetings = tempfile.TemporaryDirectory(prefix="pdplugins-ranks-")
        self._logs = logs
        self._metrics = metrics
        self._times = times
        self._keys = keys
        self._processes: dict[str, Process] = {}
        self._restarts: dict[str, asyncio.TimerHandle] = {}
        self._up = False

    @property
    def options(self) -> list[WorkerOption]:
        """The workers that they are to the gateway."""
        return [WorkerOption(spec.url, role=spec.role) for spec in self._specs]

    async def start(self, console: Console) -> None:
        """Start all, and return when all serve. Raises HostError when one does not; `stop` is due then too."""
        began_s = monotonic()
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        say = functools.partial(console.print, markup=False, soft_wrap=True)
        say(f"{len(self._specs)} SGLang servers with {self._launch.model} start; logs in {self._logs}")
        for spec in self._specs:
            for event in EVENTS:  # at 0 before they happen: a rule sees no increase in a series that begins with one
                self._metrics.servers.labels(spec.name, event)
        for spec in self._specs:
            self._start(spec)
        waiting = list(self._specs)
        with console.status("") as status:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session:
                while waiting:
                    self._check(waiting, monotonic() - began_s)
                    status.update(self._progress(waiting, monotonic() - began_s, console.width))
                    await asyncio.sleep(LOOK_S)
                    up = await asyncio.gather(*(_serves(spec.url, session) for spec in waiting))
                    for spec, serves in zip(waiting, up, strict=True):
                        if serves:
                            self._metrics.servers.labels(spec.name, "ready").inc()
                            say(f"{_shown(spec)} serves after {monotonic() - began_s:.0f} s")
                    waiting = [spec for spec, serves in zip(waiting, up, strict=True) if not serves]
        self._up = True

    async def watch(self, answers: Callable[[str], bool]) -> None:
        """Kill servers that hang, for as long as the gateway runs; what died is started anew.

        :param answers: tells whether the server at a URL answers polls, its engine too.
        """
        watched: dict[str, Watched] = {}
        while True:
            await asyncio.sleep(LOOK_S)
            for spec in self._specs:
                process = self._processes[spec.name]
                seen = watched.get(spec.name)
                if seen is None or seen.process is not process:
                    seen = watched[spec.name] = Watched(process, monotonic())
                if process.returncode is None and self._hangs(seen, answers=answers(spec.url)):
                    log.warning("%s does not answer, though its process runs; killing it", _shown(spec))
                    self._metrics.servers.labels(spec.name, "hung").inc()
                    process.kill()

    def _hangs(self, seen: Watched, *, answers: bool) -> bool:
        """Tell whether a server has not answered for too long; one that has never answered may still be starting."""
        now_s = monotonic()
        if answers:
            seen.served, seen.since_s = True, now_s
        return now_s - seen.since_s > (self._times.hang_s if seen.served else self._times.ready_s)

    async def stop(self, within_s: float) -> None:
        """Stop all, and return when nothing of them is left. Those that have not ended by then are killed."""
        for restart in self._restarts.values():
            restart.cancel()
        for process in self._processes.values():
            process.forget()
        await stop_all(self._processes.values(), within_s)
        self._meetings.cleanup()

    def _start(self, spec: Spec) -> None:
        self._restarts.pop(spec.name, None)
        command = spec.command(self._launch, dual=self._dual)
        transfers = TRANSFERS_HERE if self._launch.alone else {}
        defaults = transfers | ranks_here(spec.name, Path(self._meetings.name), self._launch.options)
        try:
            self._processes[spec.name] = Process.start(
                spec.name,
                command,
                env=defaults | spec.environment(self._config, self._keys.of(spec.url)),
                log=self._logs / f"{spec.name}.log",
                on_exit=lambda process: self._ended(spec, process),
            )
        except OSError as error:
            raise HostError(f"gateway: this machine does not start {spec.name}: {error.strerror or error}") from None
        self._metrics.servers.labels(spec.name, "started").inc()

    def _check(self, waiting: Sequence[Spec], since_s: float) -> None:
        """Raise HostError when one has died, or all had time enough."""
        for process in self._processes.values():
            if process.returncode is not None:
                words = process.last_words() or "it said nothing"
                raise HostError(
                    f"gateway: {process.name} {process.fate} at its start: {words}; its log is {process.log}"
                )
        if since_s > self._times.ready_s:
            slow = ", ".join(f"{spec.name} ({self._processes[spec.name].log})" for spec in waiting)
            raise HostError(f"gateway: no answer after {since_s:.0f} s from {slow}; look there, or set --launch-s")

    def _progress(self, waiting: Sequence[Spec], since_s: float, width: int) -> Text:
        names = ", ".join(spec.name for spec in waiting)
        words = self._processes[waiting[0].name].last_words().rpartition(" | ")[2]
        text = Text(f"{since_s:.0f} s, {names} still to come: {words}")
        text.truncate(max(width - 3, 1), overflow="ellipsis")  # the spinner is before it
        return text

    def _ended(self, spec: Spec, process: Process) -> None:
        """Take note of the death of a server, and start it anew in a while."""
        self._metrics.servers.labels(spec.name, "died").inc()
        if not self._up:
            return
        words = process.last_words()
        log.warning("%s %s (%s); it starts anew in %g s", _shown(spec), process.fate, words, self._times.restart_s)
        self._restart_later(spec)

    def _restart_later(self, spec: Spec) -> None:
        loop = asyncio.get_running_loop()
        self._restarts[spec.name] = loop.call_later(self._times.restart_s, self._restart, spec)

    def _restart(self, spec: Spec) -> None:
        try:
            self._start(spec)
        except HostError as error:
            log.warning("%s; tried again in %g s", error, self._times.restart_s)
            self._restarts[spec.name] = asyncio.get_running_loop().call_later(
                self._times.restart_s, self._restart, spec
            )


@dataclass(slots=True)
class Watched:
    """A process of a server, while it is watched."""

    process: Process
    since_s: float
    """When it started, or answered last."""
    served: bool = False


async def _serves(url: str, session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get(f"{url}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


def _shown(spec: Spec) -> str:
    gpus = f", GPU {','.join(spec.gpus)}" if spec.gpus else ""
    return f"{spec.name} ({spec.url}{gpus})"
