"""Adds ``pdplugins simulate``, ``compare``, ``bound``, ``advise`` and ``backtest``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdplugins import hookimpl
from pdplugins.config import MOST_GPUS, find
from pdplugins.errors import ConfigError
from pdplugins.files import check_apart, check_outputs, profiles_of
from pdplugins.runtime.decision_log import outputs_of
from pdplugins.studies.advise.commands import advise
from pdplugins.studies.backtest.commands import backtest
from pdplugins.studies.options import (
    SYNTHETIC,
    Bound,
    DecisionLog,
    Decode,
    Gpus,
    Html,
    Jobs,
    Json,
    LookBack,
    Prefill,
    Profile,
    Records,
    Seed,
    Set,
    Stream,
    Tpot,
    Trace,
    Ttft,
)
from pdplugins.workloads.commands import ClipS, MaxContext, MaxRequests, Rate
from pdplugins.workloads.sources import inputs

if TYPE_CHECKING:
    from pdplugins.config import Config
    from pdplugins.report.ranking import Run
    from pdplugins.sim.run.compare import Plan
    from pdplugins.workloads.transform import Transform

CONFIG = "A config file, or the name of a shipped one, such as dopd."


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(simulate)
    app.command()(compare)
    app.command()(bound)
    app.command()(advise)
    app.command()(backtest)


def simulate(  # noqa: PLR0913 - the options of a command
    config: Annotated[str, typer.Argument(metavar="CONFIG", help=CONFIG)],
    *,
    trace: Trace = None,
    rate: Rate = None,
    clip_s: ClipS = None,
    max_requests: MaxRequests = None,
    max_context: MaxContext = None,
    gpus: Gpus = None,
    profile: Profile = None,
    prefill: Prefill = None,
    decode: Decode = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    seed: Seed = 0,
    settings: Set = None,
    bound: Bound = False,
    out: Json = None,
    report: Html = None,
    records: Records = None,
    decision_log: DecisionLog = None,
    look_back: LookBack = True,
    stream: Stream = False,
) -> None:
    """Simulate a trace on the workers and policies of a config."""
    from pdplugins.sim.report import recordfile  # noqa: PLC0415
    from pdplugins.sim.run.compare import run_one  # noqa: PLC0415
    from pdplugins.sim.run.options import Overrides  # noqa: PLC0415
    from pdplugins.studies.configs import chosen, with_objectives  # noqa: PLC0415
    from pdplugins.terminal import progress  # noqa: PLC0415
    from pdplugins.workloads.transform import Transform  # noqa: PLC0415 - a command loads what it needs when it runs

    if stream and (report is not None or bound or decision_log is not None):
        raise ConfigError("--stream keeps nothing that --html, --bound or --decision-log could show; leave them out")
    check_outputs(out, report, records, decision_log)
    outputs = {"--json": out, "--html": report, "--records": records, **outputs_of("--decision-log", decision_log)}
    check_apart(outputs, {**inputs("--trace", trace), "--profile": profile, "CONFIG": find(config)})
    if records is not None:
        recordfile.check(records)
    changes = Transform.of(rate=rate, clip_s=clip_s, max_requests=max_requests, max_context_tokens=max_context)
    overrides = Overrides(gpus, profile, prefill, decode, with_objectives(settings, ttft, tpot))
    configs = chosen([config], overrides, outputs)
    if stream:
        run = _streamed(config, configs[config], trace, changes, seed, records)
        _finish([run], None, lambda: run.result.write(out) if out is not None else None)
        return
    plan = _plan(configs, trace, changes, seed, watch=report is not None)
    regret = _regret(plan, bound)
    with progress([config]) as shares:
        run, outcome = run_one(plan, config, lambda share: shares([share]), decision_log)
    run = regret(run)
    if records is not None:
        recordfile.write(outcome.records, records)
    more = (lambda: _hindsight(plan, run)) if look_back else list
    _finish([run], report, lambda: run.result.write(out) if out is not None else None, more)


def compare(  # noqa: PLR0913 - the options of a command
    configs: Annotated[list[str], typer.Argument(metavar="CONFIG...", help=CONFIG)],
    *,
    trace: Trace = None,
    rate: Rate = None,
    clip_s: ClipS = None,
    max_requests: MaxRequests = None,
    max_context: MaxContext = None,
    gpus: Gpus = None,
    profile: Profile = None,
    prefill: Prefill = None,
    decode: Decode = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    seed: Seed = 0,
    settings: Set = None,
    bound: Bound = False,
    out: Json = None,
    report: Html = None,
    jobs: Jobs = None,
) -> None:
    """Simulate a trace under several configs, and mark the best of each metric."""
    from pdplugins.files import write_whole  # noqa: PLC0415
    from pdplugins.sim.run.compare import as_json, run_all  # noqa: PLC0415
    from pdplugins.sim.run.options import Overrides  # noqa: PLC0415
    from pdplugins.studies.configs import chosen, with_objectives  # noqa: PLC0415
    from pdplugins.terminal import progress  # noqa: PLC0415
    from pdplugins.workloads.transform import Transform  # noqa: PLC0415 - a command loads what it needs when it runs

    check_outputs(out, report)
    read = {**inputs("--trace", trace), "--profile": profile, **{f"CONFIG {name}": find(name) for name in configs}}
    outputs = {"--json": out, "--html": report}
    check_apart(outputs, read)
    changes = Transform.of(rate=rate, clip_s=clip_s, max_requests=max_requests, max_context_tokens=max_context)
    overrides = Overrides(gpus, profile, prefill, decode, with_objectives(settings, ttft, tpot))
    plan = _plan(chosen(configs, overrides, outputs), trace, changes, seed, watch=report is not None)
    regret = _regret(plan, bound)
    with progress(list(plan.configs)) as shares:
        runs = run_all(plan, jobs or os.cpu_count() or 1, shares)
    runs = [*map(regret, runs)]
    for name in plan.configs.keys() - {run.name for run in runs}:
        typer.echo(f"{name} was interrupted before it began", err=True)
    _finish(runs, report, lambda: write_whole(out, as_json(runs)) if out is not None else None)


def bound(  # noqa: PLR0913 - the options of a command
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="Config that gives GPUs, profile and SLO.")
    ] = None,
    *,
    trace: Trace = None,
    rate: Rate = None,
    clip_s: ClipS = None,
    max_requests: MaxRequests = None,
    max_context: MaxContext = None,
    gpus: Annotated[int | None, typer.Option(min=2, max=MOST_GPUS, help="GPUs of all workers together.")] = None,
    profile: Profile = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    settings: Set = None,
    out: Json = None,
) -> None:
    """Compute the bound that no policy can beat: the best SLO attainment, and the fewest GPU-hours at 99 %."""
    from pdplugins.config import Config, named  # noqa: PLC0415
    from pdplugins.files import write_whole  # noqa: PLC0415
    from pdplugins.provenance import command_line, commit  # noqa: PLC0415
    from pdplugins.settings import Setting, parse_setting  # noqa: PLC0415
    from pdplugins.sim.run.options import changed  # noqa: PLC0415
    from pdplugins.studies.bound.api import bound_of  # noqa: PLC0415
    from pdplugins.workloads.traces import read  # noqa: PLC0415 - a command loads what it needs when it runs
    from pdplugins.workloads.transform import Transform  # noqa: PLC0415

    check_outputs(out)
    check_apart({"--json": out}, {**inputs("--trace", trace), "--profile": profile, "CONFIG": config and find(config)})
    given = (
        Setting(("deployment", "gpu_budget"), gpus),
        Setting(("deployment", "profile"), profile),
        Setting(("slo", "ttft_s"), ttft),
        Setting(("slo", "tpot_s"), tpot),
    )
    asked = [*map(parse_setting, settings or ()), *(setting for setting in given if setting.value is not None)]
    checked = changed(Config() if config is None else named(config), config or "bound", asked)
    check_apart({"--json": out}, profiles_of(config or "bound", checked.profiles))
    changes = Transform.of(rate=rate, clip_s=clip_s, max_requests=max_requests, max_context_tokens=max_context)
    load = _load(trace)
    best = bound_of(checked, changes.apply(read(load)))
    if out is not None:
        run = {"trace": Path(load).name, "rate": rate, "profile": checked.deployment.profile}
        made = {"slo": checked.slo.model_dump(), "run": run, "commit": commit(), "command": command_line()}
        write_whole(out, json.dumps({"kind": "bound", **best.model_dump(), **made}, indent=1) + "\n")
    fewest = best.fewest_gpu_hours
    typer.echo(
        f"{best.requests} requests on {best.gpus} GPUs of {checked.deployment.profile}: no policy serves more than "
        f"{best.slo_attainment:.2%} inside both SLOs; "
        + ("none reaches 99 %" if fewest is None else f"no scaler reaches 99 % with less than {fewest:.3f} GPU-hours")
        + (f"; {best.hopeless} requests are hopeless" if best.hopeless else "")
    )


def _load(trace: str | None) -> str:
    """Return what --trace names. Without it that is a built-in load, which is said on standard error."""
    if trace is not None:
        return trace
    from pdplugins.workloads.sources import shipped  # noqa: PLC0415 - a command loads what it needs when it runs

    typer.echo(
        f"no --trace: the load is '{SYNTHETIC}', 300 s of bursty made-up requests (pdplugins trace info {SYNTHETIC}); "
        f"give yours with --trace FILE, or take another: {', '.join(shipped())}",
        err=True,
    )
    return SYNTHETIC


def _plan(configs: dict[str, Config], trace: str | None, changes: Transform, seed: int, *, watch: bool) -> Plan:
    """Read the trace. Raises TraceError."""
    from pdplugins.provenance import command_line  # noqa: PLC0415
    from pdplugins.sim.run.compare import Plan  # noqa: PLC0415
    from pdplugins.workloads import traces  # noqa: PLC0415

    load = _load(trace)
    return Plan(
        configs=configs,
        trace=changes.apply(traces.read(load)),
        trace_name=Path(load).name,
        command=command_line(),
        seed=seed,
        watch=watch,
        rate=changes.rate,
    )


def _streamed(name: str, config: Config, trace: str | None, changes: Transform, seed: int, records: Path | None) -> Run:
    """Simulate without keeping the trace or the records. Raises ConfigError or TraceError."""
    from pdplugins.provenance import command_line  # noqa: PLC0415
    from pdplugins.report.ranking import Run  # noqa: PLC0415
    from pdplugins.sim.stream import run  # noqa: PLC0415
    from pdplugins.terminal import progress  # noqa: PLC0415
    from pdplugins.workloads import lazy  # noqa: PLC0415 - a command loads what it needs when it runs

    load, ends_s = _load(trace), changes.clip_s or float("inf")
    with progress([name]) as shares:
        result = run.simulate(
            config,
            lazy.changed(lazy.requests(load), changes),
            trace_name=Path(load).name,
            command=command_line(),
            seed=seed,
            progress=lambda now_s: shares([min(now_s / ends_s, 1.0)]),
            records=records,
        )
    return Run(name, result, None)


def _regret(plan: Plan, wanted: bool) -> Callable[[Run], Run]:
    """Return what adds its regret to a run. The bounds come first: if they fail, no run is lost."""
    if not wanted:
        return lambda run: run
    from pdplugins.studies.bound.api import bounds_of, with_regret  # noqa: PLC0415

    bounds = bounds_of(plan)
    return lambda run: with_regret(run, bounds[run.name])


def _hindsight(plan: Plan, run: Run) -> Iterable[str]:
    """Say how many GPUs of fixed pools would have done, and what those of the same cost would have attained."""
    from pdplugins.studies import hindsight  # noqa: PLC0415

    gpus_held = 3600 * run.result.metrics.gpu_hours / max(run.result.speed.duration_s, 1e-9)
    return hindsight.lines(plan.configs[run.name], plan.trace, gpus_held)


def _finish(
    runs: Sequence[Run], report: Path | None, write: Callable[[], None], more: Callable[[], Iterable[str]] = list
) -> None:
    """Write the runs, show them, say `more`, write their report, and exit with code 130 if they were interrupted.

    :param write: writes the results, perhaps to standard output.
    """
    from pdplugins.files import write_whole  # noqa: PLC0415
    from pdplugins.report.runs import page  # noqa: PLC0415
    from pdplugins.sim.report import terminal  # noqa: PLC0415

    if not runs:
        raise typer.Exit(130)
    interrupted = any(run.result.interrupted for run in runs)
    said: list[str] = []
    try:
        write()
        terminal.show(runs)
        try:
            said += [] if interrupted else more()
        except KeyboardInterrupt:  # the runs are whole
            interrupted = True
        for line in said:
            typer.echo(line)
    finally:  # also where nobody reads what is printed, as behind `| head`
        if report is not None:
            write_whole(report, page(runs, said))
    if interrupted:
        raise typer.Exit(130)
