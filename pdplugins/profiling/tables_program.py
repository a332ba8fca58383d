"""Reads aiconfigurator's kernel tables, in an interpreter that has aiconfigurator and need not have pdplugins.

So neither this file nor the readers beside it import anything of pdplugins. ``python tables_program.py READER`` takes
one JSON object on standard input, has that reader answer it, and writes one on standard output; see `kernels.run`.
"""

import importlib
import json
import logging
import sys
from importlib.metadata import version
from typing import Any


def answer(reader: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what the reader finds in the tables, and which they are."""
    perf_database = _sdk("perf_database")
    system, backend = asked["system"], asked["backend"]
    tables = asked["version"] or str(perf_database.get_latest_database_version(system, backend))
    database = perf_database.get_database(system=system, backend=backend, version=tables)
    if database is None:
        raise ValueError(f"no tables of {backend} {tables}")
    found = importlib.import_module(reader).read(asked, database, _sdk)
    return {"tool": f"aiconfigurator {version('aiconfigurator')}", "version": tables, **found}


def _sdk(name: str) -> Any:
    return importlib.import_module(f"aiconfigurator.sdk.{name}")


def main() -> None:
    """Answer the request on standard input."""
    logging.disable(logging.WARNING)
    asked = json.load(sys.stdin)
    try:
        found = answer(sys.argv[1], asked)
    except ModuleNotFoundError as error:
        found = {"missing": error.name}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
