"""The commands ``pdplugins profile …``: options in, one profile file (or a table, or a plot) out."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pdplugins.bench.profiling import endpoint as measuring
from pdplugins.bench.profiling import kernels
from pdplugins.bench.profiling import show as showing
from pdplugins.errors import ConfigError
from pdplugins.perf import draft, npz
from pdplugins.perf.gpus import GPUS, find_gpu
from pdplugins.perf.profile import Power, Profile, read_profile
from pdplugins.perf.roofline import Roofline
from pdplugins.perf.shapes import find_shape
from pdplugins.perf.table import TableModel
from pdplugins.resources import data_dir

profile = typer.Typer(
    help="Make, show and export performance profiles: how fast a model runs on a GPU.\n\n"
    "A profile is what planners plan with and what the simulator and Dynamo's mocker run on; profiles/README.md says "
    "what is in one. From best to worst: [bold]from-endpoint[/bold] measures your own deployment; "
    "[bold]from-npz[/bold] takes over what Dynamo's profiler measured; [bold]from-aiconfigurator[/bold] puts measured "
    "kernels together; [bold]roofline[/bold] needs only data sheets.",
    no_args_is_help=True,
)

GpuName = Annotated[str, typer.Option("--gpu", help=f"One of {', '.join(GPUS)}.")]
Model = Annotated[str, typer.Option(help="Name on Hugging Face, or the path of a config.json.")]
Tp = Annotated[str, typer.Option("--tp", help="Tensor-parallel sizes, such as 1,2,4.")]
Out = Annotated[Path, typer.Option(help="Profile file to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file when it exists.")]
Note = Annotated[list[str] | None, typer.Option("--note", help="What a reader must know; may be repeated.")]
LinkLatency = Annotated[float, typer.Option(min=0, help="KV transfer: fixed part, in milliseconds.")]
LinkRate = Annotated[float, typer.Option(min=0.001, help="KV transfer: gigabytes per second.")]
LinkSource = Annotated[str, typer.Option(help="Who says how fast the KV transfer is.")]
PowerFile = Annotated[Path | None, typer.Option("--power", help="JSON file with the profile's power part.")]
ScalePrefill = Annotated[float, typer.Option(min=0.001, help="Factor on all prefill times.")]
ScaleDecode = Annotated[float, typer.Option(min=0.001, help="Factor on all decode times.")]
StepMs = Annotated[float, typer.Option(min=0, help="Milliseconds that every step takes beyond that.")]
ScaleSource = Annotated[str, typer.Option(help="Where the factors come from.")]
ASSUMED_LINK = "400 Gb/s of RDMA for each worker, assumed"

UNSCALED = "none: times are used as they came"


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
    """Put a profile together from aiconfigurator's measured kernels.

    aiconfigurator 0.7.0 has tables for a100, h100, h200, b200 and l40s. For another GPU name one of these with --like.
    It pins numpy 1.26, so give it an environment of its own: python3.11 -m venv aic && aic/bin/pip install
    aiconfigurator==0.7.0, then --python aic/bin/python.
    """
    target, shape = find_gpu(gpu), find_shape(model)
    base = find_gpu(like or gpu)
    if base.aiconfigurator is None:
        known = ", ".join(name for name, one in GPUS.items() if one.aiconfigurator)
        raise ConfigError(f"--gpu {gpu}: aiconfigurator has no tables for it; add --like with one of {known}")
    draft.check_new(out, force)
    knots = draft.Knots.of(shape.max_context, shortest)
    wanted = kernels.Wanted(model, shape, base, _sizes(tp), backend, tables, python)
    found = kernels.ask(wanted, knots)
    parts = found.parts if base is target else kernels.on_another(found, wanted, target, knots)
    notes = ["raw_ms is aiconfigurator's static_ctx (batch 1) and static_gen; times are raw_ms times scale."]
    source = found.source
    if base is not target:
        source += f", moved to {target.name}"
        notes.append(
            f"At every knot, dense part and attention are as far from the roofline of {target.name} as those of "
            f"{base.name} are from its own, with {target.gemm_share:.0%} and {base.gemm_share:.0%} of peak compute."
        )
    written: dict[str, Any] = _head(target.name, model, "modelled", source, [*notes, *(note or [])])
    if reference is None:
        scale = _scale(scale_prefill, scale_decode, step_ms, scale_source)
        written |= {"memory": draft.memory_part(shape, target), "bandwidth": draft.bandwidth_part(target)}
        written |= {"transfer": _transfer(transfer_ms, transfer_gb_per_s, transfer_source), "scale": scale}
    else:
        measured = read_profile(reference)
        rest = measured.model_dump(mode="json", include={"memory", "bandwidth", "transfer"})
        written |= {"gpu": measured.gpu, **rest, "scale": kernels.factors(measured, wanted)}
    _write(written | draft.tables_by_tp(parts, knots) | _power(power), out, force)


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

    Good for a first look at hardware that nobody measured. Each part of a step takes the larger of its arithmetic over
    compute and its bytes over memory bandwidth, at the shares of the peaks that are usual; nothing is added for
    kernel launches, so short steps come out too fast.
    """
    target, shape, knots = find_gpu(gpu), find_shape(model), draft.Knots.of(find_shape(model).max_context)
    parts = {size: draft.roofline_parts(Roofline(shape, target, size), knots) for size in _sizes(tp)}
    shares = f"{target.gemm_share:.0%} of peak compute, {target.bandwidth_share:.0%} of peak bandwidth"
    written = _head(target.name, model, "modelled", f"roofline: {shares}", note or [])
    written |= {"memory": draft.memory_part(shape, target), "bandwidth": draft.bandwidth_part(target)}
    scale = _scale(scale_prefill, scale_decode, step_ms, scale_source)
    written |= {"transfer": _transfer(transfer_ms, transfer_gb_per_s, transfer_source), "scale": scale}
    _write(written | draft.tables_by_tp(parts, knots) | _power(power), out, force)


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
    """Take over the tables of Dynamo's profiler or of its mocker.

    Dynamo's profiler leaves a folder with selected_prefill_interpolation/raw_data.npz and
    selected_decode_interpolation/raw_data.npz; the mocker's planner_profile_data is one .npz file.
    """
    target, shape = find_gpu(gpu), find_shape(model)
    tables = npz.read_npz(path)
    memory = draft.memory_part(shape, target)
    if tables.kv_tokens is not None:  # the engine said how much it holds, which beats an estimate
        free_bytes = tables.kv_tokens * shape.kv_bytes_per_token
        memory["reserved_bytes"] = max(target.memory_bytes - (free_bytes + shape.model_bytes) / decode_tp, 0.0)
        memory["source"] += (
            f"; reserved: so that a decode worker holds the {tables.kv_tokens} tokens that the file says"
        )
    kind = "measured" if measured else "modelled"
    written = _head(target.name, model, kind, f"Dynamo: {path.name}", [*tables.notes, *(note or [])])
    written |= {"memory": memory, "bandwidth": draft.bandwidth_part(target)}
    written |= {"transfer": _transfer(transfer_ms, transfer_gb_per_s, transfer_source), "scale": _scale()}
    written |= {"prefill": {str(prefill_tp): tables.prefill}, "decode": {str(decode_tp): tables.decode}}
    _write(written, out, force)


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
    repeats: Annotated[int, typer.Option(min=1, help="Prompts of each length; the median counts.")] = 5,
    transfer_ms: LinkLatency = 1.0,
    transfer_gb_per_s: LinkRate = 50.0,
    transfer_source: LinkSource = ASSUMED_LINK,
    note: Note = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the prompts.")] = 0,
    force: Force = False,
) -> None:
    """Measure a live endpoint: TTFT over prompt lengths, ITL over concurrency and context.

    Run it against one worker of each role (or one that does both) that serves nobody else, or the queue of others is
    measured too. Prompts are random token ids, so nothing is found in a prefix cache. Times include the network and the
    HTTP server, as a client feels them.
    """
    target, model_shape = find_gpu(gpu), find_shape(shape or model)
    draft.check_new(out, force)
    grid = measuring.Grid(_axis("prompts", prompts), _axis("concurrency", concurrency), _axis("contexts", contexts))
    found = asyncio.run(measuring.measure(url.rstrip("/").removesuffix("/v1"), model, grid, repeats, seed))
    written = _head(target.name, model, "measured", f"endpoint {url}", [*found.notes, *(note or [])])
    written |= {"memory": draft.memory_part(model_shape, target), "bandwidth": draft.bandwidth_part(target)}
    written |= {"transfer": _transfer(transfer_ms, transfer_gb_per_s, transfer_source), "scale": _scale()}
    written |= {"prefill": {str(prefill_tp): found.prefill}, "decode": {str(decode_tp): found.decode}}
    _write(written, out, force)


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
    draft.check_new(out, force)
    npz.export_npz(TableModel(found), out, prefill_tp, decode_tp)
    typer.echo(f"wrote {out}")


@profile.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped profile, or the path of a .json file.")],
    *,
    plot: Annotated[Path | None, typer.Option(help="Draw it there too: .png, .svg or .pdf.")] = None,
) -> None:
    """Print what a profile says: where it comes from, and its times at a few usual sizes."""
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
    if not path.is_file():
        known = sorted(p.relative_to(root).with_suffix("").as_posix() for p in root.glob("*/*.json"))
        raise ConfigError(f"profile: there is no {name!r}; choose from {', '.join(known)}")
    return read_profile(path)


def _head(gpu: str, model: str, kind: str, source: str, notes: list[str]) -> dict[str, Any]:
    # argv[0] is the path of this installation, and --python that of another one; neither helps a reader
    words = [word for word in sys.argv[1:] if not word.startswith("--python=")]
    while "--python" in words:
        index = words.index("--python")
        del words[index : index + 2]
    command = shlex.join(["pdplugins", *(word for word in words if word != "--force")])
    provenance = {"source": source, "command": command, "notes": notes}
    return {"schema": 1, "gpu": gpu, "model": model, "kind": kind, "provenance": provenance}


def _transfer(latency_ms: float, gb_per_s: float, source: str) -> dict[str, Any]:
    return {"latency_s": latency_ms / 1e3, "bytes_per_s": gb_per_s * 1e9, "source": source}


def _scale(
    prefill: float = 1.0, decode: float = 1.0, step_ms: float = 0.0, source: str = UNSCALED
) -> dict[str, float | str]:
    if (prefill, decode, step_ms) != (1.0, 1.0, 0.0) and source == UNSCALED:
        raise ConfigError("--scale-prefill, --scale-decode, --step-ms: say with --scale-source where they come from")
    extra = {"step_ms": step_ms} if step_ms else {}
    return {"prefill": prefill, "decode": decode, **extra, "source": source}


def _power(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return {"power": Power.model_validate_json(path.read_bytes()).model_dump(mode="json")}
    except OSError as error:
        raise ConfigError(f"--power {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--power {path}: {str(error).splitlines()[-2].strip()}; see profiles/README.md") from None


def _sizes(text: str) -> tuple[int, ...]:
    return _numbers("tp", text, 1)


def _axis(name: str, text: str) -> tuple[int, ...]:
    return _numbers(name, text, 2)


def _numbers(name: str, text: str, fewest: int) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        found = ()
    if len(found) < fewest or found[0] < 1:
        raise ConfigError(f"--{name} {text}: give {fewest} or more whole numbers with commas, such as 1,2,4")
    return found


def _write(data: dict[str, Any], out: Path, force: bool) -> None:
    draft.write(data, out, force)
    typer.echo(f"wrote {out}")
