"""The command ``dynamo serve``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pdplugins.config import MOST_GPUS, find
from pdplugins.files import check_apart, profiles_of
from pdplugins.hosts.dynamo.local.options import (
    Options,
    check_engine,
    check_router,
    check_writable,
    live_replay,
    not_driven,
    pick_config,
    pick_port,
)
from pdplugins.hosts.dynamo.local.sglang_options import sglang_spec
from pdplugins.hosts.dynamo.local.sglang_python import check_python
from pdplugins.hosts.seams import need_version
from pdplugins.provenance import command_line
from pdplugins.report.address import HELP, HELP_PUBLIC, Address
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision_log import outputs_of
from pdplugins.settings import Setting, parse_setting
from pdplugins.workloads.sources import inputs

LEAST_STARTUP_S = 2.0
"""What a mocker process alone takes from its start until it serves, on an idle small machine."""


def serve(  # noqa: PLR0913 - the options of a command
    context: typer.Context,
    *,
    planner: Annotated[str | None, typer.Option(help="Planner by name, such as dopd; else the config's.")] = None,
    router: Annotated[
        str | None, typer.Option(help="Router by name, such as arrow, in the path of every request; else Dynamo's own.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="Config file, or a shipped one's name; else that of the router or planner.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Engine of the workers: mocker, Dynamo's, which needs no GPU, or sglang.")
    ] = "mocker",
    model_path: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Model of SGLang's workers; its name is the folder's.")
    ] = None,
    engine_python: Annotated[
        str | None,
        typer.Option(metavar="PYTHON", help="Python that has SGLang, ai-dynamo and pdplugins; else this one."),
    ] = None,
    engine_args: Annotated[
        str | None,
        typer.Option(metavar="OPTIONS", help="Further options of each of SGLang's workers, in one argument."),
    ] = None,
    prefill: Annotated[int | None, typer.Option(min=1, help="Prefill workers at start; else the config's.")] = None,
    decode: Annotated[int | None, typer.Option(min=1, help="Decode workers at start; else the config's.")] = None,
    gpus: Annotated[
        int | None, typer.Option(min=2, max=MOST_GPUS, help="GPUs of all workers; else the config's.")
    ] = None,
    ttft: Annotated[float | None, typer.Option(help="SLO of the time to first token, s; else the config's.")] = None,
    tpot: Annotated[float | None, typer.Option(help="SLO of the time per output token, s; else the config's.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the config and a value in YAML; may be repeated."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address of the OpenAI endpoint.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the OpenAI endpoint; 0 picks one.")] = 8000,
    startup: Annotated[
        float,
        typer.Option(
            min=LEAST_STARTUP_S,
            help="Seconds until a worker that the planner adds serves, in place of the config's startup_s: a GPU's "
            "30 s are a long wait for a first look. The first workers start at once.",
        ),
    ] = LEAST_STARTUP_S,
    replay: Annotated[
        str | None,
        typer.Option(
            "--trace", metavar="TRACE", help="Replay a trace or workload (docs/workloads.md), such as demo, then leave."
        ),
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--clip-s", min=0.001, help="Only what arrives in the first seconds of the trace.")
    ] = None,
    speed: Annotated[float, typer.Option(min=0.001, help="Replay this much faster.")] = 1.0,
    report: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the result of the replay there.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="OUT", help="Write a report of the replay that opens offline.")
    ] = None,
    status: Annotated[
        Literal["rich", "plain", "json-lines"] | None,
        typer.Option(help="How to show progress: rich on a terminal, else plain."),
    ] = None,
    decision_log: Annotated[Path | None, typer.Option(help="File to append decisions to: pdplugins explain.")] = None,
    state: Annotated[Path | None, typer.Option(help="Keep what the planner learned there, for the next run.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics on this port; 0 picks one.")
    ] = None,
    dashboard: Annotated[str | None, typer.Option(metavar="[HOST:]PORT", help=HELP)] = None,
    dashboard_public: Annotated[bool, typer.Option("--dashboard-public", help=HELP_PUBLIC)] = False,
    log_dir: Annotated[Path | None, typer.Option(help="Keep every process's log there; else temporary.")] = None,
) -> None:
    """Run Dynamo on this machine, scaled by a planner: frontend, prefill and decode workers, an OpenAI endpoint.

    Needs no etcd, no NATS, no Prometheus and no GPU. Ctrl-C stops everything.
    """
    asked = (("deployment", "gpu_budget"), gpus), (("slo", "ttft_s"), ttft), (("slo", "tpot_s"), tpot)
    given = [Setting(path, value) for path, value in asked if value is not None]
    check_engine(engine)
    sglang = sglang_spec(engine, model_path, engine_python, engine_args)
    outputs = {"--json": report, "--html": page, **outputs_of("--decision-log", decision_log), "--state": state}
    for option in ("--json", "--html", "--decision-log", "--state"):
        check_writable(option, outputs[option])
    check_apart(outputs, {**inputs("--trace", replay), "--config": config and find(config)})
    options = Options(
        config=pick_config(
            planner,
            config,
            prefill,
            decode,
            startup,
            router,
            settings=[*map(parse_setting, settings or ()), *given],
            engine=engine,
        ),
        engine=engine,
        host=host,
        port=pick_port(host, port),
        delay_s=startup - LEAST_STARTUP_S,
        status=status or ("rich" if sys.stdout.isatty() else "plain"),
        decision_log=decision_log,
        metrics_port=None if metrics_port is None else pick_port("127.0.0.1", metrics_port, "--metrics-port"),
        log_dir=log_dir,
        replay=live_replay(replay, duration, speed, report, page),
        command=command_line("dynamo"),
        hindsight=context.obj,
        dashboard=Address.read(dashboard, public=dashboard_public),
        sglang=sglang,
        routed=router is not None,
        state=state,
    )
    check_apart(outputs, profiles_of(config or planner or "the config", options.config.profiles))
    _check(options, own_config=config is not None)
    # This brings Dynamo in; --help and every error above do without.
    from pdplugins.hosts.dynamo.local.launch import launch  # noqa: PLC0415

    raise typer.Exit(launch(options))


def _check(options: Options, *, own_config: bool) -> None:
    """Raise PdpluginsError for what cannot run here, and say which choices of the user's own config do not count."""
    if options.routed:
        check_router(options.config, build_deployment(options.config))
    if own_config:
        for line in not_driven(options.config, routed=options.routed, engine=options.engine):
            typer.echo(f"dynamo: {line}", err=True)
    need_version("dynamo", "serve")
    if options.sglang is not None:
        check_python(options.sglang.python)
