"""``pdplugins advise``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdplugins.config import MOST_GPUS
from pdplugins.errors import ConfigError
from pdplugins.studies.options import EverySeed, Html, Jobs, Results
from pdplugins.workloads.commands import ClipS, MaxContext, MaxRequests
from pdplugins.workloads.sources import inputs

if TYPE_CHECKING:
    from pdplugins.studies.advise.race import Score
    from pdplugins.studies.advise.search import Advice
    from pdplugins.studies.advise.traffic import Traffic
    from pdplugins.workloads.transform import Transform

PROFILE = "h100/llama-3.1-70b-fp8"


def advise(  # noqa: PLR0913 - the options of a command
    *,
    trace: Annotated[
        str | None, typer.Option(help="Trace or workload file, or the name of a workload: your traffic.")
    ] = None,
    isl: Annotated[
        float | None, typer.Option(min=1, help="Instead of a trace: mean prompt tokens of an hour of Poisson arrivals.")
    ] = None,
    osl: Annotated[float | None, typer.Option(min=1, help="With --isl: mean output tokens.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Mean arrivals/s; arrival times of a trace are scaled to it.")
    ] = None,
    clip_s: ClipS = None,
    max_requests: MaxRequests = None,
    max_context: MaxContext = None,
    model: Annotated[str | None, typer.Option(help="Model of a profile, as in llama-3.1-70b-fp8.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU of a profile, as in h100.")] = None,
    profile: Annotated[str | None, typer.Option(help=f"Instead: <gpu>/<model>, or a file ({PROFILE}).")] = None,
    gpus: Annotated[int, typer.Option(min=2, max=MOST_GPUS, help="GPUs that you have.")] = 8,
    ttft: Annotated[float, typer.Option(min=0.001, help="SLO of the time to first token, s.")] = 2.0,
    tpot: Annotated[float, typer.Option(min=0.0001, help="SLO of the time per output token, s.")] = 0.08,
    target: Annotated[
        float, typer.Option(min=0.01, max=1, help="SLO attainment to reach with the fewest GPUs.")
    ] = 0.99,
    startup: Annotated[float, typer.Option(min=0, help="Seconds until a worker that a planner adds serves.")] = 30.0,
    seed: EverySeed = 0,
    jobs: Jobs = None,
    out: Results = None,
    html: Html = None,
    save_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write config, start commands for SGLang and Dynamo, Kubernetes manifest."),
    ] = None,
    model_path: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Path or Hugging Face name of the model, for --save-dir.")
    ] = None,
) -> None:
    """Say what to run for your traffic, with how many GPUs, what it gains over plain co-location, and why.

    Tries co-location with tuned chunks, static splits, tensor-parallel sizes and every plugin in the simulator.
    """
    from pdplugins.files import check_apart, check_outputs  # noqa: PLC0415 - loaded when the command runs
    from pdplugins.studies.advise import folder  # noqa: PLC0415
    from pdplugins.studies.advise import search as searching  # noqa: PLC0415
    from pdplugins.studies.advise.candidates import Question  # noqa: PLC0415
    from pdplugins.terminal import progress  # noqa: PLC0415
    from pdplugins.workloads.transform import Transform  # noqa: PLC0415

    check_outputs(out, html)
    saved = {} if save_dir is None else {f"--save-dir, its {name}": save_dir / name for name in folder.NAMES}
    check_apart({"--json": out, "--html": html, **saved}, {**inputs("--trace", trace), "--profile": profile})
    if save_dir is not None:
        folder.check(save_dir)
    changes = Transform.of(rate=rate, clip_s=clip_s, max_requests=max_requests, max_context_tokens=max_context)
    traffic = _traffic(trace, isl, osl, changes, seed)
    asked = Question(
        profile=_profile(profile, gpu, model),
        gpus=gpus,
        ttft_s=ttft,
        tpot_s=tpot,
        startup_s=startup,
        longest_tokens=traffic.longest_tokens,
        repeats=traffic.repeats,
    )
    began = time.perf_counter()
    try:
        with progress(searching.STAGES) as shares:
            found = searching.advise(
                asked, traffic, target=target, jobs=jobs or os.cpu_count() or 1, seed=seed, progress=shares
            )
    except KeyboardInterrupt:
        typer.echo("pdplugins advise: interrupted, nothing written", err=True)
        raise typer.Exit(130) from None
    # All files before anything is printed: nobody may read that, as behind `| head`.
    _write(found, seed, out, html)
    written = [] if save_dir is None else _save(found, model_path, save_dir)
    _show(found)
    typer.echo(f"simulated; {found.settings} settings with all GPUs, {time.perf_counter() - began:.0f} s")
    for path, what in written:
        typer.echo(f"{path}: {what}")


def _traffic(trace: str | None, isl: float | None, osl: float | None, changes: Transform, seed: int) -> Traffic:
    from pdplugins.studies.advise import traffic  # noqa: PLC0415

    if trace is not None:
        if isl is not None or osl is not None:
            raise ConfigError("advise: give a trace, or --isl, --osl and --rate; not both")
        return traffic.named(trace, changes)
    if isl is None or osl is None or changes.rate is None:
        raise ConfigError("advise: name your traffic with --trace, or with all of --isl, --osl and --rate")
    return traffic.lengths(isl, osl, changes, seed)


def _profile(profile: str | None, gpu: str | None, model: str | None) -> str:
    """Return the profile that the options name. Raises ConfigError."""
    if profile is not None:
        if gpu is not None or model is not None:
            raise ConfigError("advise: give --profile, or --gpu and --model; not both")
        return profile
    first, _, second = PROFILE.partition("/")
    return f"{gpu or first}/{model or second}"


def _write(found: Advice, seed: int, out: Path | None, html: Path | None) -> None:
    from pdplugins.files import write_whole  # noqa: PLC0415
    from pdplugins.provenance import command_line, commit  # noqa: PLC0415
    from pdplugins.studies.advise.page import page  # noqa: PLC0415

    if out is not None:
        write_whole(out, json.dumps(_as_data(found, seed), indent=1) + "\n")
    if html is not None:
        write_whole(html, page(found, command_line(), commit()))


def _save(found: Advice, model_path: str | None, save_dir: Path) -> list[tuple[Path, str]]:
    """Write the files that run the best setting; return each with what it is."""
    from pdplugins.provenance import command_line  # noqa: PLC0415
    from pdplugins.studies.advise import folder, words  # noqa: PLC0415

    about = f"{words.verdict(found)[0]}\n{folder.FOUND_BY}{command_line()})"
    return [*folder.write(found.best.candidate.config, model_path, about, save_dir)]


def _show(found: Advice) -> None:
    from pdplugins.studies.advise import words  # noqa: PLC0415

    for line in [*words.verdict(found), *words.fewest(found)]:
        typer.echo(line)
    typer.echo()
    for line in words.picture(found):
        typer.echo(line)


def _as_data(found: Advice, seed: int) -> dict[str, Any]:
    from pdplugins.provenance import record  # noqa: PLC0415
    from pdplugins.studies.advise import words  # noqa: PLC0415

    asked = found.asked
    gain, attainment = found.gain, found.attainment
    return {
        **record("simulated", seed=seed),
        "verdict": words.verdict(found),
        "profile": asked.profile,
        "gpus": asked.gpus,
        "slo": {"ttft_s": asked.ttft_s, "tpot_s": asked.tpot_s},
        "target": found.target,
        "reached": found.reached,
        "best": _row(found.best),
        "instead_of": found.instead_of and _row(found.instead_of),
        "other": _row(found.other),
        "attainment": {"mean": attainment.mean, "low": attainment.low, "high": attainment.high},
        "gain": {"mean": gain.mean, "low": gain.low, "high": gain.high},
        "finalists": [_row(score) for score in found.finalists],
        "tried": [_row(score) for score in found.tried],
        "left_out": [{"what": left.candidate.name, "why": left.why} for left in found.left_out],
    }


def _row(score: Score) -> dict[str, Any]:
    return {
        "system": score.candidate.system,
        "settings": score.candidate.label,
        "gpu_budget": score.candidate.gpus,
        "gpus": score.gpus,
        "requests": score.requests,
        "slo_attainment": score.attainment,
        "within_error": [score.missed.low, score.missed.high],
        "missed": {
            "ttft": score.missed.ttft,
            "tpot": score.missed.tpot,
            "both": score.missed.both,
            "failed": score.missed.failed,
        },
        "causes": score.missed.causes,
    }
