"""Lines and cells of a trace file, and errors that name file, line and column."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pdplugins.errors import TraceError, meant
from pdplugins.resources import data_dir

PUBLISHED = (
    "published traces: the data folder of the GitHub repository Azure/AzurePublicDataset (azure-csv), "
    "FAST25-release/traces of kvcache-ai/Mooncake (mooncake-jsonl), data of alibaba/ServeGen (servegen), "
    "data/processed_traces of microsoft/vidur (vidur-csv), traces of callanjfox/kv-cache-tester (agentic-csv) and "
    "historical_trajectories of sierra-research/tau-bench (taubench-csv); 'synthetic' and the shipped workloads need "
    "no file"
)
MAX_TOKENS = 10_000_000
LARGEST = 1e15
"""The largest other number: in milliseconds thirty thousand years, which clocks of hosts can still tell."""
DIGITS = re.compile(r"\s*[0-9]+\s*")
"""A whole number as a text. Python would take 1_0 for one too."""
LONGEST_LINE = 2**26
"""Characters of the longest line."""


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, line), and turn errors of the file system into TraceError."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise TraceError(
                f"{path}: a pipe or a device, and a trace is read more than once; write it to a file first"
            )
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), start=1):
                if len(line) == LONGEST_LINE:
                    raise TraceError(
                        f"{path}: line {number}: longer than {LONGEST_LINE} characters; is it the right file?"
                    )
                yield number, line
    except FileNotFoundError:
        known = sorted(one.stem for one in data_dir("configs").glob("workloads/*.yaml"))
        hint = meant(str(path).partition(":")[0], known)
        raise TraceError(f"{path}: no such trace; {PUBLISHED}: {', '.join(known)}{hint}") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; give the path of a readable trace file") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not text; unpack it first if it is compressed") from None


def whole(path: Path, most: int) -> str:
    """Return the text of a file of at most `most` characters."""
    parts, size = [], 0
    for number, line in lines(path):
        parts.append(line)
        size += len(line)
        if size > most:
            raise TraceError(f"{path}: line {number}: more than {most} characters so far; is it the right file?")
    return "".join(parts)


def names(header: str) -> list[str]:
    """Return the names of the columns, which a CSV file has in its first line; none where that line is no CSV."""
    try:
        return [name.strip() for name in next(csv.reader([header]), [])]
    except csv.Error:
        return []


def cells(path: Path, wanted: Sequence[str], what: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells of the columns `wanted`) of a CSV file with a header. `what` names its format."""
    rows = lines(path)
    _, header = next(rows, (1, ""))
    columns = names(header)
    if missing := [name for name in wanted if name not in columns]:
        raise TraceError(f"{path}: line 1: column {missing[0]} is missing; {what} has {','.join(wanted)}")
    if twice := [name for name in wanted if columns.count(name) > 1]:
        raise TraceError(f"{path}: line 1: column {twice[0]} stands twice; keep one of them")
    where = [columns.index(name) for name in wanted]
    for number, line in rows:
        if not line.strip():
            continue
        try:
            row = next(csv.reader([line]))
        except csv.Error as error:
            raise TraceError(f"{path}: line {number}, column 1: not CSV ({error}); fix or drop the line") from None
        if len(row) < len(columns):
            raise malformed(path, number, columns[len(row)], line.strip(), "present")
        if any(map(str.strip, row[len(columns) :])):
            raise TraceError(
                f'{path}: line {number}: more cells than the header has columns; write 1.5 or "1,5", not 1,5'
            )
        yield number, [row[index].strip() for index in where]


def tokens(path: Path, number: int, column: str, value: object, least: int = 1) -> int:
    """Return `value` as a count of tokens. Raises TraceError when it is none."""
    try:
        count = int(value) if type(value) is int or (type(value) is str and DIGITS.fullmatch(value)) else -1
    except ValueError:
        count = -1
    if not least <= count <= MAX_TOKENS:
        raise malformed(path, number, column, value, f"a whole number from {least} to {MAX_TOKENS}")
    return count


def real(path: Path, number: int, column: str, value: object, what: str = f"a number from 0 to {LARGEST:g}") -> float:
    """Return `value` as a number from 0 to `LARGEST`. Raises TraceError when it is none."""
    try:
        found = float(value) if type(value) in (int, float, str) else -1.0  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        found = -1.0
    if not 0 <= found <= LARGEST:
        raise malformed(path, number, column, value, what)
    return found


def malformed(path: Path, number: int, column: str, value: object, expected: str) -> TraceError:
    """Return the error for one cell."""
    shown = "missing" if value is None else f"{str(value)[:40]!r}"
    return TraceError(f"{path}: line {number}, column {column}: {shown} is not {expected}; fix or drop the line")
