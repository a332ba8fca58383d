"""Finds what a user names as a trace: a trace file, a workload file, a shipped workload, or a generator.

``--trace X`` means, in this order: a path, whose first line shows the format; the name of a shipped workload
(`configs/workloads`); the name of a registered workload. Names and workload files may have settings after a colon:
``synthetic:requests=500,arrivals.kind=gamma,arrivals.rate=4,arrivals.cv=2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pdplugins.config import checked
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
_YAML = {".yaml", ".yml"}
"""How workload files end."""
_NAMED = re.compile(r"([\w-]+)(?::(.*))?", re.DOTALL)
_INNER_KEY = re.compile(r"(?<=[,\[{])\s*([\w.]+)=")


class Part(Transform):
    """One of the traces of a mix, with transforms that apply before mixing."""

    trace: str = Field(description="anything that --trace takes; a path may start where the workload file lies")


class Mix(BaseModel):
    """A workload file that mixes several traces."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mix: tuple[Part, ...] = Field(min_length=1, description="their arrivals come together; `rate` of each weighs them")


class Described(BaseModel):
    """Any other workload file. Every other key is a setting of the workload."""

    model_config = ConfigDict(extra="allow", frozen=True)

    workload: str = Field("synthetic", description="name of the workload")
    path: str | None = Field(None, description="file or folder that it reads; may start where the workload file lies")


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
        settings = checked(registration.settings, self.settings, f"{self.where}: workload {self.workload}")
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
        found = _named(str(trace), registry) or _set(str(trace), registry)
        if found is not None:
            return found
    elif workload is None and trace.suffix in _YAML:
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
            yield Path(source.where)
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
        return _changed(data_dir("configs") / f"workloads/{name}.yaml", name, match[2])
    if name in registry.names("workload"):
        return _described({"workload": name, **_inline(name, match[2])}, Path(text))
    return None


def _set(text: str, registry: Registry) -> Source | Mixture | None:
    """Return the workload file that `text` begins with, with the settings after the colon; None if none is there.

    Raises ConfigError for a trace file with settings: those of its reader follow the reader's name.
    """
    if (parts := _file_and_settings(text)) is None:
        return None
    file, settings = parts
    if file.suffix in _YAML:
        return _changed(file, str(file), settings)
    reader = format_of(file, registry)
    if not registry.get("workload", reader).settings.model_fields:
        raise ConfigError(f"{text}: {reader} has no settings; name {file} alone")
    raise ConfigError(f"{text}: settings follow the name of what reads the file: {reader}:path={file},{settings}")


def _file_and_settings(text: str) -> tuple[Path, str] | None:
    """Split ``FILE:SETTINGS`` after a file that is there, whose name may have colons too; None without one."""
    ends = [place for place, character in enumerate(text) if character == ":" and place]
    files = ((Path(text[:end]), text[end + 1 :]) for end in reversed(ends))
    return next((parts for parts in files if is_there(parts[0])), None)


def _changed(file: Path, name: str, settings: str | None) -> Source | Mixture:
    """Return what a workload file describes once it has other settings. `name` is how errors of these call it."""
    data, given = _yaml(file), _inline(name, settings)
    _check_reach(name, data, given)
    return _described(_over(data, given), file)


def _inline(name: str, settings: str | None) -> dict[str, Any]:
    """Read the settings after the name of a workload. Within braces a value may follow ``=``, too."""
    data: dict[str, Any] = {}
    for text in split_settings(settings or ""):
        put(data, parse_setting(_INNER_KEY.sub(r" \1: ", text), f"{name}:"), f"{name}:")
    return data


def _check_reach(name: str, data: dict[str, Any], given: dict[str, Any]) -> None:
    """Raise ConfigError for a setting that would change nothing, as each phase of the workload has its own."""
    phases = [] if "phases" in given else data.get("phases")
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
        return  # whoever checks the file says what is wrong
    for key in given:
        if phases and all(key in phase for phase in phases):
            raise ConfigError(
                f"{name}: each phase of it sets {key} itself; write other phases into a workload file of your own"
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
        parts = checked(Mix, data, str(where)).mix
        beside = (part.model_copy(update={"trace": str(_beside(where, part.trace))}) for part in parts)
        return Mixture(tuple(beside), where)
    found = checked(Described, data, str(where))
    path = where if found.path is None else _beside(where, found.path)
    return Source(found.workload, found.model_extra or {}, path, str(where))


def _beside(where: Path, name: str) -> Path:
    near = where.parent / name
    return near if is_there(near) or _file_and_settings(str(near)) else Path(name)
