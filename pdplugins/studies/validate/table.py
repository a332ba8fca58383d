"""Reads aiconfigurator's ``silicon`` CSV, row by row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from pdplugins.errors import ConfigError, one_line

LONGEST_LINE = 2**20
"""Characters of the longest line."""
MOST_COLUMNS = 1000


def table(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (number, cells by column) of each row. Raises ConfigError for what is no CSV file."""
    hint = "give aiconfigurator's silicon CSV, which is published with it (github.com/ai-dynamo/aiconfigurator)"
    try:
        if path.is_fifo():  # to open it would wait until somebody writes
            raise ConfigError(f"rows {path}: a pipe; write it to a file first")
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(_lines(file))
            if len(reader.fieldnames or ()) > MOST_COLUMNS:
                raise ConfigError(f"rows {path}: more than {MOST_COLUMNS} columns; {hint}")
            for number, raw in enumerate(reader, 2):
                yield number, {str(key): str(value or "") for key, value in raw.items()}
    except OSError as error:
        raise ConfigError(f"rows {one_line(path)}: {error.strerror}; {hint}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"rows {path}: not a CSV file: {error}; {hint}") from None


def _lines(file: TextIO) -> Iterator[str]:
    """Yield the lines, of which one may have no end: in a device, or a hole of a file."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise csv.Error(f"a line of more than {LONGEST_LINE} characters")
        yield line
