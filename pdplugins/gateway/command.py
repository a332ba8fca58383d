"""``pdplugins gateway``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pdplugins import config as configs
from pdplugins.config import Config
from pdplugins.errors import ConfigError
from pdplugins.files import check_apart, is_folder, profiles_of
from pdplugins.gateway.access.worker_keys import KEY
from pdplugins.gateway.share import own_share, part_of
from pdplugins.gateway.supervisor import MOST_PROCESSES, supervise
from pdplugins.limits import GatewayConfig
from pdplugins.processes.addresses import MOST_PORT
from pdplugins.processes.child import die_with
from pdplugins.report.address import HELP, HELP_PUBLIC, Address
from pdplugins.runtime.decision_log import outputs_of
from pdplugins.settings import parse_setting, put

DEFAULTS = GatewayConfig()


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
    discover: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE[,role=R]",
            help="Find SGLang servers while the gateway runs: file:PATH, dns:HOST:PORT or "
            "kubernetes:[NAMESPACE/]SERVICE[:PORT]; may be repeated.",
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
    processes: Annotated[
        int, typer.Option(min=1, help="Processes that serve the port; each has an admin port of its own.")
    ] = 1,
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
    dashboard: Annotated[str | None, typer.Option(metavar="[HOST:]PORT", help=HELP)] = None,
    dashboard_public: Annotated[bool, typer.Option("--dashboard-public", help=HELP_PUBLIC)] = False,
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
    otlp: Annotated[
        str | None, typer.Option(metavar="URL", help="Send traces there, such as http://127.0.0.1:4318/v1/traces.")
    ] = None,
    shadow: Annotated[
        bool | None,
        typer.Option("--shadow", help="Let the router decide and log, and place by least load."),
    ] = None,
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
        "shadow": shadow,
    }
    path = configs.find(config)
    chosen = configs.load(path)
    if not worker and not discover and launch is None:
        raise ConfigError(
            "gateway: name SGLang servers with --worker URL, or start some with --launch MODEL, or find them with "
            "--discover SOURCE"
        )
    for option, address in (("--host", host), ("--admin-host", admin_host)):
        if not address:
            raise ConfigError(f"{option}: say which address; 127.0.0.1 is this machine only, 0.0.0.0 every address")
    read = {
        "--config": path,
        "--api-keys": api_keys,
        "--tls-cert": tls_cert,
        "--tls-key": tls_key,
        "--worker-key-file": worker_key_file,
        "--worker-ca": worker_ca,
        **_files_of(discover or ()),
        **profiles_of(config, chosen.profiles),
    }
    _check_logs(decision_log, processes, read)
    from pdplugins.gateway.access.access import read_access  # noqa: PLC0415 - aiohttp takes a while to import
    from pdplugins.gateway.process import Launched, Sought, run  # noqa: PLC0415

    changed = changed_limits(chosen, given, settings or ())
    access = read_access(
        worker_key_file=worker_key_file,
        worker_ca=worker_ca,
        api_keys=api_keys,
        tls_cert=tls_cert,
        tls_key=tls_key,
        admin_host=admin_host,
        dashboard=Address.read(dashboard, public=dashboard_public),
        admin_port=admin_port if admin_port is not None else port + 1 if 0 < port < MOST_PORT else 0,
    )
    share = own_share() if processes > 1 else None
    if processes > 1 and share is None:
        if dashboard is not None:
            raise ConfigError("--dashboard: it shows one process; use it without --processes")
        if launch is not None:
            raise ConfigError("--processes: start the servers by hand and name them with --worker, or use one process")
        part_of(changed, processes - 1, processes)
        raise typer.Exit(supervise(processes, host, port, reloads=access.reloads))
    if share is not None:
        changed = part_of(changed, share.index, share.count)
        access = replace(access, admin_port=access.admin_port and access.admin_port + share.index)
        decision_log = decision_log and _log_of(decision_log, share.index)
        die_with(share.supervisor)
    started = None
    if launch is not None:
        logs = log_dir or Path(tempfile.mkdtemp(prefix="pdplugins-gateway-"))  # this user's only, and no one's link
        started = Launched(launch, path, logs, launch_s)
    sought = Sought(worker or (), discover or (), started)
    run(changed, sought, access, host, port, decision_log, otlp, share)


def _files_of(discover: Iterable[str]) -> dict[str, Path]:
    """Return the files that workers are found in, by what they are called in an error."""
    return {f"--discover {text}": Path(text.removeprefix("file:")) for text in discover if text.startswith("file:")}


def _log_of(decision_log: Path, index: int) -> Path:
    """Return the decision log of one of several processes."""
    return decision_log.with_stem(f"{decision_log.stem}-{index + 1}")


def _check_logs(decision_log: Path | None, processes: int, read: Mapping[str, Path | None]) -> None:
    """Raise ConfigError where the decision log of a process would take the place of a file that is read."""
    if decision_log is None:
        return
    if is_folder(decision_log):
        raise ConfigError(f"--decision-log {decision_log}: is a folder; name a file in it")
    own = (_log_of(decision_log, index) for index in range(min(processes, MOST_PROCESSES)))
    for log in own if processes > 1 else [decision_log]:
        check_apart(outputs_of("--decision-log", log), read)


def gateway_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of --api-keys; it is made if need be.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")],
    admin: Annotated[bool, typer.Option("--admin", help="The admin listener takes it, too.")] = False,
) -> None:
    """Make a key for a client of the gateway: it is printed once, and FILE gets its hash."""
    from pdplugins.gateway.access.api_keys import new_key  # noqa: PLC0415 - as above

    new_key(file, name, admin=admin, tell=_tell)


def _tell(key: str) -> None:
    """Print a key at once. Raises ConfigError where nobody can read it."""
    if sys.stdout is None:
        raise ConfigError("gateway-key: standard output is closed, so nobody would see the key; none was made")
    try:
        typer.echo(key)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(
            f"gateway-key: standard output: {error.strerror}; nobody saw the key, so none was made"
        ) from None


def changed_limits(config: Config, given: Mapping[str, Any], settings: Sequence[str]) -> Config:
    """Return `config` with the options that were given, and then the settings, in its section gateway."""
    data = config.model_dump(mode="json")
    data["gateway"] |= {key: value for key, value in given.items() if value is not None}
    for text in settings:
        put(data["gateway"], parse_setting(text))
    return configs.parse(data, "gateway")
