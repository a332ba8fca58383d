"""The command ``pdplugins profile from-kernels``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pdplugins.perf import draft
from pdplugins.perf.gpus import find_gpu
from pdplugins.profiling import layouts, options
from pdplugins.profiling.options import (
    ASSUMED_LINK,
    UNSCALED,
    Force,
    GpuName,
    LinkLatency,
    LinkRate,
    LinkSource,
    Note,
    Out,
    PowerFile,
    ScaleDecode,
    ScalePrefill,
    ScaleSource,
    StepMs,
)


def from_kernels(  # noqa: PLR0913 - the options of a command
    gpu: GpuName,
    model: Annotated[str, typer.Option(help="Name that aiconfigurator knows, or a config.json of such a model.")],
    layout: Annotated[
        list[str],
        typer.Option(help="How a worker's GPUs share the model: tp8, tp8+ep8, dp8+ep8, tp8+pp2; may be repeated."),
    ],
    out: Out,
    *,
    backend: Annotated[str, typer.Option(help="Engine: sglang, vllm or trtllm.")] = "trtllm",
    tables: Annotated[str | None, typer.Option(help="Version of the engine's tables; the newest if not given.")] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="A number format instead of the model's own, such as kvcache=float16.")
    ] = None,
    experts: Annotated[str, typer.Option(help="Load of experts in the tables: power_law or balanced.")] = "power_law",
    imbalance: Annotated[float, typer.Option(min=1, help="Factor on the times of experts.")] = 1.0,
    shared_beside: Annotated[
        bool, typer.Option("--shared-beside", help="Decode steps compute shared experts beside the others.")
    ] = False,
    rails: Annotated[
        int, typer.Option(min=1, help="Network adapters of a server that collectives over servers use at once.")
    ] = 1,
    decode_of: Annotated[
        Path | None, typer.Option(help="Profile of the same layouts that decode steps are taken from.")
    ] = None,
    draft_tokens: Annotated[int, typer.Option(min=0, help="Speculative decoding: tokens guessed in a step.")] = 0,
    acceptance: Annotated[float, typer.Option(min=0, max=1, help="Probability that a guess is right.")] = 0.8,
    python: Annotated[str, typer.Option(help="Interpreter that has aiconfigurator.")] = sys.executable,
    transfer_ms: LinkLatency = 1.0,
    transfer_gb_per_s: LinkRate = 50.0,
    transfer_source: LinkSource = ASSUMED_LINK,
    scale_prefill: ScalePrefill = 1.0,
    scale_decode: ScaleDecode = 1.0,
    step_ms: StepMs = 0.0,
    scale_source: ScaleSource = UNSCALED,
    power: PowerFile = None,
    note: Note = None,
    force: Force = False,
) -> None:
    """Make a profile of workers that share a model over several GPUs, from aiconfigurator's measured kernels.

    Layouts name their degrees: tp (tensors), dp (attention of different requests), ep (experts), pp (stages). A file
    holds one layout for each number of GPUs. Prefill and decode workers may use different files. aiconfigurator needs
    an environment of its own: python3.11 -m venv aic && aic/bin/pip install aiconfigurator==0.7.0, then --python
    aic/bin/python.
    """
    target = find_gpu(gpu)
    wanted = layouts.Wanted(
        model=model,
        gpu=target,
        layouts=[layouts.Degrees.read(text) for text in layout],
        backend=backend,
        version=tables,
        python=python,
        modes=layouts.read_modes(precision or []),
        experts=experts,
        shared_beside=shared_beside,
        rails=rails,
        draft_tokens=draft_tokens,
        acceptance=acceptance,
    )
    scale = options.scale(scale_prefill, scale_decode, step_ms, scale_source)
    if imbalance > 1:
        scale["expert_imbalance"] = imbalance
    options.check_out(out, force, {"--decode-of": decode_of, "--power": power, **options.files_of_model(model)})
    source, notes, parts = layouts.profile_parts(wanted)
    if decode_of is not None:
        source, parts = layouts.with_decode_of(decode_of, source, parts)
    written = options.head(target.name, model, "modelled", source, [*notes, *(note or [])])
    written |= {"bandwidth": draft.bandwidth_part(target), "scale": scale}
    written |= {"transfer": options.transfer(transfer_ms, transfer_gb_per_s, transfer_source)}
    options.write(written | parts | options.power(power), out, force)
