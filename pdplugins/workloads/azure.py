"""The Azure LLM inference traces (Patel et al., *Splitwise*, ISCA 2024): TIMESTAMP,ContextTokens,GeneratedTokens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pdplugins.contracts.register import NoSettings
from pdplugins.files import is_file
from pdplugins.workloads import rows
from pdplugins.workloads.trace import TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LARGE_BYTES, HUGE_BYTES = 1_000_000, 2**32
"""Sizes from which on, and up to which, a file is read at once. Without line ends that takes its size in memory."""
PIECE_BYTES = 2**20
MOST_DIGITS = 30
"""Characters of a number of tokens that are read at once."""
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
    import pandas as pd  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to load

    stamp, isl, osl = COLUMNS
    try:
        table = pd.read_csv(
            path,
            usecols=COLUMNS,
            index_col=False,
            dtype=str,  # as numbers pandas reads 5.0, 1e2 and +5 too
            encoding="utf-8-sig",
            compression=None,  # whatever its name ends in
        )
        if not _regular(path, len(table)):  # of which pandas takes a part where it is told the columns to read
            return None
        times = pd.to_datetime(table[stamp], format="ISO8601", utc=True).dt.floor("us")
        since_s = (times - pd.Timestamp(_ORIGIN)).dt.total_seconds()
    except (ValueError, ArithmeticError, OSError):  # the careful reader reports what is wrong, and where
        return None
    if table.empty or times.isna().any():
        return None
    if table[stamp].map(len).min() < len("2020-01-01"):  # such as "now", which pandas knows
        return None
    prompts, outputs = (_tokens(*pd.factorize(table[column])) for column in (isl, osl))
    return None if prompts is None or outputs is None else (since_s.tolist(), prompts, outputs)


def _tokens(codes: Any, texts: Any) -> list[int] | None:
    """Return a column as counts of tokens; None where any cell needs the careful reader.

    :param codes: the index in `texts` of each cell, below 0 for an empty one.
    """
    if codes.min() < 0 or not all(len(text) < MOST_DIGITS and rows.DIGITS.fullmatch(text) for text in texts):
        return None
    counts = [int(text) for text in texts]
    if min(counts) < 1 or max(counts) > rows.MAX_TOKENS:
        return None
    return [counts[code] for code in codes.tolist()]


def _regular(path: Path, count: int) -> bool:
    """Tell whether no column stands twice, and `count` rows have as many cells as the header."""
    with path.open("rb") as file:
        header = file.readline()
        names = rows.names(header.decode("utf-8-sig"))
        commas = sum(piece.count(b",") for piece in iter(partial(file.read, PIECE_BYTES), b""))
        return len(set(names)) == len(names) and commas == count * header.count(b",")


def _epoch_s(path: Path, number: int, stamp: str) -> float:
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        raise rows.malformed(path, number, "TIMESTAMP", stamp, "a time like 2023-11-16 18:17:03.9799600") from None
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _ORIGIN).total_seconds()
