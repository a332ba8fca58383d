"""The Azure LLM inference traces (Patel et al., *Splitwise*, ISCA 2024): TIMESTAMP,ContextTokens,GeneratedTokens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pdplugins.contracts.register import NoSettings
from pdplugins.files import is_file
from pdplugins.workloads import rows
from pdplugins.workloads.trace import TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LARGE_BYTES, HUGE_BYTES = 1_000_000, 2**32
"""Sizes from which on, and up to which, a file is read at once. Without line ends that takes its size in memory."""
PIECE_BYTES = 2**20
_ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)
"""An arbitrary origin, because the trace is shifted to start at 0."""


def azure_csv(_settings: NoSettings, path: Path) -> Iterator[TraceRequest]:
    """Read an Azure trace. Raises TraceError with file, line and column for what is malformed."""
    large = is_file(path) and LARGE_BYTES <= path.stat().st_size <= HUGE_BYTES
    if large and (columns := _at_once(path)) is not None:
        yield from map(TraceRequest, *columns)
        return
    for number, (stamp, isl, osl) in rows.cells(path, COLUMNS, "an Azure trace"):
        yield TraceRequest(
            arrival_s=_epoch_s(path, number, stamp),
            isl_tokens=rows.tokens(path, number, "ContextTokens", isl),
            osl_tokens=rows.tokens(path, number, "GeneratedTokens", osl),
        )


def _at_once(path: Path) -> tuple[list[float], list[int], list[int]] | None:
    """Read the columns of a large file ten times as fast; None where any row needs the careful reader."""
    import numpy as np  # noqa: PLC0415 - slow to load
    import pandas as pd  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to load

    stamp, isl, osl = COLUMNS
    try:
        with np.errstate(invalid="raise"):  # an infinite number of tokens
            table = pd.read_csv(
                path,
                usecols=COLUMNS,
                index_col=False,
                dtype={stamp: str, isl: "int64", osl: "int64"},
                encoding="utf-8-sig",
                compression=None,  # whatever its name ends in
            )
        if _excess_cells(path, len(table)):  # which pandas drops where it is told the columns to read
            return None
        times = pd.to_datetime(table[stamp], format="ISO8601", utc=True).dt.floor("us")
        since_s = (times - pd.Timestamp(_ORIGIN)).dt.total_seconds()
    except (ValueError, ArithmeticError, OSError):  # the careful reader reports what is wrong, and where
        return None
    if times.isna().any() or table[stamp].map(len).min() < len("2020-01-01"):  # such as "now", which pandas knows
        return None
    tokens = table[[isl, osl]]
    if tokens.min(axis=None) < 1 or tokens.max(axis=None) > rows.MAX_TOKENS:
        return None
    return since_s.tolist(), table[isl].tolist(), table[osl].tolist()


def _excess_cells(path: Path, count: int) -> bool:
    """Tell whether `count` rows may have more cells than the header."""
    with path.open("rb") as file:
        expected = count * file.readline().count(b",")
        return sum(piece.count(b",") for piece in iter(partial(file.read, PIECE_BYTES), b"")) != expected


def _epoch_s(path: Path, number: int, stamp: str) -> float:
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        raise rows.malformed(path, number, "TIMESTAMP", stamp, "a time like 2023-11-16 18:17:03.9799600") from None
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _ORIGIN).total_seconds()
