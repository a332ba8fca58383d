"""Finds what a user names as a trace: a trace file, a workload file, a shipped workload, or a generator.

``--trace X`` means, in this order: a path, whose first line shows the format; the name of a shipped workload
(`configs/workloads`); the name of a registered workload. Both kinds of names may have settings after a colon:
``synthetic:requests=500,arrivals.kind=gamma,arrivals.rate=4,arrivals.cv=2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pdplugins.config import first_error
from pdplugins.errors import ConfigError, PdpluginsError, TraceError
from pdplugins.registry import Registry, default_registry
from pdplugins.resources import data_dir
from pdplugins.safe_yaml import read_yaml
from pdplugins.settings import parse_setting, put, split_settings
from pdplugins.workloads import servegen
from pdplugins.workloads.formats import format_of, is_there
from pdplugins.workloads.trace import TraceRequest
from pdplugins.workloads.transform import Transform

MOST_DEPTH = 16
"""Mixes within one another."""
MOST_PARTS = 1000
"""Parts of a mix, those of the mixes in it included."""
_NAMED = re.compile(r"([\w-]+)(?::(.*))?", re.DOTALL)
_INNER_KEY = re.compile(r"(?<=[,\[{])\s*([\w.]+)=")


class Part(Transform):
    """One of the traces of a mix, with transforms that apply before mixing."""

    trace: str = Field(description="anything that --trace takes; a path may start where the workload file lies")


class Mix(BaseModel):
    """A workload file that mixes several traces."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mix: tuple[Part, ...] = Field(min_length=1, description="their arrivals come together; `rate` of each weighs them")


@dataclass(frozen=True, slots=True)
class Source:
    """A workload with its settings, and what it reads."""

    workload: str
    settings: dict[str, Any]
    path: Path
    """The file or folder that it reads, or what says that it generates something."""
    where: str
    """How errors call it."""

    def requests(self, registry: Registry) -> Iterable[TraceRequest]:
        """Return the requests, in the order in which the workload gives them. Raises ConfigError for its settings."""
        registration = registry.get("workload", self.workload)
        try:
            settings = registration.settings.model_validate(self.settings)
        except ValidationError as error:
            detail = first_error(error, registration.settings)
            raise ConfigError(f"{self.where}: workload {self.workload}: {detail}") from None
        requests: Iterable[TraceRequest] = registration.factory(settings, self.path)
        return requests

    def empty(self) -> TraceError:
        """Return the error of a source without requests."""
        return TraceError(f"{self.where}: no request in it; expected at least one line of {self.workload}")


@dataclass(frozen=True, slots=True)
class Mixture:
    """Several traces whose arrivals come together."""

    parts: tuple[Part, ...]
    where: Path


def source_of(trace: Path, workload: str | None, registry: Registry) -> Source | Mixture:
    """Return what `trace` means. Raises TraceError and ConfigError.

    :param workload: the format of the file `trace`; None to guess it.
    """
    if workload is None and not is_there(trace):
        if (found := _named(str(trace), registry)) is not None:
            return found
    elif workload is None and trace.suffix in {".yaml", ".yml"}:
        return _described(_yaml(trace), trace)
    return Source(workload or format_of(trace, registry), {}, trace, str(trace))


def inputs(option: str, trace: Path | str | None, registry: Registry | None = None) -> dict[str, Path]:
    """Return the files that are read for `trace`, by what they are called in an error.

    What cannot be found is left out: whoever reads the trace reports that.

    :param option: that names the trace.
    """
    if trace is None:
        return {}
    found = {option: Path(trace)}
    for path in _files(Path(trace), registry or default_registry()):
        found.setdefault(f"{path}, a file of {option}" if path != Path(trace) else option, path)
    return found


def _files(trace: Path, registry: Registry) -> Iterator[Path]:
    """Yield the files that a trace is read from, those of its parts included.

    Ends where a mix has more parts than one may have, as one that is a part of itself: its reader refuses it.
    """
    traces = [trace]
    for each in traces:  # those of mixes follow
        yield each
        try:
            source = source_of(each, None, registry)
        except PdpluginsError:
            continue
        if isinstance(source, Source):
            for path in servegen.files_of(source.path) if servegen.is_servegen(source.path) else [source.path]:
                yield path
                yield servegen.lengths_of(path)
            continue
        yield source.where
        traces += [Path(part.trace) for part in source.parts]
        if len(traces) - 1 > MOST_PARTS:  # the first one is no part
            return


def shipped() -> list[str]:
    """Return the names of the shipped workloads."""
    return sorted(path.stem for path in data_dir("configs").glob("workloads/*.yaml"))


def _named(text: str, registry: Registry) -> Source | Mixture | None:
    """Return the workload that `text` names, with the settings after the colon; None if it names no workload."""
    match = _NAMED.fullmatch(text)
    if match is None:
        return None
    name = match[1]
    if name in shipped():
        file = data_dir("configs") / f"workloads/{name}.yaml"
        data, given = _yaml(file), _inline(name, match[2])
        _check_reach(name, data, given)
        return _described(_over(data, given), file)
    if name in registry.names("workload"):
        return _described({"workload": name, **_inline(name, match[2])}, Path(text))
    return None


def _inline(name: str, settings: str | None) -> dict[str, Any]:
    """Read the settings after the name of a workload. Within braces a value may follow ``=``, too."""
    data: dict[str, Any] = {}
    for text in split_settings(settings or ""):
        put(data, parse_setting(_INNER_KEY.sub(r" \1: ", text), f"{name}:"), f"{name}:")
    return data


def _check_reach(name: str, data: dict[str, Any], given: dict[str, Any]) -> None:
    """Raise ConfigError for a setting that would change nothing, as each phase of the shipped workload has its own."""
    phases = [] if "phases" in given else data.get("phases", [])
    for key in given:
        if phases and all(key in phase for phase in phases):
            raise ConfigError(
                f"{name}: each phase of it sets {key} itself; write a workload file of your own with other phases"
            )


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
        data = read_yaml(path, pipes=False)  # it is read more than once
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; give the path of a readable workload file") from None
    except ConfigError as error:
        raise TraceError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise TraceError(f"{path}: line 1: a workload file has keys, such as 'workload' or 'mix'")
    return data


def _described(data: dict[str, Any], where: Path) -> Source | Mixture:
    """Return what a workload file describes."""
    if "mix" in data:
        try:
            parts = Mix.model_validate(data).mix
        except ValidationError as error:
            raise ConfigError(f"{where}: {first_error(error, Mix)}") from None
        beside = (part.model_copy(update={"trace": str(_beside(where, part.trace))}) for part in parts)
        return Mixture(tuple(beside), where)
    settings = dict(data)
    name, path = str(settings.pop("workload", "synthetic")), settings.pop("path", None)
    return Source(name, settings, where if path is None else _beside(where, str(path)), str(where))


def _beside(where: Path, name: str) -> Path:
    near = where.parent / name
    return near if is_there(near) else Path(name)
