"""Adds ``pdplugins planner`` (a planner in its own process, plugged into Dynamo's) and ``pdplugins replay``."""

from __future__ import annotations

import os
import sys
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from pdplugins import hookimpl
from pdplugins.config import DeploymentConfig, find, named
from pdplugins.errors import ConfigError
from pdplugins.files import check_apart
from pdplugins.hosts.dynamo.offline import commands as offline
from pdplugins.processes.keys import read_secret
from pdplugins.registry import default_registry
from pdplugins.runtime.decision_log import outputs_of
from pdplugins.terminal import console

TOKEN = "PDPLUGINS_TOKEN"  # noqa: S105 - the name of a variable
KEY = "PDPLUGINS_PLANNER_KEY"
_NOT_REPLAYED = ("flow", "router", "batch_scheduler", "power")
"""Policies of a config that Dynamo's offline replay does not run: it has its own router and its own engines."""


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(planner)
    app.command()(replay)


@wraps(offline.replay)
def replay(**given: Any) -> None:
    """Replay with the GPUs that every command has. Benchmarks of planners make their configs below this, with more."""
    if given["config"] is None and given["gpus"] is None:
        given["gpus"] = DeploymentConfig().gpu_budget
    planner = given["planner"]
    if planner in default_registry().names("bundle"):
        raise ConfigError(
            f"planner: {planner} is a bundle, whose planner needs its own router, and a replay runs Dynamo's; use "
            f"pdplugins simulate {planner}, or dynamo serve --planner {planner} --router {planner}"
        )
    offline.replay(**given)
    if planner != "static" and planner in default_registry().names("planner"):
        _say_what_did_not_run(given["config"] or planner, given["router"])


def _say_what_did_not_run(name: str, router: str) -> None:
    """Say which policies of the config had no part in a replay: with them `pdplugins simulate` mostly attains more."""
    config = named(name)
    unused = [key.replace("_", " ") for key in _NOT_REPLAYED if getattr(config, key) is not None]
    if unused:
        console().print(
            f"Dynamo's {router} placed the requests. The config's {' and '.join(unused)} did not run: "
            f"pdplugins simulate {name} runs them too, so its figures differ.",
            soft_wrap=True,
        )


def planner(  # noqa: PLR0913 - the options of a command
    *,
    config: Annotated[str, typer.Option(help="A config file, or the name of a shipped one.")] = "dopd",
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Address at which Dynamo's planner calls us; or unix:///PATH, a socket."
        ),
    ] = "127.0.0.1:9099",
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address told to Dynamo's planner, if not that of --listen.")
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(help="Register there: the gateway of Dynamo's planner, unix:///PATH or grpc://HOST:PORT."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the token by which Dynamo's planner knows this one; else {TOKEN}.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help=f"File with the key that calls must carry, where a mesh adds it; else {KEY}.")
    ] = None,
    allow_from: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS[/BITS]", help="Who may call; may be repeated.")
    ] = None,
    frontend_url: Annotated[
        str | None, typer.Option(metavar="URL[,URL…]", help="Read traffic, TTFT and TPOT from these frontends.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Count only this model at the frontend.")] = None,
    decision_log: Annotated[Path | None, typer.Option(help="File to append decisions to.")] = None,
    state: Annotated[Path | None, typer.Option(help="Keep what the planner learned there, for the next run.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics on this port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address of the metrics.")] = "127.0.0.1",
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Decide and log; Dynamo goes on as without this planner.")
    ] = False,
) -> None:
    """Run a planner in its own process, as an external gRPC plugin of a running Dynamo planner."""
    check_apart(
        {**outputs_of("--decision-log", decision_log), "--state": state},
        {"--config": find(config), "--token-file": token_file, "--key-file": key_file},
    )
    token = read_secret(token_file, "--token-file", TOKEN)
    key = read_secret(key_file, "--key-file", KEY)
    if not sys.stderr.isatty():
        os.environ.setdefault("DYN_SDK_DISABLE_ANSI_LOGGING", "1")  # no colours in a file
    from pdplugins.hosts.dynamo.doors import external, guard  # noqa: PLC0415 - imports Dynamo

    external.run(
        external.Options(
            config=config,
            listen=listen,
            advertise=advertise,
            gateway=gateway,
            token=token or "",
            key=key,
            allow_from=tuple(map(guard.network, allow_from or ())),
            frontend_url=frontend_url,
            model=model,
            decision_log=decision_log,
            state=state,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            shadow=shadow,
        )
    )
