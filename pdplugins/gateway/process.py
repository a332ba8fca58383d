"""The process of a gateway: it starts, serves, and ends within a stated time, together with servers that it started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import typer
import uvloop
from rich.console import Console

from pdplugins.config import Config
from pdplugins.contracts.request import Slo
from pdplugins.gateway.access.access import Access
from pdplugins.gateway.account import log_to_stdout
from pdplugins.gateway.app import Gateway
from pdplugins.gateway.backends import WorkerOption
from pdplugins.gateway.descriptors import connections_within, raise_limit
from pdplugins.gateway.discovery import parse_source
from pdplugins.gateway.engines.sglang.launch import Launch, plan
from pdplugins.gateway.engines.sglang.servers import Servers, Times
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.share import Share
from pdplugins.gateway.supervisor import take_reloads
from pdplugins.gateway.tracing import build_tracing
from pdplugins.gateway.watchers import keep
from pdplugins.processes.ending import on_stop
from pdplugins.processes.garbage import settle
from pdplugins.redaction import redact_logs
from pdplugins.runtime.decision_log import none_of_refused

log = logging.getLogger("pdplugins.gateway")

SERVERS_SHARE = 0.4
"""Share of the time of a stop that is kept for the servers that the gateway has started."""
EXIT_SHARE = 0.05
CUT_OFF_S = 3.0
"""So long after the time of a stop a process is cut off that has not ended: a policy may never return."""


@dataclass(frozen=True, slots=True)
class Sought:
    """Where the servers of a gateway are."""

    given: Sequence[str]
    """As after ``--worker``."""
    discover: Sequence[str] = ()
    """Where more are found, as after ``--discover``."""
    started: Launched | None = None
    """What is to be known of those that the gateway starts; None: it starts none."""


@dataclass(frozen=True, slots=True)
class Launched:
    """What is to be known of the servers that the gateway starts."""

    launch: str
    config: Path
    logs: Path
    ready_s: float


class StopTime:
    """The time of a stop, which begins with the first signal.

    :param within_s: how long all of it may take.
    """

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self._ends_s: float | None = None

    def begin(self) -> None:
        """Note a signal."""
        if self._ends_s is None:
            self._ends_s = monotonic() + self.within_s

    def left_s(self) -> float:
        """Return what is left of it, but for the end of the process itself."""
        self.begin()
        assert self._ends_s is not None  # noqa: S101 - it has begun
        return max(self._ends_s - monotonic() - EXIT_SHARE * self.within_s, 0.0)


def run(
    config: Config,
    sought: Sought,
    access: Access,
    host: str,
    port: int,
    decision_log: Path | None = None,
    otlp: str | None = None,
    share: Share | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; each further one skips a wait. Raises ConfigError or HostError."""
    options = [*map(WorkerOption.parse, sought.given)]
    sources = [*map(parse_source, sought.discover)]
    tracing = None if otlp is None else build_tracing(otlp)
    logging.basicConfig(level=logging.INFO)
    redact_logs(logging.root.handlers, "%(asctime)s %(name)s %(levelname)s %(message)s")
    if config.gateway.access_log_json:
        log_to_stdout()
    descriptors = raise_limit()
    if (most := connections_within(descriptors)) < config.gateway.max_connections:
        log.info("%d open files are enough for %d connections of clients; see ulimit -n", descriptors, most)
    metrics = GatewayMetrics(slo=Slo(config.slo.ttft_s, config.slo.tpot_s))
    servers = None if sought.started is None else _servers(config, sought, sought.started, access, metrics)
    options += servers.options if servers else ()
    ending = StopTime(config.gateway.drain_s)

    async def serve() -> None:
        gateway = Gateway(
            config,
            options,
            metrics=metrics,
            decision_log=decision_log,
            access=access,
            sources=sources,
            tracing=tracing,
            share=share,
        )
        async with AsyncExitStack() as stack:
            await _begin(stack, gateway, servers, ending, host, port)
            typer.echo(
                f"gateway on {gateway.url}{_which(share)}, {_policies(config)}, {len(gateway.backends.all)} workers: "
                f"{gateway.admin_url}/workers"
            )
            if gateway.board is not None:
                typer.echo(f"dashboard on {gateway.board.url}")
            if access.reloads:
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, access.reload)
                access.reload()  # a signal may have come meanwhile
            settle()
            await asyncio.Event().wait()

    if access.reloads:
        signal.signal(signal.SIGHUP, lambda *_: None)  # one that comes while this starts ends nothing
    take_reloads()
    with none_of_refused(decision_log):
        uvloop.run(_until_signal(serve(), ending))


async def _begin(
    stack: AsyncExitStack, gateway: Gateway, servers: Servers | None, ending: StopTime, host: str, port: int
) -> None:
    """Start the gateway and its servers; `stack` stops them in the time that `ending` has left, the gateway first."""
    if servers is not None:
        stack.push_async_callback(lambda: servers.stop(ending.left_s()))
    await gateway.start(host, port)
    after_s = SERVERS_SHARE * ending.within_s if servers is not None else 0.0
    stack.push_async_callback(lambda: gateway.stop(max(ending.left_s() - after_s, 0.0)))
    if servers is not None:
        await servers.start(Console(highlight=False))
        await gateway.look()
        by_url = {backend.url: backend for backend in gateway.backends.all}
        watch = asyncio.create_task(keep(lambda: servers.watch(lambda url: by_url[url].alive), gateway.metrics))
        stack.callback(watch.cancel)


async def _until_signal(serve: Coroutine[None, None, None], ending: StopTime) -> None:
    """Run `serve` until a signal cancels it, whose time then begins."""
    task = asyncio.create_task(serve)

    def end(_: signal.Signals) -> None:
        ending.begin()
        task.cancel()

    on_stop(end, ending.within_s + CUT_OFF_S, (signal.SIGINT, signal.SIGTERM))
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _which(share: Share | None) -> str:
    return "" if share is None else f" (process {share.index + 1} of {share.count})"


def _policies(config: Config) -> str:
    picked = [f"{key} {choice.name}" for key in ("bundle", "router", "flow") if (choice := getattr(config, key))]
    said = ", ".join(picked) or "router least-loaded"
    return f"{said} in shadow: the least loaded workers are taken" if config.gateway.shadow else said


def _servers(config: Config, sought: Sought, started: Launched, access: Access, metrics: GatewayMetrics) -> Servers:
    """Return the servers that are to be started. Raises ConfigError or HostError."""
    launch = replace(Launch.parse(started.launch), alone=not sought.given and not sought.discover)
    return Servers(
        plan(config, launch),
        launch,
        started.config,
        dual=config.sglang.dual_role,
        logs=started.logs,
        metrics=metrics,
        times=Times(started.ready_s),
        keys=access.worker_keys,
    )
