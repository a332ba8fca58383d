"""``pdplugins doctor``: is everything here that pdplugins relies on? Each check that fails says what to do.

The seams, every symbol, flag, metric and file of a host that pdplugins touches, are listed in ``hooks/<host>.toml``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import mmap
import os
import platform
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from pdplugins.config import find, load
from pdplugins.errors import PdpluginsError
from pdplugins.resources import data_dir
from pdplugins.runtime.assembly import build_deployment, build_planner

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


def examine(config: str, port: int, hooks: Path | None = None) -> list[Check]:
    """Run every check, for the config called `config` and a frontend at `port`."""
    checks = [_python(), _config(config), _port(port), _scratch()]
    for path in sorted((hooks or data_dir("hooks")).glob("*.toml")):
        manifest = tomllib.loads(path.read_text(encoding="utf-8"))
        found = list(examine_host(manifest))
        checks.extend(found)
        if manifest["host"] == "sglang":
            checks.extend(_sglang_features(config, found))
    return checks


def examine_host(manifest: Mapping[str, Any]) -> Iterator[Check]:
    """Check the version, the dependencies and the seams of one host. A host that is not installed is one check."""
    distribution, versions = manifest["distribution"], manifest["versions"]
    fix = f"pip install '{distribution}{versions}'"
    name = f"{manifest['host']} {versions}"
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        yield Check(name, "fail" if manifest.get("required", True) else "warn", f"no {distribution} here", fix)
        return
    inside = SpecifierSet(versions).contains(version, prereleases=True)
    yield Check(name, "ok" if inside else "fail", f"{distribution} {version}", fix)
    for dependency in manifest.get("dependency", ()):
        yield _seam("imports " + dependency["module"], dependency, lambda d: importlib.import_module(d["module"]))
    for kind, check in SEAMS.items():
        for seam in manifest.get(kind, ()):
            if not SpecifierSet(seam.get("only", "")).contains(version, prereleases=True):
                continue
            why = f"pdplugins needs it to {seam['why']}; use {distribution} {', '.join(manifest['tested'])}"
            yield _seam(f"{kind} {seam['name']}", {"fix": why, **seam}, check)


def summary(checks: Iterable[Check]) -> Iterator[str]:
    """Yield the lines to print: each check, but seams that are as recorded only by their number."""
    fine = 0
    for check in checks:
        if check.seam and check.state == "ok":
            fine += 1
        else:
            yield check.line()
    yield f"  ok  {fine} seams are as hooks/ lists them"


def _seam(name: str, seam: Mapping[str, Any], check: Callable[[Mapping[str, Any]], object]) -> Check:
    try:
        check(seam)
    except _FailedError as error:
        return Check(name, "fail", str(error), seam["fix"], seam=True)
    except Exception as error:  # importing a host may raise anything
        return Check(name, "fail", f"{type(error).__name__}: {' '.join(str(error).split())}", seam["fix"], seam=True)
    return Check(name, "ok", seam=True)


def resolve(dotted: str) -> Any:
    """Return the module, class or attribute called `dotted`. Raises ImportError or AttributeError."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if error.name is None or not dotted.startswith(error.name):
                raise
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(f"no module {parts[0]}")


def parameters(target: Any) -> list[str]:
    """Return the names that `target` takes: the parameters of a callable, or the fields of a model."""
    fields = getattr(target, "model_fields", None) or getattr(target, "__struct_fields__", None)
    if fields is not None:
        return list(fields)
    return [name for name in inspect.signature(target).parameters if name != "self"]


def _symbol(seam: Mapping[str, Any]) -> None:
    target = resolve(seam["name"])
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
    name = "_".join(str(resolve(part)) for part in seam["parts"])
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


def _python() -> Check:
    wanted = importlib.metadata.metadata("pdplugins")["Requires-Python"]
    inside = SpecifierSet(wanted).contains(platform.python_version())
    fix = "use python3.11 -m venv"
    return Check(f"python {wanted}", "ok" if inside else "fail", platform.python_version(), fix)


def _config(name: str) -> Check:
    """The config, its profile and its planner."""
    try:
        config = load(find(name))
        deployment = build_deployment(config)
        build_planner(config, deployment)
    except PdpluginsError as error:
        return Check(f"config {name}", "fail", str(error), "correct the file, or name a shipped config")
    tp = f"prefill TP {deployment.prefill_tp}, decode TP {deployment.decode_tp}"
    return Check(f"config {name}", "ok", f"profile {config.deployment.profile}, {tp}")


def _sglang_features(name: str, found: Iterable[Check]) -> Iterator[Check]:
    """What an SGLang server does about each feature that the config asks for: serve it, not start, or serve stock."""
    from pdplugins.hosts.sglang.install import wanted  # noqa: PLC0415 - imports this module

    try:
        config = load(find(name))
    except PdpluginsError:
        return  # another check says so
    broken = [check for check in found if check.state != "ok"]
    does = "will not start (sglang.strict holds)" if config.sglang.strict else "serves stock (sglang.strict is off)"
    for feature in wanted(config):
        if not broken:
            yield Check(f"sglang: {feature}", "ok", "the plugin can hook it")
            continue
        first = f"{broken[0].name}: {broken[0].detail}"
        yield Check(f"sglang: {feature}", broken[0].state, f"refused, a server {does}: {first}", broken[0].fix)


def _port(port: int) -> Check:
    name = f"port {port}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Check(name, "warn", str(error.strerror), "choose another with --port, or stop what listens there")
    return Check(name, "ok", "free")


def _scratch() -> Check:
    """Where local registrations, logs and sockets go."""
    where = tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(dir=where):
            return Check("scratch", "ok", where)
    except OSError as error:
        return Check("scratch", "fail", f"{where}: {error.strerror}", "set TMPDIR to a folder that can be written")
