"""``pdplugins gateway``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pdplugins import config as configs
from pdplugins.config import Config
from pdplugins.errors import ConfigError
from pdplugins.gateway.access.worker_keys import KEY
from pdplugins.limits import GatewayConfig
from pdplugins.processes.addresses import MOST_PORT
from pdplugins.processes.ending import on_stop
from pdplugins.redaction import redact_logs
from pdplugins.settings import parse_setting, put

if TYPE_CHECKING:
    from pdplugins.gateway.access.access import Access
    from pdplugins.gateway.engines.sglang.servers import Servers
    from pdplugins.gateway.metrics import GatewayMetrics

log = logging.getLogger("pdplugins.gateway")

DEFAULTS = GatewayConfig()
SERVERS_SHARE = 0.4
"""Share of the time of a stop that is kept for the servers that the gateway has started."""
EXIT_SHARE = 0.05
CUT_OFF_S = 3.0
"""So long after the time of a stop a process is cut off that has not ended: a policy may never return."""
GC_THRESHOLD = (20_000, 20, 20)
"""New objects before Python collects garbage: those of some hundred requests, instead of one or two."""


def gateway(  # noqa: PLR0913 - one argument for each option
    *,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL[,bootstrap_port=N,role=R,kind=K]",
            help="An SGLang server. role: prefill | decode, the label at start of a dual-role server; "
            "kind: dual | prefill | decode | unified where the server does not say it.",
        ),
    ] = None,
    launch: Annotated[
        str | None,
        typer.Option(
            metavar="'MODEL [SGLANG OPTIONS]'",
            help="Start the servers too, on this machine: as many as the config's deployment has prefill and decode "
            "replicas.",
        ),
    ] = None,
    config: Annotated[str, typer.Option(help="A config file, or the name of a shipped one.")] = "stock-least-loaded",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks one.")] = 8000,
    admin_host: Annotated[
        str, typer.Option(help="Address of /workers and /metrics; beyond this machine they want an admin key.")
    ] = "127.0.0.1",
    admin_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Their port; 0 picks one.", show_default="the one after --port"),
    ] = None,
    api_keys: Annotated[
        Path | None, typer.Option(help="Whose requests to take: a file that 'pdplugins gateway-key' makes.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain for HTTPS, in PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, in PEM, without a password.")] = None,
    worker_key_file: Annotated[
        Path | None, typer.Option(help=f"Keys that workers want: lines of KEY or URL KEY; else {KEY}.")
    ] = None,
    worker_ca: Annotated[
        Path | None, typer.Option(help="Further authorities for workers' certificates, in PEM, besides the system's.")
    ] = None,
    launch_s: Annotated[float, typer.Option(min=1, help="Longest time until launched servers serve.")] = 1800.0,
    log_dir: Annotated[Path | None, typer.Option(help="Logs of launched servers; else a temporary folder.")] = None,
    decision_log: Annotated[
        Path | None, typer.Option(help="Log a sample of the decisions of router and flow policy here.")
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option(help="Longest time of a request.", show_default=str(DEFAULTS.timeout_s))
    ] = None,
    first_token_s: Annotated[
        float | None,
        typer.Option(
            help="Longest wait for a worker's first token; then the request goes elsewhere.",
            show_default=str(DEFAULTS.first_token_s),
        ),
    ] = None,
    silence_s: Annotated[
        float | None, typer.Option(help="Longest silence within a stream.", show_default=str(DEFAULTS.silence_s))
    ] = None,
    retries: Annotated[
        int | None, typer.Option(help="How often a request may move on.", show_default=str(DEFAULTS.retries))
    ] = None,
    poll_s: Annotated[
        float | None, typer.Option(help="Pause between two looks at loads.", show_default=str(DEFAULTS.poll_s))
    ] = None,
    transfer_history: Annotated[
        bool | None,
        typer.Option("--transfer-history/--recompute-history", help="How prefill workers get a session's history."),
    ] = None,
    access_log: Annotated[bool | None, typer.Option("--access-log", help="Log a line for each request.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the config's section gateway: docs/limits.md."),
    ] = None,
) -> None:
    """Serve the OpenAI API over SGLang servers, each request where the router plugin of a config places it."""
    given = {
        "timeout_s": timeout_s,
        "first_token_s": first_token_s,
        "silence_s": silence_s,
        "retries": retries,
        "poll_s": poll_s,
        "transfer_history": transfer_history,
        "access_log": access_log,
    }
    if not worker and launch is None:
        raise ConfigError("gateway: name SGLang servers with --worker URL, or start some with --launch MODEL")
    if not host:
        raise ConfigError("--host: say which address; 127.0.0.1 is this machine only, 0.0.0.0 every address")
    from pdplugins.gateway.access.access import read_access  # noqa: PLC0415 - aiohttp takes a while to import

    path = configs.find(config)
    changed = changed_limits(configs.load(path), given, settings or ())
    access = read_access(
        worker_key_file=worker_key_file,
        worker_ca=worker_ca,
        api_keys=api_keys,
        tls_cert=tls_cert,
        tls_key=tls_key,
        admin_host=admin_host,
        admin_port=admin_port if admin_port is not None else port + 1 if 0 < port < MOST_PORT else 0,
    )
    started = None
    if launch is not None:
        logs = log_dir or Path(tempfile.mkdtemp(prefix="pdplugins-gateway-"))  # this user's only, and no one's link
        started = Started(launch, path, logs, launch_s)
    run(changed, worker or [], started, access, host, port, decision_log)


def gateway_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of --api-keys; it is made if need be.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")],
    admin: Annotated[bool, typer.Option("--admin", help="The admin listener takes it, too.")] = False,
) -> None:
    """Make a key for a client of the gateway: it is printed once, and FILE gets its hash."""
    from pdplugins.gateway.access.api_keys import new_key  # noqa: PLC0415 - as above

    typer.echo(new_key(file, name, admin=admin))


def changed_limits(config: Config, given: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """Return `config` with the options that were given, and then the settings, in its section gateway."""
    data = config.model_dump(mode="json")
    data["gateway"] |= {key: value for key, value in given.items() if value is not None}
    for text in settings:
        put(data["gateway"], parse_setting(text))
    return configs.parse(data, "gateway")


@dataclass(frozen=True, slots=True)
class Started:
    """What is to be known of the servers that the gateway starts."""

    launch: str
    config: Path
    logs: Path
    ready_s: float


class Ending:
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
    workers: list[str],
    started: Started | None,
    access: Access,
    host: str,
    port: int,
    decision_log: Path | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; each further one skips a wait."""
    import uvloop  # noqa: PLC0415 - only this command needs it

    from pdplugins.gateway.app import Gateway  # noqa: PLC0415 - aiohttp takes a while to import
    from pdplugins.gateway.backends import WorkerOption  # noqa: PLC0415
    from pdplugins.gateway.descriptors import connections_within, raise_limit  # noqa: PLC0415
    from pdplugins.gateway.metrics import GatewayMetrics  # noqa: PLC0415

    given = [*map(WorkerOption.parse, workers)]
    logging.basicConfig(level=logging.INFO)
    redact_logs(logging.root.handlers, "%(asctime)s %(name)s %(levelname)s %(message)s")
    descriptors = raise_limit()
    if (most := connections_within(descriptors)) < config.gateway.max_connections:
        log.info("%d open files are enough for %d connections of clients; see ulimit -n", descriptors, most)
    metrics = GatewayMetrics()
    ending = Ending(config.gateway.drain_s)
    servers = None if started is None else build_servers(config, started, access, metrics)
    options = [*given, *(servers.options if servers else ())]

    async def serve(stack: AsyncExitStack) -> None:
        if servers is not None:
            stack.push_async_callback(lambda: servers.stop(ending.left_s()))
        gateway = Gateway(config, options, metrics=metrics, decision_log=decision_log, access=access)
        await gateway.start(host, port)
        after_s = SERVERS_SHARE * ending.within_s if servers is not None else 0.0
        stack.push_async_callback(lambda: gateway.stop(max(ending.left_s() - after_s, 0.0)))
        if servers is not None:
            await servers.start(Console(highlight=False))
            await gateway.look()
            by_url = {backend.url: backend for backend in gateway.backends.all}
            watch = asyncio.create_task(servers.watch(lambda url: by_url[url].alive))
            stack.callback(watch.cancel)
        picked = [f"{key} {choice.name}" for key in ("bundle", "router", "flow") if (choice := getattr(config, key))]
        policies = ", ".join(picked) or "router least-loaded"
        typer.echo(f"gateway on {gateway.url}, {policies}, {len(options)} workers: {gateway.admin_url}/workers")
        if access.reloads:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, access.reload)
        gc.collect()
        gc.freeze()  # these objects stay; to scan them in each collection took a sixth of the CPU time
        gc.set_threshold(*GC_THRESHOLD)
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker

        def end(_: signal.Signals) -> None:
            ending.begin()
            task.cancel()

        on_stop(end, ending.within_s + CUT_OFF_S, (signal.SIGINT, signal.SIGTERM))
        with contextlib.suppress(asyncio.CancelledError):
            async with AsyncExitStack() as stack:
                await serve(stack)

    uvloop.run(main())


def build_servers(config: Config, started: Started, access: Access, metrics: GatewayMetrics) -> Servers:
    """Return the servers that are to be started. Raises ConfigError or HostError."""
    from pdplugins.gateway.engines.sglang.launch import Launch, plan  # noqa: PLC0415
    from pdplugins.gateway.engines.sglang.servers import Servers, Times  # noqa: PLC0415

    launch = Launch.parse(started.launch)
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
