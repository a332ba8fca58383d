"""Adds ``pdplugins planner`` (a planner in its own process, plugged into Dynamo's) and ``pdplugins replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pdplugins import hookimpl
from pdplugins.hosts.dynamo.offline.commands import replay


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(planner)
    app.command()(replay)


def planner(  # noqa: PLR0913 - the options of a command
    *,
    config: Annotated[str, typer.Option(help="A config file, or the name of a shipped one.")] = "dopd",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the planner calls us.")] = "127.0.0.1:9099",
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="How the planner reaches us, if not by --listen.")
    ] = None,
    gateway: Annotated[
        str | None, typer.Option(help="The planner's gateway, unix:///PATH or grpc://HOST:PORT, to register with.")
    ] = None,
    token: Annotated[
        str, typer.Option(envvar="PDPLUGINS_TOKEN", help="One of the planner's static_secrets.", show_default=False)
    ] = "",
    frontend_url: Annotated[str | None, typer.Option(help="Read traffic, TTFT and TPOT from this frontend.")] = None,
    model: Annotated[str | None, typer.Option(help="Count only this model at the frontend.")] = None,
    decision_log: Annotated[Path | None, typer.Option(help="File to append decisions to.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics there.")] = None,
) -> None:
    """Run a planner in its own process, as an external gRPC plugin of a running Dynamo planner."""
    from pdplugins.hosts.dynamo.doors import external  # noqa: PLC0415 - imports Dynamo

    external.run(
        config,
        listen=listen,
        advertise=advertise,
        gateway=gateway,
        token=token,
        frontend_url=frontend_url,
        model=model,
        decision_log=decision_log,
        metrics_port=metrics_port,
    )
