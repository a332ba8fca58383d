"""Reads aiconfigurator's ``silicon`` CSV, row by row."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from pdplugins.errors import ConfigError, one_line, shown

LONGEST_LINE = 2**20
"""Characters of the longest line."""
MOST_COLUMNS = 1000
MEASURED = ("silicon_ttft_ms", "silicon_tpot_ms")
"""Columns that such a file has."""


def table(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, cells by column) of each row. Raises ConfigError for what is no such file."""
    hint = "give aiconfigurator's silicon CSV, which is published with it (github.com/ai-dynamo/aiconfigurator)"
    try:
        if path.is_fifo():  # to open it would wait until somebody writes
            raise ConfigError(f"rows {path}: a pipe; write it to a file first")
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(_lines(file))
            if (why := _unfit(reader.fieldnames or ())) is not None:
                raise ConfigError(f"rows {path}: {why}; {hint}")
            for raw in reader:
                yield reader.line_num, {str(key): str(value or "") for key, value in raw.items()}
    except OSError as error:
        raise ConfigError(f"rows {one_line(path)}: {error.strerror}; {hint}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"rows {path}: not a CSV file: {error}; {hint}") from None


def _unfit(columns: Sequence[str]) -> str | None:
    """Return what is wrong with the columns of a file; None where they will do."""
    if len(columns) > MOST_COLUMNS:
        return f"more than {MOST_COLUMNS} columns"
    if missing := [name for name in MEASURED if name not in columns]:
        return f"line 1: column {missing[0]} is missing"
    (name, count), *_ = Counter(columns).most_common(1)
    return f"line 1: column {shown(name)} stands twice" if count > 1 else None  # and Python takes the last one


def _lines(file: TextIO) -> Iterator[str]:
    """Yield the lines, of which one may have no end: in a device, or a hole of a file."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise csv.Error(f"a line of more than {LONGEST_LINE} characters")
        yield line
