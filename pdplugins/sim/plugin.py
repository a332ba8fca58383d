"""Adds ``pdplugins simulate``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from pdplugins import hookimpl
from pdplugins.errors import ConfigError


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(simulate)


def simulate(  # noqa: PLR0913 - the options of a command
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A config file, or the name of a shipped one.")],
    *,
    trace: Annotated[Path, typer.Option(help="Azure CSV, Mooncake JSONL, or 'synthetic'.")] = Path("synthetic"),
    rate: Annotated[float | None, typer.Option(help="Mean requests/s: arrival times are scaled to it.")] = None,
    gpus: Annotated[int | None, typer.Option(min=2, help="GPUs of all workers together.")] = None,
    profile: Annotated[str | None, typer.Option(help="Performance profile, <gpu>/<model>.")] = None,
    prefill: Annotated[int | None, typer.Option(min=1, help="Prefill workers at start.")] = None,
    decode: Annotated[int | None, typer.Option(min=1, help="Decode workers at start.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every choice by lot.")] = 0,
    out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write the result there.")] = None,
) -> None:
    """Simulate a trace on the workers and policies of a config."""
    from pdplugins.bench import traces  # noqa: PLC0415 - a command loads what it needs when it runs
    from pdplugins.config import find, load, parse  # noqa: PLC0415
    from pdplugins.sim.run import simulate as run  # noqa: PLC0415

    data = load(find(config)).model_dump(mode="json")
    deployment = data["deployment"]
    if gpus is not None:
        deployment["gpu_budget"] = gpus
    if profile is not None:
        deployment["profile"] = profile
    for role, count in (("prefill", prefill), ("decode", decode)):
        if count is not None:
            deployment[role]["replicas"] = count
    if out is not None and not out.resolve().parent.is_dir():
        raise ConfigError(f"--json {out}: there is no folder {out.parent}; create it first")
    requests = traces.read(trace)
    span_s = requests[-1].arrival_s
    if rate is not None and span_s > 0:
        requests = traces.scale(requests, rate * span_s / len(requests))
    command = shlex.join(["pdplugins", *sys.argv[1:]])
    result, _ = run(parse(data, "options"), requests, trace_name=trace.name, command=command, seed=seed)
    if out is not None:
        result.write(out)
    metrics, speed = result.metrics, result.speed
    attainment = "n/a" if metrics.slo_attainment is None else f"{metrics.slo_attainment:.1%}"
    typer.echo(
        f"{config}: {result.requests.total} requests, {result.requests.failed} failed; SLO attainment {attainment}; "
        f"TTFT mean {metrics.ttft_s.mean or 0:.3f} s, P99 {metrics.ttft_s.p99 or 0:.3f} s; "
        f"TPOT mean {1e3 * (metrics.tpot_s.mean or 0):.1f} ms, P99 {1e3 * (metrics.tpot_s.p99 or 0):.1f} ms; "
        f"{metrics.gpu_hours:.2f} GPU-hours; {len(result.scaling)} changes of the pools; "
        f"{speed.requests_per_s or 0:.0f} requests/s in {speed.wall_s:.1f} s"
    )
