"""The options that several ``pdplugins profile`` commands share, and the parts of a profile file made from them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from pdplugins.config import first_error
from pdplugins.errors import ConfigError
from pdplugins.files import check_apart, read_limited
from pdplugins.perf import draft
from pdplugins.perf.gpus import GPUS
from pdplugins.perf.profile import MOST_BYTES, Power
from pdplugins.provenance import command_line
from pdplugins.redaction import redacted

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


def head(gpu: str, model: str, kind: str, source: str, notes: list[str]) -> dict[str, Any]:
    """Return the head of a profile file, which records the running command."""
    # argv[0] and --python are paths of this machine, which do not help a reader.
    words = [word for word in sys.argv[1:] if not word.startswith("--python=")]
    while "--python" in words:
        index = words.index("--python")
        del words[index : index + 2]
    command = command_line(words=[word for word in words if word != "--force"])
    # An endpoint's URL may hold a password, and profiles are there to be shared.
    provenance = {"source": redacted(source), "command": redacted(command), "notes": notes}
    return {"schema": 1, "gpu": gpu, "model": model, "kind": kind, "provenance": provenance}


def write(data: dict[str, Any], out: Path, force: bool) -> None:
    """Check a profile, write it and say so. Raises ConfigError for one that is wrong, or where `out` exists."""
    draft.write(data, out, force)
    typer.echo(f"wrote {out}")


def transfer(latency_ms: float, gb_per_s: float, source: str) -> dict[str, Any]:
    """Return the transfer part."""
    return {"latency_s": latency_ms / 1e3, "bytes_per_s": gb_per_s * 1e9, "source": source}


def scale(
    prefill: float = 1.0, decode: float = 1.0, step_ms: float = 0.0, source: str = UNSCALED
) -> dict[str, float | str]:
    """Return the scale part. Raises ConfigError when factors are given without their source."""
    if (prefill, decode, step_ms) != (1.0, 1.0, 0.0) and source == UNSCALED:
        raise ConfigError("--scale-prefill, --scale-decode, --step-ms: say with --scale-source where they come from")
    extra = {"step_ms": step_ms} if step_ms else {}
    return {"prefill": prefill, "decode": decode, **extra, "source": source}


def check_out(out: Path, force: bool, read: Mapping[str, Path | str | None]) -> None:
    """Raise ConfigError where the profile `out` cannot be written, exists without `force`, or is a file that is read.

    :param read: the files that are read, by what they are called in an error.
    """
    check_apart({"--out": out}, read)
    draft.check_new(out, force)


def files_of_model(model: str, option: str = "--model") -> dict[str, Path]:
    """Return the files that may tell the shape of a model, by what they are called in an error."""
    return {option: Path(model), f"{option}, its config.json": Path(model) / "config.json"}


def power(path: Path | None) -> dict[str, Any]:
    """Return the power part from the file at `path`, or nothing without a path."""
    if path is None:
        return {}
    try:
        return {"power": Power.model_validate_json(read_limited(path, MOST_BYTES)).model_dump(mode="json")}
    except OSError as error:
        raise ConfigError(f"--power {path}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"--power {path}: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"--power {path}: {first_error(error, Power)}; see profiles/README.md") from None


def sizes(text: str) -> tuple[int, ...]:
    """Return the tensor-parallel sizes in `text`."""
    return _numbers("tp", text, 1)


def axis(name: str, text: str) -> tuple[int, ...]:
    """Return the knots of an axis in `text`. There must be at least two."""
    return _numbers(name, text, 2)


def _numbers(name: str, text: str, fewest: int) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        found = ()
    if len(found) < fewest or found[0] < 1:
        raise ConfigError(f"--{name} {text}: give {fewest} or more whole numbers with commas, such as 1,2,4")
    return found
