"""From checked options to a running stack and back to a clean machine."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pdplugins.contracts.kinds import Kind
from pdplugins.errors import HostError
from pdplugins.hosts.dynamo.local.options import Options
from pdplugins.hosts.dynamo.local.stack import Stack
from pdplugins.runtime.metrics import process_metrics
from pdplugins.runtime.planner import build_safe_planner

PREFIX = "pdplugins-serve-"
"""Of the temporary folder of a stack; the process id of its launcher follows."""


def launch(options: Options) -> int:
    """Run the stack until it is stopped or its replay is over; returns the exit code.

    Raises HostError when the stack does not start or one of its indispensable processes ends.
    """
    metrics = process_metrics(Kind.PLANNER)
    policy = build_safe_planner(options.config, decision_log=options.decision_log, metrics=metrics)
    sweep()
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        logs = (options.log_dir or folder / "logs").absolute()
        try:
            logs.mkdir(parents=True, exist_ok=True)
            with own_stderr(logs / "launcher.log"), temporary_files(folder):
                code = asyncio.run(Stack(options, policy, folder, logs).run())
        except BaseException:
            _remove_all_but(logs, folder)  # they say more than the one line that the user sees
            raise
        shutil.rmtree(folder)
    except OSError as error:
        raise HostError(f"this machine refuses: {error}; look at disk space, permissions and process limits") from None
    finally:
        policy.close()
    return code


def sweep() -> None:
    """Remove what launchers that were killed have left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and (folder / "discovery").exists() and not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_stderr(path: Path) -> Iterator[None]:
    """Send what Dynamo writes to standard error, and the log messages of this package, to a file."""
    saved = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    ours = logging.getLogger("pdplugins")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False  # Dynamo takes the root logger for itself
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.propagate = True
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


@contextmanager
def temporary_files(folder: Path) -> Iterator[None]:
    """Have Python put temporary files into `folder`: each import of Dynamo's logging leaves one behind."""
    saved, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = saved


def _remove_all_but(kept: Path, folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and path != kept:
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
