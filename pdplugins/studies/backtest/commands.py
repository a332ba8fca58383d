"""``pdplugins backtest``."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdplugins.config import MOST_GPUS
from pdplugins.errors import ConfigError, printable, shown
from pdplugins.studies.options import EverySeed, Html, Jobs, Results, Set, Tpot, Ttft

if TYPE_CHECKING:
    from pdplugins.config import Config
    from pdplugins.studies.backtest.frontend import Selection
    from pdplugins.studies.backtest.prometheus import Prometheus
    from pdplugins.studies.backtest.recording import Recording
    from pdplugins.studies.backtest.runs import Backtest

STAGES = ("reading", "as it ran", "all splits", "fixed pools", "configs")
AGO = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")
LATEST_S = 1e11
"""The latest Unix time, three thousand years from now."""
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def backtest(  # noqa: PLR0913 - the options of a command
    configs: Annotated[
        list[str] | None, typer.Argument(metavar="[CONFIG...]", help="Configs to try, files or names; else dopd.")
    ] = None,
    *,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Prometheus that has scraped Dynamo's frontend.")
    ] = None,
    access_log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Or a log with a line of JSON for each request, plain or .gz.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="ISO 8601, Unix seconds, or -2h; an hour before --to.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Now, unless given.")] = None,
    step_s: Annotated[
        float | None, typer.Option("--step-s", min=1, help="Seconds of one step of arrivals; default: by the scrapes.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model to read, if the frontend serves several.")] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL=VALUE", help="Label of the deployment's metrics; may be repeated."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a bearer token; else PDPLUGINS_PROMETHEUS_TOKEN, if that is set.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificates in PEM to trust besides the system's.")] = None,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=0.1, max=600, help="For each query.")] = 30.0,
    router: Annotated[
        str,
        typer.Option(help="Router that ran; round-robin is Dynamo's default, cache-aware like its KV mode."),
    ] = "round-robin",
    gpus: Annotated[
        int | None, typer.Option(min=2, max=MOST_GPUS, help="GPUs that all workers may use; else the config's.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Performance profile, <gpu>/<model>; else the config's.")] = None,
    prefill: Annotated[int | None, typer.Option(min=1, help="Prefill workers that ran, if no metric says it.")] = None,
    decode: Annotated[int | None, typer.Option(min=1, help="And decode workers.")] = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    settings: Set = None,
    seed: EverySeed = 0,
    jobs: Jobs = None,
    out: Results = None,
    html: Html = None,
) -> None:
    """Say what a planner, and fixed pools, would have given on traffic that has been recorded.

    The traffic comes from the metrics that a Prometheus has of Dynamo's frontend, or from a log of requests.
    What ran is simulated too, beside what clients felt, so that you see how far to trust the rest.
    """
    from pdplugins.config import find  # noqa: PLC0415 - a command loads what it needs when it runs
    from pdplugins.files import check_apart, check_outputs, write_whole  # noqa: PLC0415
    from pdplugins.provenance import command_line, commit, record  # noqa: PLC0415
    from pdplugins.sim.run.options import Overrides  # noqa: PLC0415
    from pdplugins.studies.backtest import page, runs, words  # noqa: PLC0415
    from pdplugins.studies.backtest.prometheus import Prometheus  # noqa: PLC0415
    from pdplugins.studies.configs import chosen, with_objectives  # noqa: PLC0415
    from pdplugins.terminal import progress  # noqa: PLC0415

    _check_together(prometheus, access_log, (step_s, model, match, token_file, ca), prefill, decode)
    check_outputs(out, html)
    outputs = {"--json": out, "--html": html}
    read = {"--access-log": access_log, "--token-file": token_file, "--ca": ca, "--profile": profile}
    check_apart(outputs, {**read, **{f"CONFIG {name}": find(name) for name in configs or ()}})
    # The pools that ran are the recording's: a config without a planner keeps its own.
    overrides = Overrides(gpus, profile, settings=with_objectives(settings, ttft, tpot))
    tried = chosen(configs or ["dopd"], overrides, outputs)
    first = next(iter(tried.values()))
    try:
        with progress(STAGES) as shares:
            if access_log is not None:
                recording = _logged(access_log, since, until, first)
            else:
                selection = _selection(since, until, step_s, model, match)
                server = Prometheus(str(prometheus), token_file=token_file, authorities=ca, timeout_s=timeout_s)
                recording = _recorded(server, selection, first, seed, lambda share: shares([share]))
            recording = _with_pools(recording, prefill, decode)
            found = runs.backtest(
                recording,
                tried,
                router,
                seed=seed,
                jobs=jobs or os.cpu_count() or 1,
                done=lambda parts: shares([1.0, *parts]),
            )
    except KeyboardInterrupt:
        typer.echo("pdplugins backtest: interrupted, nothing written", err=True)
        raise typer.Exit(130) from None
    if out is not None:
        write_whole(out, json.dumps({**record("simulated", seed=seed), **words.as_data(found)}, indent=1) + "\n")
    if html is not None:
        write_whole(html, page.page(found, command_line(), commit()))
    _show(found)


def _check_together(
    prometheus: str | None,
    access_log: Path | None,
    about_prometheus: Iterable[object],
    prefill: int | None,
    decode: int | None,
) -> None:
    """Raise ConfigError for options that do not go together.

    :param about_prometheus: the values of the options that say nothing of a log.
    """
    if (prometheus is None) == (access_log is None):
        raise ConfigError("backtest: give either --prometheus URL or --access-log FILE")
    if access_log is not None and any(value is not None for value in about_prometheus):
        raise ConfigError("--step-s, --model, --match, --token-file and --ca are about --prometheus")
    if (prefill is None) != (decode is None):
        raise ConfigError("backtest: give both --prefill and --decode, or none")


def moment(text: str, option: str, now_s: float) -> float:
    """Return a Unix time: ISO 8601 (in UTC unless it says otherwise), Unix seconds, ``now`` or ``-2h``."""
    try:
        found_s = _moment(text, now_s)
    except (ValueError, OverflowError):
        found_s = math.nan
    if not 0 <= found_s <= LATEST_S:
        raise ConfigError(
            f"{option} {shown(text)}: no time; write 2026-05-04T12:00:00Z, Unix seconds, now, or -90m before it"
        )
    return found_s


def _moment(text: str, now_s: float) -> float:
    if text == "now":
        return now_s
    if (ago := AGO.fullmatch(text)) is not None:
        return now_s - float(ago[1]) * UNITS_S[ago[2]]
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _selection(
    since: str | None, until: str | None, step_s: float | None, model: str | None, match: list[str] | None
) -> Selection:
    from pdplugins.studies.backtest.frontend import Selection  # noqa: PLC0415

    now_s = time.time()
    end_s = moment(until or "now", "--to", now_s)
    start_s = moment(since, "--from", now_s) if since is not None else end_s - UNITS_S["h"]
    return Selection(start_s, end_s, step_s, model, tuple(match or ()))


def _recorded(
    server: Prometheus, selection: Selection, config: Config, seed: int, done: Callable[[float], None]
) -> Recording:
    from pdplugins.contracts.request import Slo  # noqa: PLC0415
    from pdplugins.studies.backtest import frontend  # noqa: PLC0415

    return frontend.record(server, selection, Slo(config.slo.ttft_s, config.slo.tpot_s), seed, done)


def _logged(path: Path, since: str | None, until: str | None, config: Config) -> Recording:
    from pdplugins.contracts.request import Slo  # noqa: PLC0415
    from pdplugins.studies.backtest import accesslog  # noqa: PLC0415

    now_s = time.time()
    start_s, end_s = (
        None if text is None else moment(text, option, now_s) for text, option in ((since, "--from"), (until, "--to"))
    )
    if start_s is not None and end_s is not None and start_s >= end_s:
        raise ConfigError(f"backtest: --from {shown(since)} is not before --to {shown(until)}")
    return accesslog.read(path, Slo(config.slo.ttft_s, config.slo.tpot_s), start_s, end_s)


def _with_pools(recording: Recording, prefill: int | None, decode: int | None) -> Recording:
    """Return `recording` with the workers that the command line names, unless it says itself which there were."""
    if recording.pools or prefill is None or decode is None:
        return recording
    from pdplugins.studies.backtest.recording import Pools  # noqa: PLC0415

    return replace(recording, pools=(Pools(0.0, prefill, decode),))


def _show(found: Backtest) -> None:
    from rich.table import Table  # noqa: PLC0415

    from pdplugins.studies.backtest import page, words  # noqa: PLC0415
    from pdplugins.terminal import console, plain  # noqa: PLC0415

    for line in words.verdict(found):
        typer.echo(printable(line))
    for titles, rows in ((page.TIMES, page.time_cells(found)), (page.ROWS, page.row_cells(found))):
        if rows:
            table = Table(*titles, box=None, header_style="bold")
            for row in rows:
                table.add_row(*map(plain, row))
            console().print(table)
    for note in (*found.recording.notes, f"simulated on {found.config.deployment.profile}"):
        typer.echo(printable(note))
