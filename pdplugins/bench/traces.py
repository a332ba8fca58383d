"""Readers of request traces, and what a run does to one before it replays it: clip, scale, write.

Two published formats are read: the Azure LLM inference traces (Patel et al., *Splitwise*, ISCA 2024; columns
``TIMESTAMP,ContextTokens,GeneratedTokens``) and the Mooncake traces (Qin et al., FAST 2025; one JSON object per line
with ``timestamp`` in ms, ``input_length``, ``output_length`` and ``hash_ids`` of 512-token prefix blocks).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pdplugins.errors import TraceError
from pdplugins.registry import NoSettings, Registry, default_registry
from pdplugins.types import TraceRequest

BLOCK_TOKENS = 512
"""Tokens of one prefix block of a Mooncake trace."""
PUBLISHED = (
    "published traces: the data folder of the GitHub repository Azure/AzurePublicDataset (azure-csv) and "
    "FAST25-release/traces of kvcache-ai/Mooncake (mooncake-jsonl); 'synthetic' needs no file"
)
_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MAX_TOKENS = 10_000_000


def read(path: Path, workload: str | None = None, registry: Registry | None = None) -> list[TraceRequest]:
    """Read a trace, earliest request first; `workload` names its format and is guessed when absent.

    `path` may also be the bare name of a workload that needs no file, such as ``synthetic``. Raises TraceError when
    there is nothing to read, ConfigError when `workload` is not registered.
    """
    registry = registry or default_registry()
    name = workload or _guess(path, registry)
    registration = registry.get("workload", name)
    requests = list(registration.factory(registration.settings(), path))
    if not requests:
        raise TraceError(f"{path}: no request in it; expected at least one line of {name}")
    return _from_zero(requests)


def _guess(path: Path, registry: Registry) -> str:
    """Name the workload that reads `path`: by its first line for the formats above, else whichever accepts it."""
    names = registry.names("workload")
    if not path.exists() and str(path) in names:
        return str(path)
    first = next((line for _, line in _lines(path) if line.strip()), "")
    if first.startswith("TIMESTAMP"):
        return "azure-csv"
    if first.lstrip().startswith("{"):
        return "mooncake-jsonl"
    for name in names:
        if name not in {"azure-csv", "mooncake-jsonl", "synthetic"} and _accepts(registry, name, path):
            return name
    raise TraceError(f"{path}: line 1: not a trace format known here ({', '.join(names)}); {PUBLISHED}")


def _accepts(registry: Registry, name: str, path: Path) -> bool:
    registration = registry.get("workload", name)
    try:
        return next(iter(registration.factory(registration.settings(), path)), None) is not None
    except TraceError:
        return False


# --- the two formats -----------------------------------------------------------------------------------------------


def azure_csv(_settings: NoSettings, path: Path) -> Iterator[TraceRequest]:
    """Read an Azure trace. Raises TraceError with file, line and column for what is malformed."""
    lines = _lines(path)
    _, header = next(lines, (1, ""))
    columns = [name.strip() for name in header.split(",")]
    if missing := [name for name in _AZURE_COLUMNS if name not in columns]:
        raise TraceError(
            f"{path}: line 1: column {missing[0]} is missing; an Azure trace has {','.join(_AZURE_COLUMNS)}"
        )
    where = [columns.index(name) for name in _AZURE_COLUMNS]
    for number, line in lines:
        if not line.strip():
            continue
        cells = next(csv.reader([line]))
        if len(cells) < len(columns):
            raise _malformed(path, number, columns[len(cells)], line.strip(), "present")
        stamp, isl, osl = (cells[index].strip() for index in where)
        yield TraceRequest(
            arrival_s=_epoch_s(path, number, stamp),
            isl_tokens=_tokens(path, number, "ContextTokens", isl),
            osl_tokens=_tokens(path, number, "GeneratedTokens", osl),
        )


def mooncake_jsonl(_settings: NoSettings, path: Path) -> Iterator[TraceRequest]:
    """Read a Mooncake trace. Raises TraceError with file, line and field for what is malformed."""
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            column = getattr(error, "colno", 1)
            raise TraceError(f"{path}: line {number}, column {column}: not JSON; is the file cut off?") from None
        if not isinstance(row, dict):
            raise TraceError(f"{path}: line {number}, column 1: {line.strip()[:40]!r} is not a JSON object")
        yield _mooncake_request(path, number, row)


def _mooncake_request(path: Path, number: int, row: dict[str, Any]) -> TraceRequest:
    stamp = row.get("timestamp")
    if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not 0 <= stamp < float("inf"):
        raise _malformed(path, number, "timestamp", stamp, "a number of milliseconds from 0 up")
    blocks = row.get("hash_ids", [])
    if not isinstance(blocks, list) or not all(isinstance(b, int) and not isinstance(b, bool) for b in blocks):
        raise _malformed(path, number, "hash_ids", blocks, "a list of whole numbers")
    return TraceRequest(
        arrival_s=stamp / 1e3,
        isl_tokens=_tokens(path, number, "input_length", row.get("input_length")),
        osl_tokens=_tokens(path, number, "output_length", row.get("output_length")),
        blocks=tuple(blocks),
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, line) and turn whatever the file system says into TraceError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from enumerate(file, start=1)
    except FileNotFoundError:
        raise TraceError(f"{path}: no such trace; {PUBLISHED}") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; give the path of a readable trace file") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not text; unpack it first if it is compressed") from None


def _epoch_s(path: Path, number: int, stamp: str) -> float:
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        raise _malformed(path, number, "TIMESTAMP", stamp, "a time like 2023-11-16 18:17:03.9799600") from None
    # Any fixed origin will do: read() starts the trace at 0. This one needs no time zone.
    return (moment.replace(tzinfo=None) - datetime(2020, 1, 1)).total_seconds()


def _tokens(path: Path, number: int, column: str, value: object) -> int:
    try:
        tokens = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else -1
    except ValueError:
        tokens = -1
    if not 1 <= tokens <= _MAX_TOKENS:
        raise _malformed(path, number, column, value, f"a whole number from 1 to {_MAX_TOKENS}")
    return tokens


def _malformed(path: Path, number: int, column: str, value: object, expected: str) -> TraceError:
    shown = "missing" if value is None else f"{str(value)[:40]!r}"
    return TraceError(f"{path}: line {number}, column {column}: {shown} is not {expected}; fix or drop the line")


# --- what a run does to a trace ------------------------------------------------------------------------------------


def _from_zero(requests: Iterable[TraceRequest]) -> list[TraceRequest]:
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    start_s = ordered[0].arrival_s
    return [replace(request, arrival_s=round(request.arrival_s - start_s, 6)) for request in ordered]


def clip(requests: Sequence[TraceRequest], duration_s: float) -> list[TraceRequest]:
    """Keep the requests that arrive in the first `duration_s` seconds of trace time."""
    return [request for request in requests if request.arrival_s < duration_s]


def scale(requests: Sequence[TraceRequest], speed: float) -> list[TraceRequest]:
    """Replay `speed` times as fast: arrival times divided by `speed`, lengths as they are."""
    if not speed > 0:
        raise TraceError(f"speed is {speed}; it must be above 0 (2 means twice as fast)")
    return [replace(request, arrival_s=request.arrival_s / speed) for request in requests]


def write_mooncake(requests: Iterable[TraceRequest], path: Path) -> None:
    """Write a trace as Mooncake JSONL, the input of Dynamo's replay.

    Requests without `blocks` get blocks of their own, so that no prefix is shared that the trace does not show.
    """
    kept = list(requests)
    fresh = _counter(1 + max((block for request in kept for block in request.blocks), default=-1))
    with path.open("w", encoding="utf-8") as file:
        for request in kept:
            count = -(-request.isl_tokens // BLOCK_TOKENS)
            row = {
                "timestamp": round(request.arrival_s * 1e3),
                "input_length": request.isl_tokens,
                "output_length": request.osl_tokens,
                "hash_ids": list(request.blocks) or [fresh() for _ in range(count)],
            }
            file.write(json.dumps(row) + "\n")


def _counter(start: int) -> Callable[[], int]:
    numbers = iter(range(start, 1 << 62))
    return lambda: next(numbers)
