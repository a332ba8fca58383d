"""The commands ``pdplugins profile …``. Each makes one profile file, a table or a plot from its options."""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pdplugins.errors import ConfigError, shown
from pdplugins.files import check_picture, is_file
from pdplugins.perf import draft, npz
from pdplugins.perf.gpus import Gpu, find_gpu
from pdplugins.perf.profile import Profile, read_profile
from pdplugins.perf.roofline import Roofline
from pdplugins.perf.shapes import Shape, find_shape
from pdplugins.perf.table import TableModel
from pdplugins.profiling import kernels, options
from pdplugins.profiling import show as showing
from pdplugins.profiling.from_kernels import from_kernels
from pdplugins.profiling.options import (
    ASSUMED_LINK,
    UNSCALED,
    Force,
    GpuName,
    LinkLatency,
    LinkRate,
    LinkSource,
    Model,
    Note,
    Out,
    PowerFile,
    ScaleDecode,
    ScalePrefill,
    ScaleSource,
    StepMs,
    Tp,
)
from pdplugins.resources import data_dir

profile = typer.Typer(
    help="Make, show and export performance profiles: how fast a model runs on a GPU.\n\n"
    "Planners plan with a profile, and the simulator and Dynamo's mocker take their step times from it. "
    "profiles/README.md describes its fields. From best to worst: [bold]from-endpoint[/bold] measures your own "
    "deployment; [bold]from-npz[/bold] reads what Dynamo's profiler measured; [bold]from-aiconfigurator[/bold] "
    "combines measured kernels, and [bold]from-kernels[/bold] does for mixtures of experts; "
    "[bold]roofline[/bold] needs only data sheets.",
    no_args_is_help=True,
)
profile.command("from-kernels")(from_kernels)


@profile.command("from-aiconfigurator")
def from_aiconfigurator(  # noqa: PLR0913 - the options of a command
    gpu: GpuName,
    model: Model,
    out: Out,
    *,
    tp: Tp = "1",
    like: Annotated[str | None, typer.Option(help="GPU whose tables are moved to --gpu by the two rooflines.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Measured profile that times are scaled to.")] = None,
    backend: Annotated[str, typer.Option(help="Engine: sglang, vllm or trtllm.")] = "sglang",
    tables: Annotated[str | None, typer.Option(help="Version of the engine's tables; the newest if not given.")] = None,
    shortest: Annotated[int, typer.Option(min=1, max=64, help="Shortest prompt in the tables.")] = 1,
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
    """Make a profile from aiconfigurator's measured kernels.

    aiconfigurator 0.7.0 has tables for a100, h100, h200, b200, gb200 and l40s. For another GPU name one of these with
    --like. It pins numpy 1.26, so give it its own environment: python3.11 -m venv aic && aic/bin/pip install
    aiconfigurator==0.7.0, then --python aic/bin/python.
    """
    target, shape = find_gpu(gpu), find_shape(model)
    base = find_gpu(like or gpu)
    if base.aiconfigurator is None:
        raise ConfigError(f"--gpu {gpu}: aiconfigurator has no tables for it; add --like with one of {kernels.known()}")
    options.check_out(out, force, {"--reference": reference, "--power": power, **options.files_of_model(model)})
    knots = draft.Knots.of(shape.max_context, shortest)
    wanted = kernels.Wanted(model, shape, base, options.sizes(tp), backend, tables, python)
    found = kernels.ask(wanted, knots)
    parts = found.parts if base is target else kernels.on_another(found, wanted, target, knots)
    source, notes = kernels.provenance(found, base, target)
    written: dict[str, Any] = options.head(target.name, model, "modelled", source, [*notes, *(note or [])])
    if reference is None:
        written |= _machine(shape, target, options.transfer(transfer_ms, transfer_gb_per_s, transfer_source))
        written |= {"scale": options.scale(scale_prefill, scale_decode, step_ms, scale_source)}
    else:
        measured = read_profile(reference)
        rest = measured.model_dump(mode="json", include={"memory", "bandwidth", "transfer"})
        written |= {"gpu": measured.gpu, **rest, "scale": kernels.factors(measured, wanted)}
    options.write(written | draft.tables_by_tp(parts, knots) | options.power(power), out, force)


@profile.command()
def roofline(  # noqa: PLR0913 - the options of a command
    gpu: GpuName,
    model: Model,
    out: Out,
    *,
    tp: Tp = "1",
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
    """Compute a profile from the model's shape and the GPU's data sheet.

    Use it for a first look at hardware without measurements. Each part of a step takes the larger of its arithmetic
    over compute and its bytes over memory bandwidth, at the usual shares of the peaks. Kernel launches are not
    included, so short steps are too fast.
    """
    options.check_out(out, force, {"--power": power, **options.files_of_model(model)})
    target, shape = find_gpu(gpu), find_shape(model)
    knots = draft.Knots.of(shape.max_context)
    parts = {size: draft.roofline_parts(Roofline(shape, target, size), knots) for size in options.sizes(tp)}
    shares = f"{target.gemm_share:.0%} of peak compute, {target.bandwidth_share:.0%} of peak bandwidth"
    written = options.head(target.name, model, "modelled", f"roofline: {shares}", note or [])
    written |= _machine(shape, target, options.transfer(transfer_ms, transfer_gb_per_s, transfer_source))
    written |= {"scale": options.scale(scale_prefill, scale_decode, step_ms, scale_source)}
    options.write(written | draft.tables_by_tp(parts, knots) | options.power(power), out, force)


@profile.command("from-npz")
def from_npz(  # noqa: PLR0913 - the options of a command
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder of Dynamo's profiler, or the mocker's .npz.")],
    gpu: GpuName,
    model: Model,
    out: Out,
    *,
    prefill_tp: Annotated[int, typer.Option(min=1, help="GPUs of the prefill worker that was measured.")] = 1,
    decode_tp: Annotated[int, typer.Option(min=1, help="GPUs of the decode worker that was measured.")] = 1,
    measured: Annotated[bool, typer.Option("--measured/--modelled", help="Whether the times were measured.")] = True,
    transfer_ms: LinkLatency = 1.0,
    transfer_gb_per_s: LinkRate = 50.0,
    transfer_source: LinkSource = ASSUMED_LINK,
    note: Note = None,
    force: Force = False,
) -> None:
    """Make a profile from the tables of Dynamo's profiler or of its mocker.

    Dynamo's profiler writes a folder with selected_prefill_interpolation/raw_data.npz and
    selected_decode_interpolation/raw_data.npz. The mocker's planner_profile_data is one .npz file.
    """
    tables_read = {f"{file}, a file of PATH" if file != path else "PATH": file for file in npz.files_of(path)}
    options.check_out(out, force, {**tables_read, **options.files_of_model(model)})
    target, shape = find_gpu(gpu), find_shape(model)
    tables = npz.read_npz(path)
    memory = draft.memory_part(shape, target)
    if tables.kv_tokens is not None:  # the engine's own figure is better than an estimate
        free_bytes = tables.kv_tokens * shape.kv_bytes_per_token
        memory["reserved_bytes"] = max(target.memory_bytes - (free_bytes + shape.model_bytes) / decode_tp, 0.0)
        memory["source"] += (
            f"; reserved: so that a decode worker holds the {tables.kv_tokens} tokens that the file says"
        )
    kind = "measured" if measured else "modelled"
    written = options.head(target.name, model, kind, f"Dynamo: {path.name}", [*tables.notes, *(note or [])])
    written |= _machine(shape, target, options.transfer(transfer_ms, transfer_gb_per_s, transfer_source))
    written |= {"memory": memory, "scale": options.scale()}
    written |= {"prefill": {str(prefill_tp): tables.prefill}, "decode": {str(decode_tp): tables.decode}}
    options.write(written, out, force)


@profile.command("from-endpoint")
def from_endpoint(  # noqa: PLR0913 - the options of a command
    url: Annotated[str, typer.Argument(metavar="URL", help="OpenAI endpoint, such as http://localhost:8000.")],
    model: Annotated[str, typer.Option(help="Model name that the endpoint serves.")],
    gpu: GpuName,
    out: Out,
    *,
    shape: Annotated[str | None, typer.Option(help="Hugging Face name or config.json, if not --model.")] = None,
    prefill_tp: Annotated[int, typer.Option(min=1, help="GPUs of the prefill worker.")] = 1,
    decode_tp: Annotated[int, typer.Option(min=1, help="GPUs of the decode worker.")] = 1,
    prompts: Annotated[str, typer.Option(help="Prompt lengths whose TTFT is measured.")] = "128,512,2048,8192",
    contexts: Annotated[str, typer.Option(help="Mean contexts whose ITL is measured.")] = "512,2048,8192",
    concurrency: Annotated[str, typer.Option(help="Batch sizes whose ITL is measured.")] = "1,4,16,64",
    disaggregated: Annotated[
        bool, typer.Option("--disaggregated", help="The first token comes from a decode worker, after the KV transfer.")
    ] = False,
    repeats: Annotated[
        int,
        typer.Option(min=1, help="Prompts of each length, and batches of each size and context; the median counts."),
    ] = 5,
    transfer_ms: LinkLatency = 1.0,
    transfer_gb_per_s: LinkRate = 50.0,
    transfer_source: LinkSource = ASSUMED_LINK,
    note: Note = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the prompts (drawn anew).")] = None,
    force: Force = False,
) -> None:
    """Measure a live endpoint: TTFT over prompt lengths, ITL over concurrency and context.

    Run it against one worker of each role, or one that does both. They must serve no other traffic, or queueing is
    measured too. Prompts are random token ids, other ones in each run, so a prefix cache does not help: a --seed that
    the endpoint has seen before measures its cache. Times include the network and the HTTP
    server, as clients see them. If prefill and decode run on separate workers, give --disaggregated and the speed of
    the KV transfer. The transfer and the first decode step are then subtracted from the TTFT.
    """
    target, model_shape = find_gpu(gpu), find_shape(shape or model)
    options.check_out(out, force, options.files_of_model(shape or model, "--model" if shape is None else "--shape"))
    axes = {"prompts": prompts, "concurrency": concurrency, "contexts": contexts}
    from pdplugins.profiling import endpoint as measuring  # noqa: PLC0415 - aiohttp takes a fifth of every start

    seed = secrets.randbits(32) if seed is None else seed
    grid = measuring.Grid(*(options.axis(name, text) for name, text in axes.items()))
    found = asyncio.run(measuring.measure(url.rstrip("/").removesuffix("/v1"), model, grid, repeats, seed))
    transfer = options.transfer(transfer_ms, transfer_gb_per_s, transfer_source)
    if disaggregated:
        per_token_s = model_shape.kv_bytes_per_token / transfer["bytes_per_s"]
        found = measuring.without_handoff(found, lambda tokens: transfer["latency_s"] + tokens * per_token_s)
    notes = [*found.notes, f"seed of the prompts: {seed}", *(note or [])]
    written = options.head(target.name, model, "measured", f"endpoint {url}", notes)
    written |= _machine(model_shape, target, transfer) | {"scale": options.scale()}
    written |= {"prefill": {str(prefill_tp): found.prefill}, "decode": {str(decode_tp): found.decode}}
    options.write(written, out, force)


@profile.command("export-npz")
def export_npz(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped profile, or the path of a .json file.")],
    out: Annotated[Path, typer.Option(help="File to write; name it .npz.")],
    *,
    prefill_tp: Annotated[int, typer.Option(min=1, help="GPUs of a prefill worker.")] = 1,
    decode_tp: Annotated[int, typer.Option(min=1, help="GPUs of a decode worker.")] = 1,
    force: Force = False,
) -> None:
    """Write a profile as the timing table of Dynamo's mocker and replay (planner_profile_data)."""
    found = _find(name)
    for kind, size, tables in (("prefill", prefill_tp, found.prefill), ("decode", decode_tp, found.decode)):
        if size not in tables:
            raise ConfigError(f"--{kind}-tp {size}: {name} has {', '.join(map(str, sorted(tables)))}")
    options.check_out(out, force, {"NAME": name})
    npz.export_npz(TableModel(found), out, prefill_tp, decode_tp)
    typer.echo(f"wrote {out}")


@profile.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped profile, or the path of a .json file.")],
    *,
    plot: Annotated[Path | None, typer.Option(help="Draw it there too: .png, .svg or .pdf.")] = None,
) -> None:
    """Print a profile: its source, and its times at a few usual sizes."""
    if plot is not None:
        check_picture("--plot", plot)
    found = _find(name)
    Console().print(showing.summary(name, found))
    if plot is not None:
        showing.draw(name, found, plot)
        typer.echo(f"wrote {plot}")


def _find(name: str) -> Profile:
    if name.endswith(".json"):
        return read_profile(Path(name))
    root = data_dir("profiles")
    path = root / f"{name}.json"
    if not is_file(path):
        known = sorted(p.relative_to(root).with_suffix("").as_posix() for p in root.glob("*/*.json"))
        raise ConfigError(f"profile: there is no {shown(name)}; choose from {', '.join(known)}")
    return read_profile(path)


def _machine(shape: Shape, gpu: Gpu, transfer: dict[str, Any]) -> dict[str, Any]:
    return {"memory": draft.memory_part(shape, gpu), "bandwidth": draft.bandwidth_part(gpu), "transfer": transfer}
