"""Finds the trace that a user names: a trace file, a workload file, a shipped workload, or a generator.

``--trace X`` means, in this order: a path, whose first line shows the format; the name of a shipped workload
(`configs/workloads`); the name of a registered workload. Both kinds of names may have settings after a colon:
``synthetic:requests=500,arrivals.kind=gamma,arrivals.rate=4,arrivals.cv=2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pdplugins.config import first_error
from pdplugins.errors import ConfigError, TraceError
from pdplugins.registry import Registry, default_registry
from pdplugins.resources import data_dir
from pdplugins.safe_yaml import read_yaml
from pdplugins.settings import parse_setting, put, split_settings
from pdplugins.workloads import azure, rows, servegen, sessions
from pdplugins.workloads.trace import TraceRequest
from pdplugins.workloads.transform import Transform, check_span, merge

_COLUMNS = {
    "azure-csv": azure.COLUMNS,
    "agentic-csv": sessions.AGENTIC_COLUMNS,
    "taubench-csv": sessions.TAUBENCH_COLUMNS,
    "vidur-csv": sessions.VIDUR_COLUMNS,
}
"""Columns that identify a CSV format. A file with the first of them is meant to have that format."""
_BUILT_IN = {*_COLUMNS, "mooncake-jsonl", "servegen", "synthetic"}
_NAMED = re.compile(r"([\w-]+)(?::(.*))?", re.DOTALL)
_INNER_KEY = re.compile(r"(?<=[,\[{])\s*([\w.]+)=")


class Part(Transform):
    """One of the traces of a mix, with transforms that apply before mixing."""

    trace: str = Field(description="anything that --trace takes; a path may start where the workload file lies")


class Mix(BaseModel):
    """A workload file that mixes several traces."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mix: tuple[Part, ...] = Field(min_length=1, description="their arrivals come together; `rate` of each weighs them")


def read(path: Path | str, workload: str | None = None, registry: Registry | None = None) -> list[TraceRequest]:
    """Read or generate a trace. Requests are in order of arrival, the first one at 0, with times to the microsecond.

    `workload` names the format of the file `path`; None means to guess it. Raises TraceError when there is nothing to
    read, and ConfigError when a workload is not registered or its settings are wrong.
    """
    registry = registry or default_registry()
    path = Path(path)
    if workload is None and not is_there(path):
        if (found := _by_name(str(path), registry)) is not None:
            return found
    elif workload is None and path.suffix in {".yaml", ".yml"}:
        return _from_data(_yaml(path), path, registry)
    return _run(workload or _guess(path, registry), {}, path, str(path), registry)


def is_there(path: Path) -> bool:
    """Tell whether a trace is at `path`: a folder is one only where ServeGen's files are in it."""
    try:
        return path.exists() and (not path.is_dir() or servegen.is_servegen(path))
    except OSError:  # a name that is too long, or a folder that may not be read
        return False


def shipped() -> list[str]:
    """Return the names of the shipped workloads."""
    return sorted(path.stem for path in data_dir("configs").glob("workloads/*.yaml"))


def _by_name(text: str, registry: Registry) -> list[TraceRequest] | None:
    """Generate the workload that `text` names, with the settings after the colon; None if it names no workload."""
    match = _NAMED.fullmatch(text)
    if match is None:
        return None
    name = match[1]
    if name in shipped():
        file = data_dir("configs") / f"workloads/{name}.yaml"
        return _from_data(_over(_yaml(file), _inline(name, match[2])), file, registry)
    if name in registry.names("workload"):
        return _from_data({"workload": name, **_inline(name, match[2])}, Path(text), registry)
    return None


def _inline(name: str, settings: str | None) -> dict[str, Any]:
    """Read the settings after the name of a workload. Within braces a value may follow ``=``, too."""
    data: dict[str, Any] = {}
    for text in split_settings(settings or ""):
        put(data, parse_setting(_INNER_KEY.sub(r" \1: ", text), f"{name}:"), f"{name}:")
    return data


def _over(data: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Merge `settings` into `data`, key by key. A new `kind` replaces a whole part, because its keys differ."""
    merged = dict(data)
    for key, value in settings.items():
        old = data.get(key)
        both = isinstance(value, dict) and isinstance(old, dict) and "kind" not in value
        merged[key] = _over(old, value) if both and isinstance(old, dict) else value
    return merged


def _yaml(path: Path) -> dict[str, Any]:
    try:
        data = read_yaml(path)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; give the path of a readable workload file") from None
    except ConfigError as error:
        raise TraceError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise TraceError(f"{path}: line 1: a workload file has keys, such as 'workload' or 'mix'")
    return data


def _from_data(data: dict[str, Any], where: Path, registry: Registry) -> list[TraceRequest]:
    """Generate the trace that a workload file describes."""
    if "mix" in data:
        try:
            parts = Mix.model_validate(data).mix
            traces = [part.apply(read(_beside(where, part.trace), None, registry)) for part in parts]
        except ValidationError as error:
            raise ConfigError(f"{where}: {first_error(error, Mix)}") from None
        except RecursionError:
            raise TraceError(f"{where}: a part of this mix is the mix itself; take it out") from None
        return from_zero(merge(traces))
    settings = dict(data)
    name, path = str(settings.pop("workload", "synthetic")), settings.pop("path", None)
    return _run(name, settings, where if path is None else _beside(where, str(path)), str(where), registry)


def _beside(where: Path, name: str) -> Path:
    near = where.parent / name
    return near if is_there(near) else Path(name)


def _run(name: str, settings: dict[str, Any], path: Path, where: str, registry: Registry) -> list[TraceRequest]:
    registration = registry.get("workload", name)
    try:
        checked = registration.settings.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(f"{where}: workload {name}: {first_error(error, registration.settings)}") from None
    requests = list(registration.factory(checked, path))
    if not requests:
        raise TraceError(f"{where}: no request in it; expected at least one line of {name}")
    ordered = from_zero(requests)
    check_span(ordered[-1].arrival_s, where)
    return ordered


def _guess(path: Path, registry: Registry) -> str:
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
    columns = {column.strip() for column in header.split(",")}
    shares = {name: sum(c in columns for c in wanted) / len(wanted) for name, wanted in _COLUMNS.items()}
    best = max(shares, key=lambda name: shares[name])
    return best if _COLUMNS[best][0] in columns else None


def _accepts(registry: Registry, name: str, path: Path) -> bool:
    registration = registry.get("workload", name)
    try:
        return next(iter(registration.factory(registration.settings(), path)), None) is not None
    except TraceError:
        return False


def from_zero(requests: Iterable[TraceRequest]) -> list[TraceRequest]:
    """Return the requests in order of arrival, the first one at 0."""
    ordered = sorted(requests, key=attrgetter("arrival_s"))
    start_s = ordered[0].arrival_s
    return [replace(request, arrival_s=round(request.arrival_s - start_s, 6)) for request in ordered]
