"""Tells the format of a trace file from its first line."""

from __future__ import annotations

from pathlib import Path

from pdplugins.errors import TraceError
from pdplugins.registry import Registry
from pdplugins.workloads import azure, rows, servegen, sessions

_COLUMNS = {
    "azure-csv": azure.COLUMNS,
    "agentic-csv": sessions.AGENTIC_COLUMNS,
    "taubench-csv": sessions.TAUBENCH_COLUMNS,
    "vidur-csv": sessions.VIDUR_COLUMNS,
}
"""Columns that identify a CSV format. A file with the first of them is meant to have that format."""
_BUILT_IN = {*_COLUMNS, "mooncake-jsonl", "servegen", "synthetic"}


def is_there(path: Path) -> bool:
    """Tell whether a trace is at `path`: a folder is one only where ServeGen's files are in it."""
    try:
        return path.exists() and (not path.is_dir() or servegen.is_servegen(path))
    except OSError:  # a name that is too long, or a folder that may not be read
        return False


def format_of(path: Path, registry: Registry) -> str:
    """Return the workload that reads `path`: by its first line for the formats above, else one that accepts it."""
    if is_there(path) and servegen.is_servegen(path):
        return "servegen"
    first = next((line for _, line in rows.lines(path) if line.strip()), "")
    if first.lstrip().startswith("{"):
        return "mooncake-jsonl"
    if (name := _csv_format(first)) is not None:
        return name
    names = registry.names("workload")
    for name in names:
        if name not in _BUILT_IN and _accepts(registry, name, path):
            return name
    raise TraceError(f"{path}: line 1: empty, or not a trace format known here ({', '.join(names)}); {rows.PUBLISHED}")


def _csv_format(header: str) -> str | None:
    """Return the format with the most columns in the header. Its first column must be there."""
    columns = set(rows.names(header))
    shares = {name: sum(c in columns for c in wanted) / len(wanted) for name, wanted in _COLUMNS.items()}
    best = max(shares, key=lambda name: shares[name])
    return best if _COLUMNS[best][0] in columns else None


def _accepts(registry: Registry, name: str, path: Path) -> bool:
    registration = registry.get("workload", name)
    try:
        return next(iter(registration.factory(registration.settings(), path)), None) is not None
    except TraceError:
        return False
