"""Adds ``pdplugins plan``: AMPD's offline deployment planner (§5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdplugins import hookimpl
from pdplugins.config import MOST_GPUS
from pdplugins.errors import ConfigError
from pdplugins.studies.options import EverySeed, Html, Profile, Set, Tpot, Ttft
from pdplugins.workloads.commands import ClipS
from pdplugins.workloads.sources import inputs

if TYPE_CHECKING:
    from pdplugins.studies.deployment.coefficients import Objective

STAGES = ("P95 of each phase", "best plans, simulated whole")


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(plan)


def plan(  # noqa: PLR0913 - the options of a command
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A config file, or the name of a shipped one.")],
    *,
    trace: Annotated[str, typer.Option(help="Trace or workload file, a shipped workload, or 'synthetic'.")],
    gpus: Annotated[int, typer.Option(min=2, max=MOST_GPUS, help="GPUs of all workers together.")],
    rate: Annotated[float | None, typer.Option(help="Mean sessions/s: arrival times are scaled to it.")] = None,
    top: Annotated[int, typer.Option(min=1, max=20, help="Plans to show.")] = 3,
    objective: Annotated[str, typer.Option(help="P95 to minimise: 'slo' (over its SLO) or 'latency' (s).")] = "slo",
    clip_s: ClipS = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    settings: Set = None,
    profile: Profile = None,
    seed: EverySeed = 0,
    out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write the plans there.")] = None,
    html: Html = None,
    write_config: Annotated[Path | None, typer.Option(metavar="OUT", help="Write the best plan as a config.")] = None,
) -> None:
    """Plan tensor-parallel sizes and replicas of both phases for a trace."""
    from pdplugins.config import find  # noqa: PLC0415
    from pdplugins.files import check_apart, check_outputs, write_whole  # noqa: PLC0415
    from pdplugins.provenance import command_line, record  # noqa: PLC0415
    from pdplugins.sim.run.options import Overrides  # noqa: PLC0415
    from pdplugins.studies.configs import chosen, with_objectives  # noqa: PLC0415
    from pdplugins.studies.deployment.plan import plan_deployment, with_plan  # noqa: PLC0415
    from pdplugins.studies.deployment.report import as_yaml, page, show  # noqa: PLC0415
    from pdplugins.terminal import progress  # noqa: PLC0415
    from pdplugins.workloads import traces  # noqa: PLC0415 - a command loads what it needs when it runs
    from pdplugins.workloads.transform import Transform  # noqa: PLC0415

    check_outputs(out, html, write_config)
    outputs = {"--json": out, "--html": html, "--write-config": write_config}
    check_apart(outputs, {**inputs("--trace", trace), "--profile": profile, "CONFIG": find(config)})
    command = command_line()
    overrides = Overrides(profile=profile, settings=with_objectives(settings, ttft, tpot))
    parsed = chosen([config], overrides, outputs)[config]
    requests = Transform.of(rate=rate, clip_s=clip_s).apply(traces.read(trace))
    with progress(STAGES) as shares:
        planned = plan_deployment(
            parsed,
            requests,
            gpus,
            top=top,
            objective=_objective(objective),
            command=command,
            seed=seed,
            progress=lambda *done: shares(done),
        )
    best = planned.judged[0]
    made = record("simulated", seed=seed)
    if out is not None:
        write_whole(out, json.dumps(made | planned.as_data(top), indent=1) + "\n")
    if html is not None:
        write_whole(html, page(planned, top, parsed, {"trace": trace, **made}))
    if write_config is not None:
        write_whole(write_config, as_yaml(with_plan(parsed, best.plan, gpus), best, command))
    show(planned, top)


def _objective(name: str) -> Objective:
    if name == "slo":
        return "slo"
    if name == "latency":
        return "latency"
    raise ConfigError(f"--objective {name}: choose from slo, latency")
