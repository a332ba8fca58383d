"""Checks the seams of a host: what pdplugins relies on of it, against what is installed.

The seams of a host are its symbols, files, programs, flags, metrics and environment variables that pdplugins touches.
They are listed in ``hooks/<host>.toml``; ``hooks/README.md`` describes the entries.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import mmap
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from pdplugins.errors import HostError
from pdplugins.resources import data_dir

HELP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str = ""
    fix: str = ""
    seam: bool = False
    """Whether it is one of the many things that `hooks/` lists."""

    def line(self) -> str:
        """Return the check as one line to print."""
        fix = f"; fix: {self.fix}" if self.fix and self.state != "ok" else ""
        return f"{self.state:>4}  {self.name}{': ' if self.detail else ''}{self.detail}{fix}"

    def as_data(self) -> dict[str, Any]:
        """Return the check as plain data."""
        return asdict(self)


class _FailedError(Exception):
    """A seam that is not as it was recorded; the message says how."""


def examine_host(manifest: Mapping[str, Any]) -> Iterator[Check]:
    """Check the version, the dependencies and the seams of one host. A host that is not installed is one check."""
    distribution, versions = manifest["distribution"], manifest["versions"]
    fix = f"pip install '{distribution}{versions}'"
    name = f"{manifest['host']} {versions}"
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        required = manifest.get("required", True)
        detail = f"no {distribution} here" + ("" if required else f", which is fine unless you use {manifest['host']}")
        yield Check(name, "fail" if required else "warn", detail, fix)
        return
    inside = SpecifierSet(versions).contains(version, prereleases=True)
    yield Check(name, "ok" if inside else "fail", f"{distribution} {version}", fix)
    for dependency in manifest.get("dependency", ()):
        yield _seam("imports " + dependency["module"], dependency, lambda d: importlib.import_module(d["module"]))
    for kind, check in SEAMS.items():
        for seam in manifest.get(kind, ()):
            if not SpecifierSet(seam.get("only", "")).contains(version, prereleases=True):
                continue
            if (needed := seam.get("needs")) is not None and importlib.util.find_spec(needed) is None:
                continue
            why = f"pdplugins needs it to {seam['why']}; use {distribution} {', '.join(manifest['tested'])}"
            yield _seam(f"{kind} {seam['name']}", {"fix": why, **seam}, check)


def need_version(host: str, what: str) -> None:
    """Raise HostError where another version of a host is installed than `what` was made for; nothing without any."""
    manifest = tomllib.loads((data_dir("hooks") / f"{host}.toml").read_text(encoding="utf-8"))
    distribution, versions = manifest["distribution"], manifest["versions"]
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return
    if not SpecifierSet(versions).contains(version, prereleases=True):
        raise HostError(
            f"{what}: made for {distribution} {versions}, and {version} is installed; pip install "
            f"'{distribution}{versions}'. 'pdplugins doctor' says what differs"
        )


def _seam(name: str, seam: Mapping[str, Any], check: Callable[[Mapping[str, Any]], object]) -> Check:
    try:
        check(seam)
    except _FailedError as error:
        return Check(name, "fail", str(error), seam["fix"], seam=True)
    except Exception as error:  # importing a host may raise anything
        return Check(name, "fail", f"{type(error).__name__}: {' '.join(str(error).split())}", seam["fix"], seam=True)
    return Check(name, "ok", seam=True)


def parameters(target: Any) -> list[str]:
    """Return the names that `target` takes: the parameters of a callable, or the fields of a model."""
    fields = getattr(target, "model_fields", None) or getattr(target, "__struct_fields__", None)
    if fields is not None:
        return list(fields)
    return [name for name in inspect.signature(target).parameters if name != "self"]


def _resolved(name: str) -> Any:
    """Return what a dotted name stands for. A module of a host that lacks a package of others says which one."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        try:
            importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if error.name and not name.startswith(error.name):
                raise _FailedError(f"imports {error.name}, which is not installed") from None
            break
    return resolve_name(name)


def _symbol(seam: Mapping[str, Any]) -> None:
    target = _resolved(seam["name"])
    if (wanted := seam.get("takes")) is not None and (missing := set(wanted) - set(parameters(target))):
        raise _FailedError(f"takes {', '.join(parameters(target))}; no longer {', '.join(sorted(missing))}")
    if (wanted := seam.get("has")) is not None and (missing := {n for n in wanted if not hasattr(target, n)}):
        raise _FailedError(f"has no {', '.join(sorted(missing))}")
    if (wanted := seam.get("members")) is not None:
        there = {name for name in dir(target) if not name.startswith("_")}
        if there != set(wanted):
            raise _FailedError(f"has other members now: {', '.join(sorted(there ^ set(wanted)))}")
    if (value := seam.get("value")) is not None and target != value:
        raise _FailedError(f"is {target!r}, not {value!r}")


def _file(seam: Mapping[str, Any]) -> None:
    path = _in_package(seam["name"])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != seam["sha256"]:
        raise _FailedError(f"has sha256 {digest[:12]}…, recorded was {seam['sha256'][:12]}…")


def _program(seam: Mapping[str, Any]) -> None:
    """A command line: every flag that we pass must be in its help."""
    done = subprocess.run(
        [sys.executable, "-m", seam["name"], "--help"],
        capture_output=True,
        text=True,
        timeout=HELP_TIMEOUT_S,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    if done.returncode:
        raise _FailedError(f"--help exits with {done.returncode}: {' '.join(done.stderr.split())[-200:]}")
    words = set(done.stdout.replace(",", " ").replace("[", " ").replace("]", " ").replace("=", " ").split())
    if missing := [flag for flag in seam["flags"] if flag not in words]:
        raise _FailedError(f"has no {', '.join(missing)}")


def _metric(seam: Mapping[str, Any]) -> None:
    """A metric whose name the host puts together from constants."""
    name = "_".join(str(resolve_name(part)) for part in seam["parts"])
    if name != seam["name"]:
        raise _FailedError(f"is called {name} now")


def _text(seam: Mapping[str, Any]) -> None:
    """A name that only exists as text inside the host, such as an environment variable."""
    with _in_package(seam["in"]).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        if text.find(seam["name"].encode()) < 0:
            raise _FailedError(f"is not in {seam['in']}")


SEAMS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "symbol": _symbol,
    "file": _file,
    "program": _program,
    "metric": _metric,
    "env": _text,
    "field": _text,
}
"""Kind of seam, the table's name in the manifest, to its check."""


def _in_package(name: str) -> Path:
    """Return a file of an installed package, named from the package on; the package may be a namespace."""
    package, _, rest = name.partition("/")
    for root in importlib.import_module(package).__path__:
        if (path := Path(root) / rest).is_file():
            return path
    raise _FailedError("is missing")
