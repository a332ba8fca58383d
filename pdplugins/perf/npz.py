"""Timing tables of Dynamo: of its mocker and replay (``planner_profile_data``), and of its profiler.

With the same tables the mocker, the replay and the planner agree on step times. The mocker's file has five keys
(``dynamo/mocker/utils/planner_profiler_perf_data_converter.py`` of ai-dynamo 1.4.2). The mocker interpolates linearly
in the sum of prompt tokens of a prefill step, and bilinearly in (active KV tokens, mean context) of a decode step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from pdplugins.contracts.perf import PerfModel
from pdplugins.errors import ConfigError, one_line
from pdplugins.files import is_folder, read_limited, write_whole_bytes
from pdplugins.perf.draft import BATCHES
from pdplugins.perf.table import Curve

MOST_BYTES = 2**24
"""Size of the largest file, packed and unpacked."""
LONG_TOKENS = (65_536, 131_072)
"""Last knots, up to the longest context of the Llama 3.1 family. Beyond them the mocker extrapolates linearly."""
MOST_KV_TOKENS = 600_000
"""Largest KV cache of the table: more than a worker of any shipped profile holds at decode TP 2."""


def export_npz(perf: PerfModel, path: Path, prefill_tp: int, decode_tp: int) -> None:
    """Write the times of `perf` at one prefill and one decode tensor-parallel size to `path` (a ``.npz`` file)."""
    tokens = [1, *_log_spaced(64, 32_768, 40), *LONG_TOKENS]
    contexts = [*_log_spaced(64, 32_768, 24), *LONG_TOKENS]
    kv_tokens = [0, *_log_spaced(64, MOST_KV_TOKENS, 60)]
    # The mocker's table has no batch axis: a step of k active KV tokens at mean context c is a batch of k / c.
    itl_ms = [[1e3 * perf.decode_step_s(max(k / c, 1.0), c, decode_tp) for c in contexts] for k in kv_tokens]
    packed = BytesIO()  # numpy goes back in what it writes, which a pipe cannot
    np.savez(
        packed,
        prefill_isl=np.array(tokens, dtype=float),
        prefill_ttft_ms=np.array([1e3 * perf.prefill_s(t, prefill_tp) for t in tokens]),
        decode_active_kv_tokens=np.array(kv_tokens, dtype=float),
        decode_context_length=np.array(contexts, dtype=float),
        decode_itl=np.array(itl_ms),
    )
    write_whole_bytes(path, packed.getvalue())


def _log_spaced(first: int, last: int, count: int) -> list[int]:
    return [int(x) for x in np.unique(np.geomspace(first, last, count).astype(int))]


@dataclass(frozen=True, slots=True)
class NpzTables:
    """A prefill and a decode table in the layout of a profile file."""

    prefill: dict[str, Any]
    decode: dict[str, Any]
    kv_tokens: int | None
    """Tokens of KV cache that the engine held; None when the file does not say."""
    notes: tuple[str, ...]


def files_of(path: Path) -> list[Path]:
    """Return the files that `read_npz` reads: `path` itself, or those of the prefill and of the decode table in it."""
    if not is_folder(path):
        return [path]
    return [path / f"selected_{phase}_interpolation" / "raw_data.npz" for phase in ("prefill", "decode")]


def read_npz(path: Path) -> NpzTables:
    """Read the mocker's ``.npz`` file, or the output folder of Dynamo's profiler.

    Raises ConfigError when `path` is neither.
    """
    try:
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            if not is_folder(path):
                return _mocker_tables(path, _load(path))
            prefill, decode = map(_load, files_of(path))
            return _profiler_tables(path, prefill, decode)
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise ConfigError(f"{path}: its arrays are no tables ({one_line(error, 80)}); was it written whole?") from None


def _load(path: Path) -> Mapping[str, Any]:
    try:
        return _unpacked(read_limited(path, MOST_BYTES))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # zip, zlib, struct, tokenize and numpy have errors of their own for damaged files
        reason = getattr(error, "strerror", None) or "it is no .npz file"
        raise ConfigError(f"{path}: {reason}; give the mocker's .npz or the folder of Dynamo's profiler") from None


def _unpacked(raw: bytes) -> Mapping[str, Any]:
    """Return the arrays of numbers."""
    with np.load(BytesIO(raw)) as file:
        if sum(part.file_size for part in file.zip.infolist()) > MOST_BYTES:
            raise ConfigError(f"more than {MOST_BYTES // 1024} KiB when unpacked; is it the right file?")
        return {name: array for name, array in file.items() if array.dtype.kind in "iuf"}


def _mocker_tables(path: Path, data: Mapping[str, Any]) -> NpzTables:
    try:
        kv_tokens, contexts = _axis(data, "decode_active_kv_tokens"), _axis(data, "decode_context_length")
        itl_ms = _numbers(data, "decode_itl", (len(kv_tokens), len(contexts)))
        prefill = _prefill_table(data, "prefill_ttft_ms")
    except KeyError as error:
        raise ConfigError(f"{path}: it has no {error}; the mocker's file has five arrays") from None
    columns = [Curve(kv_tokens.tolist(), column.tolist()) for column in itl_ms.T]
    rows = [[_ms(column(batch * c)) for c, column in zip(contexts, columns, strict=True)] for batch in BATCHES]
    notes = ("a step of k active KV tokens at mean context c is a batch of k / c", f"tables end at {kv_tokens[-1]:.0f}")
    return NpzTables(prefill, _decode_table(BATCHES, contexts, rows), None, notes)


def _profiler_tables(path: Path, prefill: Mapping[str, Any], decode: Mapping[str, Any]) -> NpzTables:
    try:
        held_tokens = int(_numbers(decode, "max_kv_tokens").ravel()[0])
        usage, lengths, itl_ms = (_numbers(decode, name) for name in ("x_kv_usage", "y_context_length", "z_itl"))
        points = np.stack([usage * held_tokens, lengths, itl_ms], axis=1)
        table = _prefill_table(prefill, "prefill_ttft")
    except KeyError as error:
        raise ConfigError(f"{path}: it has no {error}; give the folder that Dynamo's profiler left") from None
    contexts = np.unique(points[:, 1])
    curves = []
    for context in contexts:
        here = points[points[:, 1] == context]
        here = here[np.argsort(here[:, 0])]
        curves.append(Curve((here[:, 0] / context).tolist(), here[:, 2].tolist()))
    rows = [[_ms(curve(batch)) for curve in curves] for batch in BATCHES]
    notes = ("decode is linear in the batch between the measured points of each context, and goes on beyond them",)
    return NpzTables(table, _decode_table(BATCHES, contexts, rows), held_tokens, notes)


def _prefill_table(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the prefill table whose times are in the array `name`."""
    tokens = _axis(data, "prefill_isl")
    times_ms = _numbers(data, name, (len(tokens),))
    return {"tokens": [float(t) for t in tokens], "raw_ms": [_ms(t) for t in times_ms]}


def _decode_table(batches: tuple[int, ...], contexts: Any, rows: list[list[float]]) -> dict[str, Any]:
    return {"batch": list(batches), "context_tokens": [float(c) for c in contexts], "raw_ms": rows}


def _axis(data: Mapping[str, Any], name: str) -> Any:
    """Return an array that is the axis of a table. Raises KeyError, or ValueError that names the array."""
    array = _numbers(data, name)
    if array.ndim != 1 or len(array) < 2 or (np.diff(array.astype(float)) <= 0).any():
        raise ValueError(f"{name} is no row of two or more numbers that ascend")
    return array


def _numbers(data: Mapping[str, Any], name: str, shape: tuple[int, ...] | None = None) -> Any:
    """Return an array of numbers that are finite and not below 0. Raises likewise, also where it has another shape."""
    array = data[name]
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}, and its axes have {shape}")
    if not np.isfinite(array).all() or (array < 0).any():
        raise ValueError(f"{name} has a number below 0 or one that is not finite")
    return array


def _ms(time: Any) -> float:
    return max(round(float(np.asarray(time).item()), 3), 0.001)
