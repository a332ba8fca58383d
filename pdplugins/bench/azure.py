"""The Azure LLM inference traces (Patel et al., *Splitwise*, ISCA 2024): TIMESTAMP,ContextTokens,GeneratedTokens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from pdplugins.bench import rows
from pdplugins.registry import NoSettings
from pdplugins.types import TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_ORIGIN = datetime(2020, 1, 1)
"""Any will do: the trace starts at 0. This one needs no time zone."""


def azure_csv(_settings: NoSettings, path: Path) -> Iterator[TraceRequest]:
    """Read an Azure trace. Raises TraceError with file, line and column for what is malformed."""
    for number, (stamp, isl, osl) in rows.cells(path, COLUMNS, "an Azure trace"):
        yield TraceRequest(
            arrival_s=_epoch_s(path, number, stamp),
            isl_tokens=rows.tokens(path, number, "ContextTokens", isl),
            osl_tokens=rows.tokens(path, number, "GeneratedTokens", osl),
        )


def _epoch_s(path: Path, number: int, stamp: str) -> float:
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        raise rows.malformed(path, number, "TIMESTAMP", stamp, "a time like 2023-11-16 18:17:03.9799600") from None
    return (moment.replace(tzinfo=None) - _ORIGIN).total_seconds()
