"""``pdplugins doctor``: checks everything on this machine that pdplugins relies on, and says how to mend what fails."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.specifiers import SpecifierSet

from pdplugins.config import find, load
from pdplugins.errors import PdpluginsError
from pdplugins.hosts.seams import Check, examine_host
from pdplugins.hosts.sglang.install import wanted
from pdplugins.resources import data_dir
from pdplugins.runtime.assembly import build_deployment, build_planner


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


def summary(checks: Iterable[Check]) -> Iterator[str]:
    """Yield the lines to print: each check, but seams that are as recorded only by their number."""
    fine = 0
    for check in checks:
        if check.seam and check.state == "ok":
            fine += 1
        else:
            yield check.line()
    yield f"  ok  {fine} seams are as hooks/ lists them"


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
