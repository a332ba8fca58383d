"""``pdplugins replay``: one trace, one planner, Dynamo's own simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pdplugins.config import MOST_GPUS
from pdplugins.files import check_apart, check_outputs, profiles_of, write_whole
from pdplugins.interrupt import ctrl_c
from pdplugins.runtime.decision_log import outputs_of
from pdplugins.settings import Setting, parse_setting, put
from pdplugins.workloads.sources import inputs

if TYPE_CHECKING:
    from pdplugins.config import Config
    from pdplugins.results import Result, Spread

MOST_BLOCKS = 10**9
"""Of a worker's KV cache: Dynamo reads larger numbers as fractions."""
_DEFAULTS: dict[tuple[str, ...], Any] = {
    ("slo", "ttft_s"): 2.0,
    ("slo", "tpot_s"): 0.08,
    ("deployment", "gpu_budget"): 64,
    ("deployment", "startup_s"): 30.0,
    ("deployment", "prefill", "tp"): 1,
    ("deployment", "prefill", "replicas"): 1,
    ("deployment", "decode", "tp"): 2,
    ("deployment", "decode", "replicas"): 1,
}
"""What holds without a config file; the command itself has fewer GPUs, as all commands do."""


def replay(  # noqa: PLR0913 - the options of a command
    *,
    planner: Annotated[
        str,
        typer.Option(
            help="dopd or any planner of yours; static:3P1D; dyn-load[:throughput|latency|load|sla]; "
            "dyn-sla[:constant|arima|kalman|prophet]; dyn-sla+load[:predictor]."
        ),
    ] = "dopd",
    trace: Annotated[Path, typer.Option(help="A trace or workload, see docs/workloads.md.")],
    out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write the result there.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="Write a report that opens offline.")] = None,
    config: Annotated[str | None, typer.Option(help="Config file, or the name of a shipped one.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the planner, over the file's: --set interval_s=10, and for Dynamo's own "
            "--set load_scaling_down_sensitivity=0 (80), --set ttft_ms=200 (the SLO).",
        ),
    ] = None,
    prefill_gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of a prefill worker (1).")] = None,
    decode_gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of a decode worker (2).")] = None,
    startup: Annotated[float | None, typer.Option(min=0, help="Seconds until a new worker serves (30).")] = None,
    ttft: Annotated[float | None, typer.Option(help="SLO of the time to first token, s (2).")] = None,
    tpot: Annotated[float | None, typer.Option(help="SLO of the time per output token, s (0.08).")] = None,
    prefill: Annotated[int | None, typer.Option(min=1, help="Prefill workers at start (1).")] = None,
    decode: Annotated[int | None, typer.Option(min=1, help="Decode workers at start (1).")] = None,
    gpus: Annotated[int | None, typer.Option(min=2, max=MOST_GPUS, help="GPUs of all workers together (8).")] = None,
    router: Annotated[Literal["round_robin", "kv_router"], typer.Option(help="Dynamo's router.")] = "round_robin",
    kv_blocks: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_BLOCKS, help="KV blocks of 64 tokens of a worker (what the profile holds)."),
    ] = None,
    skip: Annotated[float, typer.Option(min=0, help="Leave out the first seconds of the trace.")] = 0.0,
    clip_s: Annotated[float | None, typer.Option(help="Only what arrives in the first seconds of the rest.")] = None,
    speed: Annotated[float, typer.Option(help="Let requests arrive this much faster.")] = 1.0,
    decision_log: Annotated[Path | None, typer.Option(help="File to append decisions to.")] = None,
) -> None:
    """Replay a trace in Dynamo's offline simulator with a planner in its loop, and report what clients would feel."""
    from pdplugins.config import find  # noqa: PLC0415
    from pdplugins.hosts.dynamo.mocker import Engines  # noqa: PLC0415
    from pdplugins.hosts.dynamo.offline.page import page  # noqa: PLC0415
    from pdplugins.hosts.dynamo.offline.run import Plan  # noqa: PLC0415
    from pdplugins.hosts.dynamo.offline.run import replay as run  # noqa: PLC0415
    from pdplugins.provenance import command_line  # noqa: PLC0415
    from pdplugins.terminal import progress  # noqa: PLC0415
    from pdplugins.workloads import traces, transform  # noqa: PLC0415 - a command loads what it needs when it runs

    given = {
        ("slo", "ttft_s"): ttft,
        ("slo", "tpot_s"): tpot,
        ("deployment", "gpu_budget"): gpus,
        ("deployment", "startup_s"): startup,
        ("deployment", "prefill", "tp"): prefill_gpus,
        ("deployment", "decode", "tp"): decode_gpus,
        ("deployment", "prefill", "replicas"): prefill,
        ("deployment", "decode", "replicas"): decode,
    }
    engines = Engines(kv_blocks, router)
    outputs = {"--json": out, "--html": html, **outputs_of("--decision-log", decision_log)}
    check_apart(outputs, {**inputs("--trace", trace), "--config": config and find(config)})
    checked = configured(config, given)
    check_apart(outputs, profiles_of(config or "the config", checked.profiles))
    plan = Plan(planner, checked, _planner_settings(settings or ()), engines, decision_log)
    check_outputs(out, html)
    requests = transform.since(traces.read(trace), skip)
    if clip_s is not None:
        requests = transform.clip(requests, clip_s)
    requests = transform.scale(requests, speed)
    rows: list[tuple[float | None, ...]] = []
    last_s = max(requests[-1].arrival_s, 1.0) if requests else 1.0
    try:
        with progress([f"{planner} on {trace.name}"]) as shares, ctrl_c() as pressed:
            result = run(
                plan,
                requests,
                trace_name=trace.name,
                command=command_line(),
                progress=_beat(pressed, shares, last_s),
                seen=rows.extend,
            )
    except KeyboardInterrupt:
        typer.echo("pdplugins: replay interrupted, nothing written", err=True)
        raise typer.Exit(130) from None
    if out is not None:
        result.write(out)
    if html is not None:
        write_whole(html, page(result, rows))
    _show(result, out)


def configured(name: str | None, given: Mapping[tuple[str, ...], Any] | None = None) -> Config:
    """Return the config of the run: options over the file, and where there is no file over this command's defaults."""
    from pdplugins.config import find, load, parse  # noqa: PLC0415

    data = load(find(name or "dopd")).model_dump(mode="json")
    for path, value in (*(_DEFAULTS.items() if name is None else ()), *(given or {}).items()):
        if value is not None:
            put(data, Setting(path, value))
    return parse(data, "options")


def _planner_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the settings that ``--set`` gives."""
    data: dict[str, Any] = {}
    for text in texts:
        put(data, parse_setting(text))
    return data


def _beat(
    pressed: Callable[[], bool], shares: Callable[[Sequence[float]], None], last_s: float
) -> Callable[[float], None]:
    """Return what each tick calls: it moves the bar, and turns Ctrl-C into an exception between two ticks."""

    def beat(now_s: float) -> None:
        if pressed():
            raise KeyboardInterrupt
        shares([min(now_s / last_s, 1.0)])

    return beat


def _show(result: Result, out: Path | None) -> None:
    from rich.table import Table  # noqa: PLC0415

    from pdplugins.terminal import console, plain  # noqa: PLC0415

    metrics = result.metrics
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    attainment = "n/a" if metrics.slo_attainment is None else f"{metrics.slo_attainment:.1%}"
    failed = f", {result.requests.failed} failed" if result.requests.failed else ""
    for name, value in (
        ("planner", f"{result.config['run']['planner']} (simulated)"),
        ("on", _terms(result.config)),
        ("requests", f"{result.requests.total} in {result.speed.duration_s:.0f} s{failed}"),
        ("SLO attainment", attainment),
        ("goodput", f"{metrics.goodput_requests_per_s:.2f} requests/s, {metrics.goodput_tokens_per_s:.0f} tokens/s"),
        ("GPU-hours", f"{metrics.gpu_hours:.2f}"),
        ("TTFT", _spread(metrics.ttft_s)),
        ("TPOT", _spread(metrics.tpot_s)),
        ("TBT", _spread(metrics.tbt_s)),
        ("scaling", f"{len(result.scaling)} changes of the pools"),
        ("simulator", f"{result.speed.requests_per_s or 0:.0f} requests/s, {result.speed.wall_s:.1f} s"),
        ("result", str(out) if out else "not written; name a file with --json"),
    ):
        table.add_row(name, plain(value))
    console().print(table)


def _terms(config: Mapping[str, Any]) -> str:
    """Say the terms of the run: many of them are defaults."""
    deployment, slo = config["deployment"], config["slo"]
    return (
        f"at most {deployment['gpu_budget']} GPUs; {deployment['startup_s']:g} s until a new worker serves; "
        f"TTFT {slo['ttft_s']:g} s, TPOT {slo['tpot_s']:g} s"
    )


def _spread(spread: Spread) -> str:
    if spread.mean is None:
        return "n/a"
    return "  ".join(f"{name} {value * 1e3:.0f} ms" for name, value in spread.model_dump().items())
