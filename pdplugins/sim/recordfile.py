"""Per-request records as a file: JSON lines, or Parquet where pyarrow is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path

from pdplugins.errors import ConfigError
from pdplugins.files import whole, write_whole
from pdplugins.sim.records import Record


def check(path: Path) -> None:
    """Say what is wrong with `path` before anything is simulated for it. Raises ConfigError."""
    if path.suffix not in {".jsonl", ".parquet"}:
        raise ConfigError(f"--records {path}: the name must end in .jsonl or .parquet")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"--records {path}: Parquet needs pyarrow; pip install pyarrow, or write .jsonl")


def write(records: Iterable[Record], path: Path) -> None:
    """Write one line for each request, in the order in which they ended: the fields of `Record`."""
    if path.suffix == ".parquet":
        from pandas import DataFrame  # type: ignore[import-untyped]  # noqa: PLC0415 - slow, and only needed here

        with whole(path) as scratch:
            DataFrame(records, columns=Record._fields).to_parquet(scratch, index=False)
    else:
        write_whole(path, "".join(json.dumps(record._asdict()) + "\n" for record in records))
