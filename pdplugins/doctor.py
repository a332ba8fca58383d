"""``pdplugins doctor``: checks what pdplugins needs on this machine, and says how to mend what fails."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import socket
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from packaging.specifiers import SpecifierSet

from pdplugins import extras, hookimpl
from pdplugins.config import find, load
from pdplugins.errors import PdpluginsError
from pdplugins.hosts.seams import Check, examine_host
from pdplugins.hosts.sglang.checks import features
from pdplugins.resources import data_dir
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.policies import build_policies
from pdplugins.sim import kernel


@hookimpl
def pd_register_commands(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    config: Annotated[str, typer.Option(help="A config file, or the name of a shipped one.")] = "dopd",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port that the frontend would take.")] = 8000,
) -> None:
    """Check this machine and all that pdplugins uses of Dynamo and SGLang; print a fix for what fails."""
    checks = examine(config, port)
    if as_json:
        typer.echo(json.dumps([check.as_data() for check in checks], indent=1))
    else:
        typer.echo("\n".join(summary(checks)))
    if any(check.state == "fail" for check in checks):
        raise typer.Exit(1)


def examine(config: str, port: int, hooks: Path | None = None) -> list[Check]:
    """Run every check, for the config called `config` and a frontend at `port`."""
    checks = [_python(), _config(config), _port(port), _scratch(), _simulator()]
    for path in sorted((hooks or data_dir("hooks")).glob("*.toml")):
        manifest = tomllib.loads(path.read_text(encoding="utf-8"))
        if not extras.whole():
            manifest["required"] = False
        found = list(examine_host(manifest))
        checks.extend(found)
        if manifest["host"] == "sglang" and _is_here(manifest["distribution"]):
            checks.extend(_sglang_features(config, found))
    return checks


def summary(checks: Iterable[Check]) -> Iterator[str]:
    """Yield the lines to print: one for each check. Seams that are as recorded are only counted."""
    fine = 0
    for check in checks:
        if check.seam and check.state == "ok":
            fine += 1
        else:
            yield check.line()
    yield f"  ok  {fine} seams are as hooks/ lists them"


def _python() -> Check:
    wanted = importlib.metadata.metadata(extras.installed())["Requires-Python"]
    inside = SpecifierSet(wanted).contains(platform.python_version())
    fix = "use python3.11 -m venv"
    return Check(f"python {wanted}", "ok" if inside else "fail", platform.python_version(), fix)


def _config(name: str) -> Check:
    """The config, its profile and the policies that it picks."""
    try:
        config = load(find(name))
        deployment = build_deployment(config)
        picked = build_policies(config, deployment)
        for build in (picked.planner, picked.router, picked.flow, picked.batch_scheduler, picked.power):
            build()
    except PdpluginsError as error:
        return Check(f"config {name}", "fail", str(error), "correct the file, or name a shipped config")
    tp = f"prefill TP {deployment.prefill_tp}, decode TP {deployment.decode_tp}"
    return Check(f"config {name}", "ok", f"profile {config.deployment.profile}, {tp}")


def _simulator() -> Check:
    """Which kernel of the simulator runs. Plain Python gives the same results, more slowly."""
    fix = "compile it again with 'pip install --editable .', in a checkout with 'make setup'"
    return Check("simulator kernel", "fail" if kernel.outdated() else "ok", kernel.describe(), fix)


def _sglang_features(name: str, found: list[Check]) -> Iterator[Check]:
    """The features of SGLang that the config asks for. A config that does not load has a check of its own."""
    try:
        config = load(find(name))
    except PdpluginsError:
        return
    yield from features(config, found)


def _is_here(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


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
    """The folder for local registrations, logs and sockets."""
    where = tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(dir=where):
            return Check("scratch", "ok", where)
    except OSError as error:
        return Check("scratch", "fail", f"{where}: {error.strerror}", "set TMPDIR to a folder that can be written")
