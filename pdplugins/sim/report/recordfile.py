"""Per-request records as a file: JSON lines, or Parquet where pyarrow is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pdplugins.errors import ConfigError
from pdplugins.files import STDOUT, whole, whole_text
from pdplugins.sim.core.records import Record


def check(path: Path) -> None:
    """Raise ConfigError if records cannot be written to `path`. Call it before the simulation."""
    if path != STDOUT and path.suffix not in {".jsonl", ".parquet"}:
        raise ConfigError(f"--records {path}: the name must end in .jsonl or .parquet")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"--records {path}: Parquet needs pyarrow; pip install pyarrow, or write .jsonl")


def write(records: Sequence[Record], path: Path) -> None:
    """Write one line for each request, in the order in which they ended: the fields of `Record`."""
    with writer(path) as add:
        add(records)


@contextmanager
def writer(path: Path | None) -> Iterator[Callable[[Sequence[Record]], None]]:
    """Yield a function that adds records to the file. It is whole at the end of the block, or not there."""
    if path is None:
        yield lambda records: None
    elif path.suffix == ".parquet":
        from pyarrow import Table, parquet  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - the user's

        schema = _schema()
        with whole(path) as scratch, parquet.ParquetWriter(scratch, schema) as table:
            yield lambda records: table.write_table(Table.from_pylist([it._asdict() for it in records], schema))
    else:
        with whole_text(path) as file:
            yield lambda records: file.writelines(json.dumps(record._asdict()) + "\n" for record in records)


def _schema() -> Any:
    """Return the columns, which are the same for every file, even if all requests failed or none did."""
    import pyarrow  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415

    kinds = dict.fromkeys(Record._fields, pyarrow.float64())
    kinds |= dict.fromkeys(("isl_tokens", "osl_tokens", "cached_tokens"), pyarrow.int64())
    kinds |= dict.fromkeys(("id", "prefill_worker", "decode_worker", "error"), pyarrow.string())
    return pyarrow.schema(list(kinds.items()))
